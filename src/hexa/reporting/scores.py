"""Evaluations of runs as tables: every one with its protocol, runs side by side, and means over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hexa.evaluation.few_labels import half_width
from hexa.reporting.runs import Record, Run, flatten, is_number
from hexa.reporting.tables import NOTHING, Table, best_of, format_duration, mean_std, text

_MOST_COLUMNS = 64

#: A metric, and the standard deviation that the evaluation itself tells (`top1_std`), if any.
Score = tuple[float, float | None]
#: A seed, and a score for each draw of labels.
Draws = tuple[Any, list[float]]


def evaluations(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """One run: one row per evaluation with all it tells. Several: one row per metric, one column per run."""
    return (
        _listed(runs[0]) if len(runs) == 1 else _side_by_side([[run] for run in runs], tuple(names))
    )


def over_seeds(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """Mean ± std over runs that differ by their seed alone, one column per arm; empty if no experiment was repeated."""
    arms = _arms(runs, names)
    if len(arms) == len(runs):
        return Table()
    members = [[runs[number] for number in numbers] for numbers in arms.values()]
    return _side_by_side(members, tuple(arms))


def _arms(runs: Sequence[Run], names: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of the runs that differ by their seed alone, by a name for them."""
    arms: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        fields = {path: value for path, value in run.config.items() if path != "seed"}
        key = json.dumps(fields, sort_keys=True, default=str) if run.config else f"run {number}"
        arms.setdefault(key, []).append(number)
    return {
        names[m[0]] + (f" and {len(m) - 1} more" if len(m) > 1 else ""): m for m in arms.values()
    }


