"""Evaluations of runs as tables: every one with its protocol, runs side by side, and means over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hexa.evaluation.few_labels import half_width
from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import Table, best_of, mean_std, text

#: A metric, and the standard deviation that the evaluation itself reports (`top1_std`), if any.
Score = tuple[float, float | None]
#: The seed of a training, and the training and test images that an evaluation drew.
_Place = tuple[str, tuple[str, ...]]
#: Shared seeds from which on an interval over seeds shows the chance of training.
_FEWEST_SEEDS = 3


class _Cell(NamedTuple):
    """One evaluation in a row of a table."""

    seed: str
    """The seed of the run."""
    drawn: tuple[str, ...]
    """The training and the test images, as `--holdout` and `--images` drew them."""
    found: Any
    """The score."""


def evaluations(
    runs: Sequence[Run],
    names: Sequence[str],
) -> Table:
    """A row per metric, a column per run."""
    return _side_by_side([[run] for run in runs], tuple(names))


def over_seeds(
    runs: Sequence[Run],
    names: Sequence[str],
) -> Table:
    """Mean ± std over runs that differ by their seed alone, one column per arm; empty if no experiment was repeated."""
    arms = _arms(runs, names)
    if len(arms) == len(runs):
        return Table()
    members = [[runs[number] for number in numbers] for numbers in arms.values()]
    return _side_by_side(members, tuple(arms))


def _arms(
    runs: Sequence[Run],
    names: Sequence[str],
) -> dict[str, list[int]]:
    """The numbers of the runs that differ by their seed alone, by a name for them."""
    arms: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        fields = {path: value for path, value in run.config.items() if path != "seed"}
        key = json.dumps(fields, sort_keys=True, default=str) if run.config else f"run {number}"
        arms.setdefault(key, []).append(number)
    return {
        names[members[0]] + (f" and {len(members) - 1} more" if members[1:] else ""): members
        for members in arms.values()
    }


def verdicts(
    runs: Sequence[Run],
    names: Sequence[str],
) -> list[str]:
    """A sentence on each difference in top-1 and robust accuracy of two arms; none for other numbers of arms.

    Results are compared if protocol, precision, training images and test images are the same.
    """
    arms = _arms(runs, names)
    if len(arms) != 2:
        return []
    members = [[runs[number] for number in numbers] for numbers in arms.values()]
    rows = _collected(members, _accuracies)
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
    once = math.nan if _draws_labels(result.get("options")) else 0.0
    return {
        str(name): _Accuracy(float(value), images, metrics.get(f"{name}_interval", once))
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
    cells: Sequence[Sequence[_Cell]],
    metric: str,
) -> str:
    """Say how an accuracy of the second arm differs, with its 95 % interval. cells: the accuracies of both arms.

    The interval is that over test images and draws of labels, or the one over shared seeds if it is wider: seeds share
    the test images, and the gains of a few seeds may agree by chance. Evaluations of one training on the same images
    are averaged.
    """
    repeated = any(len({cell.seed for cell in arm}) > 1 for arm in cells)
    scored = [_by_place(arm, repeated) for arm in cells]
    shared = [place for place in scored[0] if place in scored[1]]
    if not shared and not repeated:
        return (
            "the evaluations drew different images, so nothing is compared; "
            "evaluate both with the same --seed"
        )
    means = [
        {place: statistics.fmean(one.value for one in places[place]) for place in shared}
        for places in scored
    ]
    gains: dict[str, list[float]] = {}
    for place in shared:
        gains.setdefault(place[0], []).append(means[1][place] - means[0][place])
    if len(gains) < 1 + repeated:
        return (
            "the arms share fewer than two seeds, so nothing is compared; train and evaluate "
            "both with the same seeds"
        )
    of_seeds = [statistics.fmean(of_seed) for of_seed in gains.values()]
    gain = statistics.fmean(of_seeds)
    accuracies = [statistics.fmean(of_arm.values()) for of_arm in means]
    used = [[one for place in shared for one in places[place]] for places in scored]
    images = min(one.images for arm in used for one in arm)
    if images < 1 or not 0 <= min(accuracies) <= max(accuracies) <= 100:
        return (
            f"the number of test images is unknown, so that a difference of {gain:+.1f} "
            "points shows nothing"
        )
    draws = [statistics.fmean(one.drawn for one in arm) for arm in used]
    if any(map(math.isnan, draws)):
        return (
            f"labels were drawn once, so that a difference of {gain:+.1f} points shows nothing; "
            "evaluate both with --draws 5"
        )
    half = math.hypot(_over_images(accuracies, images), *draws)
    labels = " and draws of labels" if any(draws) else ""
    interval = f"95 % interval over {images:,} test images{labels}, not paired"
    if len(of_seeds) > 1:
        half = max(half, half_width(of_seeds))
        seeds = f"over {len(of_seeds)} paired seeds"
        interval = (
            f"the wider of two 95 % intervals: {seeds}, and over {images:,} test images{labels}"
        )
    if len(of_seeds) < _FEWEST_SEEDS:
        interval += "; fewer than three seeds do not show the chance of training"
    found = f"is not shown to differ from {names[0]}"
    if abs(gain) > half:
        found = f"is {'better' if gain > 0 else 'worse'} than {names[0]}"
    points = f"{gain:+.1f} ± {half:.1f} points".replace("-", "−")
    what = "top-1 accuracy"
    if metric != "top1":
        what = f"accuracy under attack of ε = {metric.removeprefix('robust@')}"
    return f"{names[1]} {found}: {points} of {what} ({interval})"


def _by_place(arm: Sequence[_Cell], repeated: bool) -> dict[_Place, list[_Accuracy]]:
    """The accuracies of an arm by training seed and drawn images; single trainings are compared whatever their seeds are."""
    places: dict[_Place, list[_Accuracy]] = {}
    for cell in arm:
        places.setdefault((cell.seed if repeated else "", cell.drawn), []).append(cell.found)
    return places


def _over_images(accuracies: Sequence[float], images: int) -> float:
    """Half the width of the 95 % interval of a difference of two accuracies in percent, over test images.

    Results do not store single images, so it is not paired (Agresti and Caffo, 2000: one more image that is right and
    one that is wrong on each side). Means over seeds on these images vary less.
    """
    shares = [(one * images + 100) / (images + 2) for one in accuracies]
    spread = sum(share * (100 - share) for share in shares)
    return 1.96 * math.sqrt(spread / (images + 2))


def newest(run: Run) -> list[Record]:
    """The evaluations of a run without those that a later one of the same kind, images and seed replaces."""
    kept = {}
    for result in run.results:
        kind = [
            result.get(key) for key in ("protocol", "preset", "precision", "seed", "deviations")
        ]
        key = [*kind, *_images(result, "fingerprint"), _encoder(result)]
        kept[json.dumps(key, sort_keys=True, default=str)] = result
    return list(kept.values())


def protocol(result: Record) -> str:
    """The protocol id, with the preset where it is not the only one, and the precision unless it is fp32."""
    named = text(result.get("protocol", "?"))
    preset = result.get("preset")
    precision = result.get("precision")
    if preset not in (None, "default") and str(preset) not in named:
        named += f" {text(preset)}"
    return named if precision in (None, "fp32") else f"{named} in {text(precision)}"


def data(result: Record) -> str:
    """The scored data: the name of a known data set, else as `spelled`; empty if the result lacks both."""
    facts = _facts(result)
    known = facts.get("test.known_as")
    return spelled(result) if known is None or _other_source(facts) else text(known)


def spelled(result: Record) -> str:
    """The data as the user named them, and the source of the test images if it is another one."""
    named = text(result.get("data") or "")
    other = _other_source(_facts(result))
    return f"{named}, scored on {other}" if other not in ("", named) else named


def _other_source(facts: Record) -> str:
    """The test images, unless they are a part of the training images' source or its split test; else empty."""
    source, split = text(facts.get("test.source")), facts.get("test.split")
    if source != text(facts.get("fit.source")):
        return source
    return "" if split in ("test", facts.get("fit.split")) else f"{source}#{text(split)}"


