"""What attacks and corruptions do to a start and its result: to their probes with labels, else to their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hexa.comparison import unlabelled
from hexa.comparison.extraction import Tell
from hexa.comparison.labelled import MEASURES, Array, Difference, Judge, over_draws, paired
from hexa.data import Source
from hexa.data.loading.loaders import evaluation_batches
from hexa.data.sources.source import Subset
from hexa.evaluation import attack
from hexa.evaluation.corruptions import kinds
from hexa.evaluation.protocols.probe import FittedProbe
from hexa.evaluation.split import draw_images
from hexa.evaluation.transforms import transform_of
from hexa.reporting.tables import Table
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Radii in grey levels, steps of an attack, their length as a multiple of ε / steps, what those by labels raise, and
#: the severity of corruptions, of five.
EPSILONS, STEPS, _RELATIVE, _LOSSES, _SEVERITY = (
    (1.0, 2.0, 4.0),
    20,
    2.5,
    ("cross-entropy", "margin"),
    3,
)
_ATTACKS = attack.random_starts(STEPS, _RELATIVE, 1, _LOSSES)
#: Names of measures: clean accuracy by k-NN and by the probe, whose mean --price bounds, corrupted images, and attacks.
(NEAREST, CLEAN), CORRUPTED, ATTACKED = (
    MEASURES,
    "corrupted images",
    [f"attack of ε = {one:g}" for one in EPSILONS],
)

Values = dict[str, Array]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Shown:
    """Images under attack, as networks of one size see them."""

    pixels: Tensor
    """[n, C, S, S] in [0, 1]."""
    places: NDArray[np.int64]
    """Their places among the images that are judged, ascending."""
    streams: Sequence[Stream]
    """One for each image."""

    @classmethod
    def of(
        cls,
        images: Source,
        backbone: Backbone,
        count: int,
        judge: Judge | None,
        device: torch.device,
        seed: int,
    ) -> Shown:
        """`count` of the images, all of which are readable and, with a judge, judged."""
        stream, among = (
            Stream(seed).child("attacked"),
            np.arange(len(images)) if judge is None else judge.judged,
        )
        places = among[draw_images(len(among), count, stream)]
        parts = evaluation_batches(Subset(images, places), transform_of(backbone), device=device)
        streams = [stream.child(int(place)) for place in places]
        return cls(torch.cat([pixels for pixels, _, _ in parts]), places, streams)

    def corrupted(self, rows: Rows) -> list[Tensor]:
        """These images by kind of corruption; none if they are not RGB."""
        if self.pixels.shape[1] != 3:
            return []
        streams = [self.streams[row] for row in rows]
        return [kinds.corrupt(kind, self.pixels[rows], _SEVERITY, streams) for kind in kinds.KINDS]


@dataclass(frozen=True)
class Side:
    """A backbone and, for each image, what it makes of it.

    values: measure -> percent, one per image: with labels the share of the splits or corruptions in which the image is
    classified correctly; without, how far its features move, in percent of the mean distance between two images'.
    groups: as in `Scores`, by measure.
    """

    backbone: Backbone
    features: Tensor
    probes: Sequence[FittedProbe] = ()
    values: Values = field(default_factory=dict)
    groups: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: Backbone, features: Tensor, judge: Judge | None) -> Side:
        """The backbone with features [N, D] of the images that are judged, as they are."""
        if judge is None:
            return cls(backbone, features)
        probes = judge.probes(features)
        scores = judge.scores(features, probes)
        return cls(backbone, features, probes, dict(scores.right), scores.groups)

    def mean(self, name: str) -> float:
        """The mean of a measure over images, in percent."""
        return float(self.values[name].mean())


def attack_all(sides: Sequence[Side], shown: Shown, judge: Judge | None, tell: Tell) -> None:
    """Add the measures under attack and corruption to sides of one image size. judge: that of their probes."""
    places, done, size = (
        shown.places,
        0,
        attack.together(shown.pixels.device, shown.pixels[0, 0].numel()),
    )
    parts = (
        [np.arange(len(places))]
        if judge is None
        else [np.flatnonzero(np.isin(places, p)) for p in judge.splits[0]]
    )
    found: list[list[Values]] = [[] for _ in sides]
    for number, part in enumerate(parts):
        for first in range(0, len(part), size):
            corrupted = shown.corrupted(rows := part[first : first + size])
            for side, values in zip(sides, found, strict=True):
                if judge is None:
                    values.append(_moved(side.backbone, shown, rows, corrupted))
                else:
                    labels = torch.from_numpy(judge.labels[places[rows]])
                    values.append(_classified(side, number, shown, rows, labels, corrupted))
            tell(done := done + len(rows), len(places))
    order = np.argsort(np.concatenate(parts))
    for side, values in zip(sides, found, strict=True):
        made = {name: np.concatenate([one[name] for one in values])[order] for name in values[0]}
        if judge is None:
            unit = torch.pdist(side.features[:1000].double()).mean().item() / 100
            made = {name: moved / unit for name, moved in made.items()}
        else:
            side.groups.update(
                {} if judge.groups is None else dict.fromkeys(made, judge.groups[places])
            )
        side.values.update(made)


def _classified(
    side: Side, fold: int, shown: Shown, rows: Rows, labels: Tensor, corrupted: Sequence[Tensor]
) -> Values:
    """Correct or not under attack, and the share of corruptions under which it is, by a probe that did not see these
    images. An attack is from one random point, by either loss; an image that falls within a smaller ε counts as fallen
    within a larger one.
    """
    x, device = shown.pixels[rows], shown.pixels.device
    y, scores = (
        labels.to(device),
        nn.Sequential(side.backbone, side.probes[fold].linear().to(device)),
    )
    radii, streams = [epsilon / 255 for epsilon in EPSILONS], [shown.streams[row] for row in rows]
    smallest = attack.smallest_radius(scores, x, y, radii, _ATTACKS, streams).numpy()
    found: Values = {
        name: 100 * (smallest > radius).astype(np.float64)
        for name, radius in zip(ATTACKED, radii, strict=True)
    }
    with torch.no_grad():
        right = [(scores(pixels).argmax(1) == y).cpu().numpy() for pixels in corrupted]
    return {CORRUPTED: 100 * np.mean(right, axis=0), **found} if right else found


def _moved(backbone: Backbone, shown: Shown, rows: Rows, corrupted: Sequence[Tensor]) -> Values:
    """The distances by which features of these images move under corruption, in the mean, and under attack."""
    x = shown.pixels[rows]
    start = attack.noise(x, [shown.streams[row] for row in rows], 0)
    with torch.no_grad():
        clean = backbone(x)
        far = [(backbone(pixels) - clean).norm(dim=1) for pixels in corrupted]
    moved = {CORRUPTED: torch.stack(far).mean(0)} if far else {}
    for name, epsilon in zip(ATTACKED, EPSILONS, strict=True):
        views = farthest(backbone, x, clean, start, epsilon / 255)
        with torch.no_grad():
            moved[name] = (backbone(views) - clean).norm(dim=1)
    return {name: distance.cpu().double().numpy() for name, distance in moved.items()}


def farthest(
    network: nn.Module, images: Tensor, clean: Tensor, start: Tensor, radius: float
) -> Tensor:
    """Views of images [B, C, S, S] after `STEPS` steps of x ← Π(x + η · sign ∂/∂x ‖f(x) − clean‖²), η = 2.5 ε / STEPS.

    Π is onto the box of this radius ε around the images, and onto [0, 1]. clean: their features [B, D]. start: of each
    pixel, in [−1, 1), as a multiple of the radius.
    """
    views, step = images + radius * start, _RELATIVE * radius / STEPS
    unused = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    moved: attack.Loss = lambda features, _: (features - clean).square().sum(1)  # noqa: E731
    return attack.projected_gradient(
        network, images, unused, views, radius, step, STEPS, moved, stops=False
    )[0]


def lost(before: Side, after: Side) -> float:
    """Points of clean accuracy lost, the mean by k-NN and by the probe (docs/what-hardening-was-worth.md says why)."""
    return float(np.mean([before.mean(name) - after.mean(name) for name in MEASURES]))


def decide(
    before: Side, after: Side, price: float, tried: int, where: str = "", own: str = ""
) -> tuple[bool, str]:
    """Whether the result is to be kept, and the verdict in a sentence.

    It is where at one ε or more it is more robust by more than the 95 % interval, for `tried` states and all ε
    together, at none less, and `lost` is at most `price` points. Without labels, where features move less
    under attack; the price can't be told then. where: the size that both are judged at, and own: what the start
    has at its own, if they need to be said.
    """
    signs = {_difference(before, after, name, tried).sign for name in ATTACKED} - {0}
    more = signs == {1 if CLEAN in before.values else -1}

    def change(name: str) -> str:
        return f"{before.mean(name):.1f} → {after.mean(name):.1f} % ({_difference(before, after, name, tried)})"

    attacks = ", ".join(f"{name.removeprefix('attack of ')}: {change(name)}" for name in ATTACKED)
    if CLEAN in before.values:
        better = more and lost(before, after) <= price
        said = f"under attack within {attacks}; clean, by the {CLEAN}, {change(CLEAN)}{own}; by {NEAREST} "
        said += change(NEAREST) + f", in the mean more than --price {price:g}" * (
            lost(before, after) > price
        )
    else:
        better, kept = more, unlabelled.kept(before.features, after.features).mean()
        said = f"features move, in percent of the distance between images, within {attacks}; {kept:.0%} of the start's "
        said += (
            "neighbourhoods are kept; what that costs in accuracy only labels can tell (--labelled)"
        )
    stays = "the start is kept" + ", since no gain in robustness can be shown" * (not more)
    return better, f"{'it is more robust' if better else stays}{where}: {said}"


def table(before: Side, after: Side, size: int, tried: int) -> Table:
    """A row for each measure: its name with an arrow for which way is good, start, result, and their difference."""
    arrow = "% ↑" if CLEAN in before.values else "features move, % of the distance between images ↓"
    means = (
        (name, *(f"{side.mean(name):.1f}" for side in (before, after))) for name in before.values
    )
    rows = [
        [f"{name}, {arrow}", *both, str(_difference(before, after, name, tried))]
        for name, *both in means
    ]
    return Table(["", f"start, {size} px", f"result, {size} px", "result − start"], rows)


def _difference(before: Side, after: Side, name: str, tried: int) -> Difference:
    count = tried * len(ATTACKED) if name in ATTACKED else tried
    values = before.values[name], after.values[name]
    if CLEAN not in before.values:
        return over_draws(*values, count)
    return paired(*values, name, count, before.groups.get(name))
