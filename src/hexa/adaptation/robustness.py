"""Measures attacks and corruptions on initial weights and result: by their probes or, without labels, their features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hexa.comparison import unlabelled
from hexa.comparison.extraction import Tell
from hexa.comparison.labelled import MEASURES, Array, Difference, Judge, over_draws, paired
from hexa.data import Source
from hexa.data.loading.evaluation_stream import evaluation_batches, floats
from hexa.data.sources.source import Subset
from hexa.evaluation import attack
from hexa.evaluation.auto_attack import apgd, apgd_name, ascend
from hexa.evaluation.corruptions import kinds
from hexa.evaluation.features import for_inference, transform_of
from hexa.evaluation.protocols.probe import FittedProbe
from hexa.evaluation.split import draw_images, folds
from hexa.reporting.tables import Table
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Radii ε of the attacks, in units of 1/255.
EPSILONS = (1.0, 2.0, 4.0)
#: Steps of each attack.
STEPS = 20
#: Number of target classes of the attack with labels, the most likely first.
TARGETS = 3
#: Smallest change of how far features move under attack that counts, in percent of the distance between images.
LEAST_MOVED = 1.0
#: Maximum number of images for the mean distance between images.
_SPREAD = 1000
#: Severity of the corruptions, from 1 to 5.
_SEVERITY = 3
#: Measures of clean accuracy; `--price` bounds the mean loss of both.
NEAREST, CLEAN = MEASURES
CORRUPTED = "corrupted images"
ATTACKED = [f"APGD of ε = {one:g}/255" for one in EPSILONS]

Values = dict[str, Array]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Shown:
    """Images to attack, at the input size of the networks."""

    pixels: Tensor
    """[n, C, S, S] in [0, 1]."""
    places: NDArray[np.int64]
    """Positions of these images among the evaluated images, ascending."""
    streams: Sequence[Stream]
    """A random stream for each image."""

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
        """Draw `count` of the images, which must be readable; with labels, only scored images are drawn."""
        stream = Stream(seed).child("attacked")
        among = np.arange(len(images)) if judge is None else judge.judged
        places = among[draw_images(len(among), count, stream)]
        parts = evaluation_batches(Subset(images, places), transform_of(backbone), device=device)
        streams = [stream.child(int(place)) for place in places]
        return cls(torch.cat([floats(pixels, device) for pixels, _ in parts]), places, streams)

    def corrupted(self, rows: Rows) -> list[Tensor]:
        """Return the images of `rows` under each corruption; an empty list if they are not RGB."""
        if self.pixels.shape[1] != 3:
            return []
        streams = [self.streams[row] for row in rows]
        return [kinds.corrupt(kind, self.pixels[rows], _SEVERITY, streams) for kind in kinds.KINDS]


@dataclass(frozen=True)
class Side:
    """A backbone with its measures for each image.

    values: measure -> percent, one value per image. With labels, a value is the share of splits or corruptions in which
    the image is classified correctly; without labels, it is the distance that the features move, in percent of the mean
    distance between two images. groups: measure -> int64, one value per image, if groups are used.
    """

    backbone: Backbone
    features: Tensor
    probes: Sequence[FittedProbe] = ()
    values: Values = field(default_factory=dict)
    groups: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: Backbone, features: Tensor, judge: Judge | None) -> Side:
        """Return the backbone with features [N, D] and clean scores of the evaluated images."""
        if judge is None:
            return cls(backbone, features)
        probes = judge.probes(features)
        scores = judge.scores(features, probes)
        groups = {} if judge.groups is None else dict.fromkeys(MEASURES, judge.groups[judge.judged])
        return cls(backbone, features, probes, dict(scores.right), groups)

    def mean(self, name: str) -> float:
        """Return the mean of a measure over images, in percent."""
        return float(self.values[name].mean())


def attack_all(sides: Sequence[Side], shown: Shown, judge: Judge | None, tell: Tell) -> None:
    """Add the measures under attack and corruption to `sides` of one image size."""
    places = shown.places
    done = 0
    size = attack.together(shown.pixels.device, shown.pixels[0, 0].numel())
    parts = (
        [np.arange(len(places))]
        if judge is None
        else [np.flatnonzero(np.isin(places, p)) for p in judge.splits[0]]
    )
    found: list[list[Values]] = [[] for _ in sides]
    frozen = [
        replace(side, backbone=for_inference(side.backbone, shown.pixels.device)) for side in sides
    ]
    for number, part in enumerate(parts):
        for first in range(0, len(part), size):
            corrupted = shown.corrupted(rows := part[first : first + size])
            for side, values in zip(frozen, found, strict=True):
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
            number = len(side.features)
            # evenly spread, because images of a folder can be sorted by class
            spread = np.linspace(0, number - 1, min(number, _SPREAD)).astype(np.int64)
            unit = torch.pdist(side.features[spread].double()).mean().item() / 100
            made = {name: moved / unit for name, moved in made.items()}
        elif judge.groups is not None:
            side.groups.update(dict.fromkeys(made, judge.groups[places]))
        side.values.update(made)


def _classified(
    side: Side, fold: int, shown: Shown, rows: Rows, labels: Tensor, corrupted: Sequence[Tensor]
) -> Values:
    """Return correctness under attack, and the share of corruptions that are classified correctly.

    The probe was not fitted on these images. If an attack succeeds at one ε, the image counts as wrong at every larger ε.
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
    """Return the distances that features move under attack, and their mean over corruptions."""
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
    """Return views of images [B, C, S, S] with the largest change of features: APGD of `STEPS` steps on ‖f(x) − clean‖².

    clean: features [B, D] of the images. start: initial perturbation in units of the radius ε, in [−1, 1).
    """

    def aim(views: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        moved = (network(views) - clean[rows]).square().sum(1)
        return moved, torch.zeros(len(rows), dtype=torch.bool, device=views.device)

    return ascend(aim, images, radius, images + radius * start, STEPS)[0]


def lost(before: Side, after: Side) -> Difference:
    """Return the loss of clean accuracy in points, the mean of k-NN and linear probe (reason: benchmarks/README.md)."""
    start, end = (
        np.mean([side.values[name] for name in MEASURES], axis=0) for side in (before, after)
    )
    # the wider of both intervals, because the mean has no interval of its own
    return paired(end, start, NEAREST, groups=before.groups.get(CLEAN))


def attack_of(judge: Judge | None) -> dict[str, Any]:
    """Return name, steps and targets of the attack in `attack_all`."""
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
    """Return True if the result is kept, and the verdict in words.

    The result is kept if three conditions hold. Robust accuracy improves significantly at one ε or more (95 % intervals
    for all ε together) and falls significantly at none. The loss is `within` the price on the labels that chose the
    result. The loss on the other labels does not exceed `price` significantly; a stricter bound on this loss would
    select for chance and bias the report. Without labels, features must move significantly less under attack,
    by `LEAST_MOVED` or more.
    attacked: name of the attack and number of images. where: image size of the evaluation. own: accuracy of the initial
    weights at native resolution, if it differs.
    """
    least = 0.0 if CLEAN in before.values else LEAST_MOVED
    found = [difference(before, after, name) for name in ATTACKED]
    signs = {one.sign for one in found if abs(one.points) >= least} - {0}
    more = signs == {1 if CLEAN in before.values else -1}

    def change(name: str) -> str:
        return (
            f"{before.mean(name):.1f} → {after.mean(name):.1f} % "
            f"({difference(before, after, name)})"
        )

    attacks = ", ".join(f"{change(name)} at {name.removeprefix('APGD of ')}" for name in ATTACKED)
    if CLEAN in before.values:
        loss = lost(before, after)
        more_than = loss.points - loss.half > price
        better = more and within and not more_than
        said = f"Robust accuracy under {attacked}: {attacks}. "
        said += f"Clean accuracy: {CLEAN} {change(CLEAN)}{own}, {NEAREST} {change(NEAREST)}. "
        said += f"Loss of clean accuracy on the labels that did not choose the result: {loss.said(' points')}"
        if more_than:
            said += f", more than --price {price:g}"
        if not within:
            said += (
                f". On the labels that chose the result, the loss is more than --price {price:g}"
            )
    else:
        better = more
        kept = unlabelled.kept(before.features, after.features).mean()
        said = f"Features move under {attacked}, in percent of the distance between images: {attacks}. "
        said += f"{kept:.0%} of the neighbourhoods are kept. "
        said += "To measure the loss of accuracy, give --labelled"
    conclusion = "The result is more robust"
    if not better:
        conclusion = "The initial weights are kept"
        where = f" (compared{where})"
    why = "" if more else ", because no gain in robustness is significant"
    return better, f"{conclusion}{where}{why}. {said}."


def table(before: Side, after: Side, size: int) -> Table:
    """Return a table with a row for each measure: name with an arrow for the better direction, both values, difference."""
    labelled = CLEAN in before.values
    arrow = "% ↑" if labelled else "features move, % of the distance between images ↓"
    rows = []
    for name in before.values:
        means = [f"{side.mean(name):.1f}" for side in (before, after)]
        rows.append([f"{name}, {arrow}", *means, str(difference(before, after, name))])
    return Table(["", f"initial, {size} px", f"result, {size} px", "result − initial"], rows)


def halves_of(judge: Judge) -> list[Rows]:
    """Split the scored images into two halves, stratified by class, with whole groups; return positions of each half."""
    labels = judge.labels[judge.judged]
    groups = None if judge.groups is None else judge.groups[judge.judged]
    rows = np.arange(len(labels))
    parts = folds(labels, 2, Stream(judge.seed).child("price"), groups) or [rows[::2]]
    first = parts[0]
    if groups is not None:
        first = rows[np.isin(groups, groups[first])]
    return [first, np.setdiff1d(rows, first)]


def lost_by(before: Side, after: Side, half: Rows) -> float:
    """Return the loss of clean accuracy in points on the scored images of `half`; see `lost`."""
    points = [before.values[name] - after.values[name] for name in MEASURES]
    return float(np.mean([one[half] for one in points]))


def crossed(chosen: Sequence[Side], halves: Sequence[Rows]) -> Values:
    """Return the clean accuracy of each scored image for the weights that the other half of the labels chose.

    No label scores the weights that it helped to choose, so the choice does not bias the report.
    """
    values: Values = {}
    for name in MEASURES:
        values[name] = chosen[0].values[name].copy()
        values[name][halves[0]] = chosen[1].values[name][halves[0]]
    return values


def difference(before: Side, after: Side, name: str) -> Difference:
    """Return after − before for a measure; intervals under attack hold for all ε together."""
    values = before.values[name], after.values[name]
    count = len(ATTACKED) if name in ATTACKED else 1
    if CLEAN not in before.values:
        return over_draws(*values, count)
    return paired(*values, name, count, before.groups.get(name))
