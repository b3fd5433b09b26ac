"""What attacks and corruptions do to a start and its result: to their probes with labels, else to their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hexa.comparison import unlabelled
from hexa.comparison.extraction import Tell
from hexa.comparison.labelled import MEASURES, Array, Difference, Judge, over_draws, paired
from hexa.data import Source
from hexa.data.loading.evaluation_stream import evaluation_batches
from hexa.data.sources.source import Subset
from hexa.evaluation import attack
from hexa.evaluation.auto_attack import apgd, apgd_name, ascend
from hexa.evaluation.corruptions import kinds
from hexa.evaluation.features import transform_of
from hexa.evaluation.protocols.probe import FittedProbe
from hexa.evaluation.split import draw_images, folds
from hexa.reporting.tables import Table
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Radii ε of the attacks, in grey levels.
EPSILONS = (1.0, 2.0, 4.0)
#: Steps of each attack.
STEPS = 20
#: Other classes that attacks by labels aim at, the most likely first.
TARGETS = 3
#: Severity of corruptions, of five.
_SEVERITY = 3
#: Clean accuracy; `--price` bounds the loss of the mean of both.
NEAREST, CLEAN = MEASURES
CORRUPTED = "corrupted images"
ATTACKED = [f"APGD of ε = {one:g}" for one in EPSILONS]

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
        stream = Stream(seed).child("attacked")
        among = np.arange(len(images)) if judge is None else judge.judged
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
    groups: measure -> int64, one per image, if groups are used.
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
        groups = {} if judge.groups is None else dict.fromkeys(MEASURES, judge.groups[judge.judged])
        return cls(backbone, features, probes, dict(scores.right), groups)

    def mean(self, name: str) -> float:
        """The mean of a measure over images, in percent."""
        return float(self.values[name].mean())


def attack_all(sides: Sequence[Side], shown: Shown, judge: Judge | None, tell: Tell) -> None:
    """Add the measures under attack and corruption to sides of one image size. judge: that of their probes."""
    places = shown.places
    done = 0
    size = attack.together(shown.pixels.device, shown.pixels[0, 0].numel())
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
        elif judge.groups is not None:
            side.groups.update(dict.fromkeys(made, judge.groups[places]))
        side.values.update(made)


def _classified(
    side: Side, fold: int, shown: Shown, rows: Rows, labels: Tensor, corrupted: Sequence[Tensor]
) -> Values:
    """Correct or not under attack, and the share of corruptions under which it is, by a probe that did not see these
    images. An image that falls to one attack or within a smaller ε counts as fallen within a larger one.
    """
    x = shown.pixels[rows]
    device = shown.pixels.device
    y = labels.to(device)
    scores = nn.Sequential(side.backbone, side.probes[fold].linear().to(device))
    radii = [epsilon / 255 for epsilon in EPSILONS]
    streams = [shown.streams[row] for row in rows]
    attacks = apgd(STEPS, TARGETS, classes=side.probes[fold].weights.shape[1])
    smallest = attack.smallest_radius(scores, x, y, radii, attacks, streams).numpy()
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
    """Views of images [B, C, S, S] that move features far: APGD of `STEPS` steps on ‖f(x) − clean‖².

    clean: their features [B, D]. start: of each pixel, in [−1, 1), as a multiple of the radius ε.
    """

    def aim(views: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        moved = (network(views) - clean[rows]).square().sum(1)
        return moved, torch.zeros(len(rows), dtype=torch.bool, device=views.device)

    return ascend(aim, images, radius, images + radius * start, STEPS)[0]


def lost(before: Side, after: Side) -> Difference:
    """Points of clean accuracy lost, the mean by k-NN and by the probe (benchmarks/README.md says why)."""
    start, end = (
        np.mean([side.values[name] for name in MEASURES], axis=0) for side in (before, after)
    )
    # the wider of both intervals: the mean has none of its own
    return paired(end, start, NEAREST, groups=before.groups.get(CLEAN))


def attack_of(judge: Judge | None) -> dict[str, Any]:
    """The attack of `attack_all`: its name, steps and targets."""
    if judge is None:
        return {"name": f"APGD on the distance of features ({STEPS} steps)", "steps": STEPS}
    classes = int(judge.labels.max()) + 1
    targets = min(TARGETS, classes - 1)
    return {"name": apgd_name(STEPS, TARGETS, classes), "steps": STEPS, "targets": targets}


def decide(
    before: Side,
    after: Side,
    price: float,
    within: bool,
    attacked: str,
    where: str = "",
    own: str = "",
) -> tuple[bool, str]:
    """Whether the result is to be kept, and the verdict in a sentence.

    It is kept if at one ε or more it is more robust by more than the 95 % interval for all ε together, at none less; if
    it is `within` the price by the labels that chose it; and if the loss by those that did not is not above `price` by
    more than its interval. A stricter rule for the latter would keep results that chance favoured, and report too
    little. Without labels, features have to move less under attack. attacked: name of the attack and number of images.
    where: the size that both are evaluated at, and own: what the start has at its own, if they need to be said.
    """
    signs = {difference(before, after, name).sign for name in ATTACKED} - {0}
    more = signs == {1 if CLEAN in before.values else -1}

    def change(name: str) -> str:
        return (
            f"{before.mean(name):.1f} → {after.mean(name):.1f} % "
            f"({difference(before, after, name)})"
        )

    attacks = ", ".join(f"{name.removeprefix('APGD of ')}: {change(name)}" for name in ATTACKED)
    if CLEAN in before.values:
        loss = lost(before, after)
        more_than = not within or loss.points - loss.half > price
        better = more and not more_than
        said = f"under attack by {attacked} within {attacks}; clean, by the {CLEAN}, {change(CLEAN)}{own}"
        said += (
            f"; by {NEAREST} {change(NEAREST)}; mean loss, by the labels that did not choose it, "
        )
        said += loss.said(" points")
        if more_than:
            said += f", more than --price {price:g}"
    else:
        better = more
        kept = unlabelled.kept(before.features, after.features).mean()
        said = f"features move under attack by {attacked}, in percent of the distance between images, within {attacks}; "
        said += f"{kept:.0%} of the start's neighbourhoods are kept; "
        said += "what that costs in accuracy only labels can tell (--labelled)"
    stays = "the start is kept"
    if not more:
        stays += ", since no gain in robustness can be shown"
    return better, f"{'it is more robust' if better else stays}{where}: {said}"


def table(before: Side, after: Side, size: int) -> Table:
    """A row for each measure: its name with an arrow for which way is good, start, result, and their difference."""
    labelled = CLEAN in before.values
    arrow = "% ↑" if labelled else "features move, % of the distance between images ↓"
    rows = []
    for name in before.values:
        means = [f"{side.mean(name):.1f}" for side in (before, after)]
        rows.append([f"{name}, {arrow}", *means, str(difference(before, after, name))])
    return Table(["", f"start, {size} px", f"result, {size} px", "result − start"], rows)


def halves_of(judge: Judge) -> list[Rows]:
    """Two halves of the judged images, as places among them: of each class, and of whole groups."""
    labels = judge.labels[judge.judged]
    groups = None if judge.groups is None else judge.groups[judge.judged]
    rows = np.arange(len(labels))
    parts = folds(labels, 2, Stream(judge.seed).child("price"), groups) or [rows[::2]]
    return [parts[0], np.setdiff1d(rows, parts[0])]


def lost_by(before: Side, after: Side, half: Rows) -> float:
    """`lost` by these of the judged images alone."""
    points = [before.values[name] - after.values[name] for name in MEASURES]
    return float(np.mean([one[half] for one in points]))


def crossed(chosen: Sequence[Side], halves: Sequence[Rows]) -> Values:
    """Clean accuracy of each judged image by the side that the other half of the labels chose.

    What chose a side does not report it, so chance that favoured the choice is not in the report.
    """
    values: Values = {}
    for name in MEASURES:
        values[name] = chosen[0].values[name].copy()
        values[name][halves[0]] = chosen[1].values[name][halves[0]]
    return values


def difference(before: Side, after: Side, name: str) -> Difference:
    """after − before by a measure; intervals of attacks hold for all ε together."""
    values = before.values[name], after.values[name]
    count = len(ATTACKED) if name in ATTACKED else 1
    if CLEAN not in before.values:
        return over_draws(*values, count)
    return paired(*values, name, count, before.groups.get(name))