def _facts(result: Record) -> Record:
    """The facts of the training and the test images: `fit.images`, `test.fingerprint` …"""
    facts = result.get("data_facts")
    return flatten(facts) if isinstance(facts, dict) else {}


def _images(result: Record, *keys: str) -> tuple[str, ...]:
    """The training and the test images, by the first of these facts that is known, or else by the data's name."""
    facts = _facts(result)
    found = []
    for side in ("fit", "test"):
        known = [facts[f"{side}.{key}"] for key in keys if f"{side}.{key}" in facts]
        found.append(text(known[0]) if known else data(result))
    return tuple(found)


def _encoder(result: Record) -> str:
    """The evaluated network, and its batch-norms."""
    facts = result.get("backbone_facts")
    facts = facts if isinstance(facts, dict) else result
    known = [facts.get(key) for key in ("encoder", "branch")]
    return " · ".join(text(one) for one in known if one is not None)


def remarks(result: Record) -> str:
    """Deviations {option: [published, used]} as `option published → used`, and notes."""
    deviations = result.get("deviations")
    said = []
    for option, pair in deviations.items() if isinstance(deviations, dict) else ():
        ends = pair if isinstance(pair, list) else [pair]
        said.append(f"{option} {' → '.join(map(text, ends))}")
    notes = result.get("notes") or []
    return "; ".join([*said, *map(text, notes if isinstance(notes, list) else [notes])])


