"""Evaluations of runs as tables: every one with its protocol, runs side by side, and means over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from hexa.evaluation.few_labels import half_width
from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import Table, best_of, mean_std, text

#: A metric, and the standard deviation that the evaluation itself reports (`top1_std`), if any.
Score = tuple[float, float | None]


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

    Arms that share two seeds or more are compared in pairs of one seed. With one seed each, the interval is over test
    images, which results do not store one by one, so that it is not paired.
    """
    arms = _arms(runs, names)
    if len(arms) != 2:
        return []
    said = []
    for (named, images, metric), cells in _collected([[run] for run in runs], _accuracies):
        of_seeds = [
            {runs[one].config.get("seed"): cells[one][-1] for one in members if cells[one]}
            for members in arms.values()
        ]
        if all(of_seeds):
            said.append(f"{named} on {images}: {_difference(list(arms), of_seeds, metric)}")
    return said


def _accuracies(result: Record) -> dict[str, tuple[float, int]]:
    """The top-1 accuracy and the robust ones by ε, each with the number of test images (0: unknown)."""
    facts = flatten(result)
    known = [facts.get("data_facts.test.images"), facts.get("options.images")]
    counts = [int(number) for number in known if is_number(number)]
    images = min(counts) if is_number(known[0]) else 0
    return {
        str(name): (float(value), images)
        for name, value in result["metrics"].items()
        if is_number(value) and (name == "top1" or str(name).startswith("robust@"))
    }


def _difference(
    names: Sequence[str],
    scores: Sequence[dict[Any, tuple[float, int]]],
    metric: str,
) -> str:
    """Say how an accuracy of the second arm differs, with its 95 % interval. scores: of both arms, by seed."""
    first, second = scores
    gains = [second[seed][0] - first[seed][0] for seed in first if seed in second]
    how = f"paired over {len(gains)} seeds"
    if len(gains) > 1:
        gain = statistics.fmean(gains)
        half = half_width(gains)
    elif max(len(first), len(second)) > 1:
        return "the arms share fewer than two seeds, so nothing is compared; train both with the same seeds"
    else:
        before, images = next(iter(first.values()))
        after, _ = next(iter(second.values()))
        gain = after - before
        if images < 1 or not 0 <= min(before, after) <= max(before, after) <= 100:
            return (
                f"the number of test images is unknown, so that a difference of {gain:+.1f} "
                "points shows nothing"
            )
        # Agresti and Caffo (2000): one more image that is right and one that is wrong on each side
        shares = [(one * images + 100) / (images + 2) for one in (before, after)]
        spread = sum(share * (100 - share) for share in shares)
        half = 1.96 * math.sqrt(spread / (images + 2))
        chance = "one seed each does not show the chance of training"
        how = f"over {images:,} test images, not paired; {chance}"
    found = f"is not shown to differ from {names[0]}"
    if abs(gain) > half:
        found = f"is {'better' if gain > 0 else 'worse'} than {names[0]}"
    points = f"{gain:+.1f} ± {half:.1f} points".replace("-", "−")
    what = "top-1 accuracy"
    if metric != "top1":
        what = f"accuracy under attack of ε = {metric.removeprefix('robust@')}"
    return f"{names[1]} {found}: {points} of {what} (95 % interval {how})"


def newest(run: Run) -> list[Record]:
    """The evaluations of a run without those that a later one of the same kind, data and seed replaces."""
    kept = {}
    for result in run.results:
        kind = [result.get(key) for key in ("protocol", "preset", "data", "seed", "deviations")]
        kept[json.dumps([*kind, _encoder(result)], sort_keys=True, default=str)] = result
    return list(kept.values())


def protocol(result: Record) -> str:
    """The protocol id, with the preset where it is not the only one."""
    named = text(result.get("protocol", "?"))
    preset = result.get("preset")
    is_told = preset in (None, "default") or str(preset) in named
    return named if is_told else f"{named} {text(preset)}"


def data(result: Record) -> str:
    """The scored data: the name of a known data set, else its source; empty if the result lacks both."""
    fields = flatten(result)
    known = fields.get("data_facts.test.known_as")
    return text(fields.get("data") or "" if known is None else known)


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
    """One row per (protocol, data, metric), one column per arm; the best mean of each row is marked.

    The network that was evaluated is named if a run has several: methods call theirs by different names (query,
    teacher …).
    """
    runs = [run for members in arms for run in members]
    several = any(len({_encoder(result) for result in run.results}) > 1 for run in runs)
    rows: list[tuple[str, ...]] = []
    best: set[tuple[int, int]] = set()
    for labels, cells in _collected(arms, _metrics, several):
        values = [[value for value, _ in cell] for cell in cells]
        best |= {(len(rows), len(labels) + arm) for arm in best_of(values)}
        rows.append((*labels, *map(_shown, cells)))
    return Table(("protocol", "data", "metric", *header) if rows else (), tuple(rows), 3, best)


def _collected(
    arms: Sequence[Sequence[Run]], found: Callable[[Record], dict[str, Any]], several: bool = False
) -> list[tuple[tuple[str, str, str], list[list[Any]]]]:
    """The evaluations of each arm, by protocol, data and what an evaluation has `found`.

    Data is the same if the test images are, however each run spelt the source. several: name the network too.
    """
    kept: dict[tuple[str, str, str], list[list[Any]]] = {}
    names: dict[str, str] = {}
    for number, members in enumerate(arms):
        for result in (result for run in members for result in newest(run)):
            images = text(flatten(result).get("data_facts.test.fingerprint", data(result)))
            named = protocol(result)
            if several:
                named += f" ({_encoder(result)})"
            names.setdefault(images, data(result))
            for what, cell in found(result).items():
                kept.setdefault((named, images, what), [[] for _ in arms])[number].append(cell)
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
