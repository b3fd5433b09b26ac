"""Sentences on the differences of two arms, with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hexa.config import is_number
from hexa.evaluation.few_labels import half_width
from hexa.reporting.runs import Record, Run, flatten
from hexa.reporting.scores import Cell, arms_of, collected

#: Shared seeds from which on an interval over seeds shows the chance of training.
_FEWEST_SEEDS = 3
#: The seed of a training, and the training and test images that an evaluation drew.
_Place = tuple[str, tuple[str, ...]]


def verdicts(
    runs: Sequence[Run],
    names: Sequence[str],
) -> list[str]:
    """A sentence on each difference in top-1 and robust accuracy of two arms; none for other numbers of arms.

    Results are compared if protocol, precision, training images and test images are the same.
    """
    arms = arms_of(runs, names)
    if len(arms) != 2:
        return []
    members = [[runs[number] for number in numbers] for numbers in arms.values()]
    rows = collected(members, _accuracies)
    said = []
    for (named, images, metric), cells in rows:
        if all(cells):
            said.append(f"{named} on {images}: {_difference(list(arms), cells, metric)}")
    evaluated = {arm for _, cells in rows for arm in (0, 1) if cells[arm]}
    if len(evaluated) == 2 and not said:
        needed = "protocol, network, precision, training images and test images"
        said.append(f"nothing is compared, because no two results share {needed}")
    return said


class _Accuracy(NamedTuple):
    """An accuracy in percent."""

    value: float
    images: int
    """The number of test images; 0 if it is unknown."""
    drawn: float
    """Half of the 95 % interval over draws of labels; 0 if all labels were used, NaN if labels were drawn once."""


def _accuracies(result: Record) -> dict[str, _Accuracy]:
    """The top-1 accuracy, and the robust ones by ε."""
    facts = flatten(result)
    known = [facts.get("data_facts.test.images"), facts.get("options.images")]
    counts = [int(number) for number in known if is_number(number)]
    images = min(counts) if is_number(known[0]) else 0
    metrics = result["metrics"]
    drawn = metrics.get("top1_interval")
    if not is_number(drawn):
        drawn = math.nan if _draws_labels(result.get("options")) else 0.0
    return {
        str(name): _Accuracy(float(value), images, drawn)
        for name, value in metrics.items()
        if is_number(value) and (name == "top1" or str(name).startswith("robust@"))
    }


def _draws_labels(options: Any) -> bool:
    """True if a protocol with these options learns from labels that it draws."""
    if not isinstance(options, dict) or options.get("list_file") is not None:
        return False
    percent = options.get("percent")
    share = is_number(percent) and percent < 100
    return bool(options.get("shots") or options.get("labels") or share)


def _difference(
    names: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    metric: str,
) -> str:
    """Say how an accuracy of the second arm differs, with its 95 % interval. cells: the accuracies of both arms.

    The interval is that over test images and draws of labels, or the one over shared seeds if it is wider: seeds share
    the test images, and the gains of a few seeds may agree by chance.
    """
    repeated = any(len({cell.seed for cell in arm}) > 1 for arm in cells)
    first, second = (_by_place(arm, repeated) for arm in cells)
    shared = [place for place in first if place in second]
    if not shared and not repeated:
        return (
            "the evaluations drew different images, so nothing is compared; "
            "evaluate both with the same --seed"
        )
    gains: dict[str, list[float]] = {}
    for place in shared:
        gains.setdefault(place[0], []).append(second[place].value - first[place].value)
    if len(gains) < 1 + repeated:
        return (
            "the arms share fewer than two seeds, so nothing is compared; train and evaluate "
            "both with the same seeds"
        )
    of_seeds = [fmean(of_seed) for of_seed in gains.values()]
    gain = fmean(of_seeds)
    used = [[arm[place] for place in shared] for arm in (first, second)]
    accuracies = [fmean(one.value for one in arm) for arm in used]
    images = min(one.images for arm in used for one in arm)
    if images < 1 or not 0 <= min(accuracies) <= max(accuracies) <= 100:
        return (
            f"the number of test images is unknown, so that a difference of {gain:+.1f} "
            "points shows nothing"
        )
    draws = [fmean(one.drawn for one in arm) for arm in used]
    if any(map(math.isnan, draws)):
        return (
            f"labels were drawn once, so that a difference of {gain:+.1f} points shows nothing; "
            "evaluate both with --draws 5"
        )
    half = math.hypot(_over_images(accuracies, images), *draws)
    over = f"over {images:,} test images"
    if any(draws):
        over += " and draws of labels"
    interval = f"95 % interval {over}, not paired"
    if len(of_seeds) > 1:
        half = max(half, half_width(of_seeds))
        interval = f"the wider of two 95 % intervals: over {len(of_seeds)} paired seeds, and {over}"
    if len(of_seeds) < _FEWEST_SEEDS:
        interval += "; fewer than three seeds do not show the chance of training"
    found = f"is not shown to differ from {names[0]}"
    if abs(gain) > half:
        found = f"is {'better' if gain > 0 else 'worse'} than {names[0]}"
    points = f"{round(gain, 1) + 0:+.1f} ± {half:.1f} points".replace("-", "−")
    what = "top-1 accuracy"
    if metric != "top1":
        what = f"accuracy under attack of ε = {metric.removeprefix('robust@')}"
    return f"{names[1]} {found}: {points} of {what} ({interval})"


def _by_place(arm: Sequence[Cell], repeated: bool) -> dict[_Place, _Accuracy]:
    """The accuracies of an arm by training seed and drawn images. Evaluations of one training on these are averaged.

    repeated: False compares single trainings whatever their seeds are.
    """
    found: dict[_Place, list[_Accuracy]] = {}
    for cell in arm:
        place = (cell.seed if repeated else "", cell.drawn)
        found.setdefault(place, []).append(cell.found)
    averaged = {}
    for place, several in found.items():
        values, images, drawn = zip(*several, strict=True)
        averaged[place] = _Accuracy(fmean(values), min(images), fmean(drawn))
    return averaged


def _over_images(accuracies: Sequence[float], images: int) -> float:
    """Half the width of the 95 % interval of a difference of two accuracies in percent, over test images.

    Results do not store single images, so it is not paired (Agresti and Caffo, 2000: one more image that is right and
    one that is wrong on each side). Means over seeds on these images vary less.
    """
    shares = [(one * images + 100) / (images + 2) for one in accuracies]
    spread = sum(share * (100 - share) for share in shares)
    return 1.96 * math.sqrt(spread / (images + 2))
