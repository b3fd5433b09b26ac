"""Evaluations of runs as tables: every one with its protocol, runs side by side, and means over seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hexa.config import is_number
from hexa.reporting.runs import Record, Run, flatten
from hexa.reporting.tables import Table, best_of, mean_std, text

#: A metric, and the standard deviation that the evaluation itself reports (`top1_std`), if any.
Score = tuple[float, float | None]


class Cell(NamedTuple):
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
    arms = arms_of(runs, names)
    if len(arms) == len(runs):
        return Table()
    members = [[runs[number] for number in numbers] for numbers in arms.values()]
    return _side_by_side(members, tuple(arms))


def arms_of(
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
    for labels, cells in collected(arms, _metrics):
        values = [[cell.found[0] for cell in arm] for arm in cells]
        if len({frozenset(cell.drawn for cell in arm) for arm in cells if arm}) == 1:
            best |= {(len(rows), len(labels) + arm) for arm in best_of(values)}
        rows.append((*labels, *(_shown([cell.found for cell in arm]) for arm in cells)))
    return Table(("protocol", "data", "metric", *header) if rows else (), tuple(rows), 3, best)


def collected(
    arms: Sequence[Sequence[Run]], found: Callable[[Record], dict[str, Any]]
) -> list[tuple[tuple[str, str, str], list[list[Cell]]]]:
    """The evaluations of each arm, by protocol with precision, data and what an evaluation has `found`.

    Data are the same if training and test images are, however each run spelt the source, or if `--holdout` and
    `--images` drew parts of the same images by different seeds. Other data of the same name have their fingerprints.
    The network that was evaluated is named if a run has several: methods call theirs by different names (query,
    teacher …).
    """
    runs = [(number, run) for number, members in enumerate(arms) for run in members]
    several = any(len({_encoder(result) for result in run.results}) > 1 for _, run in runs)
    kept: dict[tuple[str, tuple[str, ...], str], list[list[Cell]]] = {}
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
                row[number].append(Cell(seed, drawn, score))
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