def _side_by_side(
    arms: Sequence[Sequence[Run]],
    header: tuple[str, ...],
) -> Table:
    """One row per (protocol, data, metric), one column per arm; the best mean of each row on the same images is marked."""
    rows: list[tuple[str, ...]] = []
    best: set[tuple[int, int]] = set()
    for labels, cells in _collected(arms, _metrics):
        values = [[cell.found[0] for cell in arm] for arm in cells]
        if len({frozenset(cell.drawn for cell in arm) for arm in cells if arm}) == 1:
            best |= {(len(rows), len(labels) + arm) for arm in best_of(values)}
        rows.append((*labels, *(_shown([cell.found for cell in arm]) for arm in cells)))
    return Table(("protocol", "data", "metric", *header) if rows else (), tuple(rows), 3, best)


def _collected(
    arms: Sequence[Sequence[Run]], found: Callable[[Record], dict[str, Any]]
) -> list[tuple[tuple[str, str, str], list[list[_Cell]]]]:
    """The evaluations of each arm, by protocol with precision, data and what an evaluation has `found`.

    Data are the same if training and test images are, however each run spelt the source, or if `--holdout` and
    `--images` drew parts of the same images by different seeds. Other data of the same name have their fingerprints.
    The network that was evaluated is named if a run has several: methods call theirs by different names (query,
    teacher …).
    """
    runs = [(number, run) for number, members in enumerate(arms) for run in members]
    several = any(len({_encoder(result) for result in run.results}) > 1 for _, run in runs)
    kept: dict[tuple[str, tuple[str, ...], str], list[list[_Cell]]] = {}
    names: dict[tuple[str, ...], str] = {}
    for number, run in runs:
        seed = text(run.config.get("seed"))
        for result in newest(run):
            images = _images(result, "part_of", "fingerprint")
            named = protocol(result)
            if several:
                named += f" ({_encoder(result)})"
            names.setdefault(images, data(result))
            drawn = _images(result, "fingerprint")
            for what, score in found(result).items():
                row = kept.setdefault((named, images, what), [[] for _ in arms])
                row[number].append(_Cell(seed, drawn, score))
    times = Counter(names.values())
    for images, name in names.items():
        if times[name] > 1:
            names[images] = f"{name} (images {', '.join(one[:8] for one in images)})"
    return [((named, names[images], what), cells) for (named, images, what), cells in kept.items()]


def _metrics(result: Record) -> dict[str, Score]:
    """The metrics with their standard deviations, which are metrics of their own in the file, as are intervals."""
    numbers = {str(name): value for name, value in result["metrics"].items() if is_number(value)}
    extra = {f"{name}_{kind}" for name in numbers for kind in ("std", "interval")}
    return {
        name: (float(value), numbers.get(f"{name}_std"))
        for name, value in numbers.items()
        if name not in extra
    }


def _shown(scores: Sequence[Score]) -> str:
    if len(scores) == 1 and scores[0][1] is not None:
        return f"{scores[0][0]:.1f} ± {scores[0][1]:.1f}"
    return mean_std([value for value, _ in scores])