def verdicts(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """A sentence on each difference in top-1 and robust accuracy of two arms; none for other numbers of arms.

    Arms that share two seeds or more are compared in pairs of one seed. Otherwise the interval is over test images,
    which results do not store one by one, so that it is not paired.
    """
    arms = _arms(runs, names)
    if len(arms) != 2:
        return []
    said = []
    for (named, images, metric), cells in _collected([[run] for run in runs], _accuracies):
        scores = [
            {runs[number].config.get("seed"): cells[number][-1] for number in arm if cells[number]}
            for arm in arms.values()
        ]
        if all(scores):
            said.append(f"{named} on {images}: {_difference(list(arms), scores, metric)}")
    return said


def _accuracies(result: Record) -> dict[str, tuple[float, Any]]:
    """The top-1 accuracy and the robust ones by ε, each with the number of test images."""
    facts = flatten(result)
    images = facts.get("data_facts.test.images")
    drawn = facts.get("options.images")
    attacked = min(images, drawn) if is_number(images) and is_number(drawn) else images
    return {
        name: (float(value), images if name == "top1" else attacked)
        for name, value in result["metrics"].items()
        if is_number(value) and (name == "top1" or name.startswith("robust@"))
    }


def _difference(
    names: Sequence[str], scores: Sequence[dict[Any, tuple[float, Any]]], metric: str
) -> str:
    """Say how an accuracy of the second arm differs, with its 95 % interval. scores: of both arms, by seed."""
    first, second = scores
    seeds = [seed for seed in first if seed in second]
    if len(seeds) > 1:
        gains = [second[seed][0] - first[seed][0] for seed in seeds]
        gain = statistics.fmean(gains)
        half = half_width(gains)
        how = f"paired over {len(seeds)} seeds"
    else:
        (before, images), (after, _) = next(iter(first.values())), next(iter(second.values()))
        gain = after - before
        if (
            not is_number(images)
            or images < 1
            or not 0 <= min(before, after) <= max(before, after) <= 100
        ):
            return f"the number of test images is unknown, so that a difference of {gain:+.1f} points shows nothing"
        spread = before * (100 - before) + after * (100 - after)
        half = 1.96 * math.sqrt(spread / images)
        how = f"over {images:,} test images, not paired; one seed each does not show the chance of training"
    better = "better" if gain > half else "worse" if gain < -half else "not shown to differ"
    points = f"{gain:+.1f} ± {half:.1f} points".replace("-", "−")
    compared = f"than {names[0]}" if abs(gain) > half else f"from {names[0]}"
    what = "top-1 accuracy" if metric == "top1" else f"accuracy under attack of ε = {metric[7:]}"
    return f"{names[1]} is {better} {compared}: {points} of {what} (95 % interval {how})"


def few_labels(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """A row for each number of labels per class: the mean over draws with its 95 % interval, one column per run.

    Further columns hold each run's difference to the first one, paired by draw, where both drew the same images.
    """
    rows = []
    for labels, cells in _collected([[run] for run in runs], _draws):
        first, *others = [cell[-1] if cell else None for cell in cells]
        means = [NOTHING if cell is None else _with_interval(cell[1]) for cell in (first, *others)]
        rows.append((*labels, *means, *(_paired(first, cell) for cell in others)))
    header = (
        "protocol",
        "data",
        "labels per class",
        *names,
        *(f"{name} − {names[0]}" for name in names[1:]),
    )
    return Table(header if rows else (), tuple(rows), 3)


def _draws(result: Record) -> dict[str, Draws]:
    """The seed and the scores of two or more draws by the number of labels, of an evaluation with few of them."""
    details = result.get("details")
    each = details.items() if isinstance(details, dict) else ()
    drawn = {str(labels): one.get("draws") for labels, one in each if isinstance(one, dict)}
    return {
        labels: (result.get("seed"), draws)
        for labels, draws in drawn.items()
        if isinstance(draws, list) and len(draws) > 1 and all(map(is_number, draws))
    }


def _with_interval(scores: Sequence[float], sign: str = "") -> str:
    return f"{statistics.fmean(scores):{sign}.1f} ± {half_width(scores):.1f}".replace("-", "−")


def _paired(first: Draws | None, other: Draws | None) -> str:
    if first is None or other is None or first[0] != other[0] or len(first[1]) != len(other[1]):
        return NOTHING
    return _with_interval([b - a for a, b in zip(first[1], other[1], strict=True)], "+")


def newest(run: Run) -> list[Record]:
    """The evaluations of a run without those that a later one of the same kind, data and seed replaces."""
    kept = {}
    for result in run.results:
        kind = [result.get(key) for key in ("protocol", "preset", "data", "seed", "deviations")]
        kept[json.dumps([*kind, _encoder(result)], sort_keys=True, default=str)] = result
    return list(kept.values())


def flat(run: Run) -> dict[str, float]:
    """Every metric of the newest evaluations, as `results/PROTOCOL/DATA/METRIC`."""
    return {
        "/".join(["results", protocol(result), data(result), str(metric)]): value
        for result in newest(run)
        for metric, value in result["metrics"].items()
        if is_number(value)
    }


def protocol(result: Record) -> str:
    """The protocol id, with the preset where it is not the only one."""
    preset = result.get("preset")
    named = (
        preset is not None
        and preset != "default"
        and str(preset) not in str(result.get("protocol"))
    )
    return text(result.get("protocol", "?")) + (f" {text(preset)}" if named else "")


def data(result: Record) -> str:
    """What was scored: the name by which a data set is known, else its source; empty if the result doesn't tell."""
    fields = flatten(result)
    known = fields.get("data_facts.test.known_as")
    return text(fields.get("data") or "" if known is None else known)


def _images(result: Record) -> str:
    """What tells the scored images from others: their fingerprint, where there is one."""
    return text(flatten(result).get("data_facts.test.fingerprint", data(result)))


def _encoder(result: Record) -> str:
    """Which network was evaluated, and which of its batch-norms."""
    facts = result.get("backbone_facts")
    facts = facts if isinstance(facts, dict) else result
    return " · ".join(
        text(facts[key]) for key in ("encoder", "branch") if facts.get(key) is not None
    )


def _listed(run: Run) -> Table:
    """A row an evaluation. What was evaluated and how, on the left; metrics, seed and time, on the right."""
    results = newest(run)
    labels: dict[str, Callable[[Record], str]] = {
        "protocol": protocol,
        "data": data,
        "encoder": _encoder,
        "deviations": _deviations,
        "notes": lambda result: text(result.get("notes") or ""),
    }
    metrics = list(dict.fromkeys(str(name) for result in results for name in result["metrics"]))[
        :_MOST_COLUMNS
    ]
    metrics = [
        name
        for name in metrics
        if not any(_is_spread(name, result["metrics"]) for result in results)
    ]
    numbers = {name: partial(_metric, name) for name in metrics} | {
        "seed": lambda result: "" if result.get("seed") is None else text(result["seed"]),
        "time": lambda result: (
            format_duration(result["seconds"]) if is_number(result.get("seconds")) else ""
        ),
    }
    columns = {
        name: [show(result) for result in results] for name, show in (labels | numbers).items()
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return Table(
        tuple(shown),
        tuple(zip(*shown.values(), strict=True)),
        sum(name in labels for name in shown),
    )


def _side_by_side(arms: Sequence[Sequence[Run]], header: tuple[str, ...]) -> Table:
    """One row per (protocol, data, metric), one column per arm; the best mean of each row is marked.

    The network that was evaluated is named where a run has several: methods call theirs by different names (query,
    teacher …).
    """
    several = any(
        len({_encoder(result) for result in run.results}) > 1 for members in arms for run in members
    )
    rows = list[tuple[str, ...]]()
    best = set[tuple[int, int]]()
    for labels, cells in _collected(arms, _metrics, several):
        best |= {
            (len(rows), 3 + arm)
            for arm in best_of([[value for value, _ in cell] for cell in cells])
        }
        rows.append((*labels, *map(_shown, cells)))
    return Table(("protocol", "data", "metric", *header) if rows else (), tuple(rows), 3, best)


def _collected(
    arms: Sequence[Sequence[Run]], found: Callable[[Record], dict[str, Any]], several: bool = False
) -> list[tuple[tuple[str, str, str], list[list[Any]]]]:
    """By protocol, data and what an evaluation has `found`: that of all evaluations of each arm.

    Data is the same where its test images are, however each run spelt the source. several: name the network too.
    """
    kept: dict[tuple[str, str, str], list[list[Any]]] = {}
    names: dict[str, str] = {}
    for number, members in enumerate(arms):
        for result in (result for run in members for result in newest(run)):
            images = _images(result)
            named = protocol(result)
            if several:
                named += f" ({_encoder(result)})"
            names.setdefault(images, data(result))
            for what, cell in found(result).items():
                kept.setdefault((named, images, what), [[] for _ in arms])[number].append(cell)
    return [((named, names[images], what), cells) for (named, images, what), cells in kept.items()]


def _metrics(result: Record) -> dict[str, Score]:
    """The metrics with their spreads."""
    metrics = result["metrics"]
    shown = {str(name): value for name, value in metrics.items() if is_number(value)}
    return {
        n: (float(v), _spread(metrics, n)) for n, v in shown.items() if not _is_spread(n, metrics)
    }


def _spread(metrics: Record, name: str) -> float | None:
    spread = metrics.get(f"{name}_std")
    return float(spread) if is_number(spread) else None


def _is_spread(name: str, metrics: Record) -> bool:
    """Whether this is the standard deviation of another metric, beside which it is shown, or half its interval."""
    own, _, kind = name.rpartition("_")
    return kind in ("std", "interval") and is_number(metrics.get(own))


def _shown(scores: Sequence[Score]) -> str:
    if len(scores) == 1 and scores[0][1] is not None:
        return f"{scores[0][0]:.1f} ± {scores[0][1]:.1f}"
    return mean_std([value for value, _ in scores])


def _metric(name: str, result: Record) -> str:
    value = result["metrics"].get(name)
    spread = _spread(result["metrics"], name)
    if not is_number(value):
        return text(value)
    return f"{value:.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def _deviations(result: Record) -> str:
    """{option: [published, used]} as `option published → used`."""
    pairs = result.get("deviations")
    pairs = pairs.items() if isinstance(pairs, dict) else ()
    ends = ((option, pair if isinstance(pair, list) else [pair]) for option, pair in pairs)
    return ", ".join(f"{option} {' → '.join(map(text, pair))}" for option, pair in ends)
