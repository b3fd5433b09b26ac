"""Reading a run folder for a report: whatever is there, and in plain words what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from hexa.config import UserError, reason
from hexa.runtime import parsing

Record = dict[str, Any]

#: Whatever a folder holds, so much of it is read and shown: bytes, and numbers of lines and other things.
_MOST_JOURNAL, _LONGEST_LINE, _MOST_LINES = 512 * 1024**2, 64 * 1024, 50_000
MOST_QUANTITIES, _MOST_WARNINGS, _MOST_RESULTS, _MOST_METRICS = 100, 100, 1000, 64

_PLACE = {"event", "step", "epoch", "seconds", "time"}
_STATES = {
    "start": "unfinished",
    "resume": "unfinished",
    "interrupted": "interrupted",
    "non-finite": "stopped",
    "end": "finished",
}


@dataclass(frozen=True)
class Run:
    """What the files of a run folder hold. Nothing in it is trusted: names and messages are text to be escaped.

    train, monitor and epochs: journal lines in the order of their steps, one a step (a resumed run repeats some).
    results: one evaluation each. adaptation: what `hexa adapt` found, start and result side by side. problems: what was
    missing or broken, for the reader of the report.
    """

    folder: Path
    config: Record = field(default_factory=dict)
    config_text: str = ""
    environment: Record = field(default_factory=dict)
    train: list[Record] = field(default_factory=list)
    monitor: list[Record] = field(default_factory=list)
    epochs: list[Record] = field(default_factory=list)
    warnings: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    results: list[Record] = field(default_factory=list)
    adaptation: Record = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.folder.resolve().name

    @property
    def state(self) -> str:
        """finished, interrupted, stopped, unfinished (going on, or killed); evaluated or unknown without a journal."""
        states = [_STATES[str(event["event"])] for event in self.events if str(event.get("event")) in _STATES]
        if states:
            return states[-1]
        if self.train or self.monitor:
            return "unfinished"
        return "evaluated" if self.results and not self.problems else "unknown"

    @property
    def quantities(self) -> list[str]:
        """The keys of the journal that ever hold a number, monitors first."""
        lines = self.monitor + self.train + self.epochs
        found = dict.fromkeys(key for line in lines for key in line if key not in _PLACE and is_number(line[key]))
        return list(found)

    @property
    def epoch(self) -> float | None:
        """How far the journal goes, in epochs."""
        epochs = [line["epoch"] for line in self.train + self.monitor if is_number(line.get("epoch"))]
        return max(epochs) if epochs else None

    @property
    def seconds(self) -> float | None:
        """How long it trained, by the journal's own clock."""
        seconds = [line["seconds"] for line in self.train + self.monitor if is_number(line.get("seconds"))]
        return max(seconds) if seconds else None

    @property
    def interruptions(self) -> int:
        """How often its training was stopped and gone on with: `seconds` is then a sum over several sessions."""
        last = max((line["step"] for line in self.train), default=0)
        steps = [entry.get("step", 1) for entry in self.resumptions]
        # one that went on from its beginning was not interrupted, one at its end trained nothing
        return sum(is_number(step) and 0 < step < last for step in steps)

    @property
    def resumptions(self) -> list[Record]:
        """The environments in which it was gone on with, each with the step that it went on from."""
        found = self.environment.get("resumed")
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def read_run(folder: Path | str) -> Run:
    """The run in `folder`. Missing and broken files become `problems`; raises UserError if there is no run at all.

    A file instead is what `hexa evaluate --out` wrote: a run of which only that result is known.
    """
    folder = Path(folder)
    if folder.is_file():
        results = _results(folder, [], within=None)
        if not results:
            raise UserError(f"{folder}: no result of 'hexa evaluate' in it; give run folders or such JSON files")
        return Run(folder, results=results)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder; give a folder that 'hexa pretrain' wrote, or a result's JSON")
    if not any((folder / name).is_file() for name in ("config.yaml", "metrics.jsonl", "results.json")):
        raise UserError(f"{folder}: not a run folder (no config.yaml, metrics.jsonl or results.json in it)")
    problems: list[str] = []
    config_text = _text(folder / "config.yaml", parsing.MOST_YAML, problems, folder)
    lines = _journal(folder / "metrics.jsonl", problems)
    run = Run(
        folder,
        config=_mapping("config.yaml", parsing.from_yaml, config_text, problems),
        config_text=config_text,
        environment=_mapping(
            "environment.json",
            parsing.from_json,
            _text(folder / "environment.json", parsing.MOST_YAML * 4, problems, folder),
            problems,
        ),
        train=_by_step(lines, "train"),
        monitor=_by_step(lines, "monitor"),
        epochs=_by_step(lines, "epoch"),
        warnings=_warnings(lines, problems),
        events=[line for line in lines if line.get("event") not in ("train", "monitor", "epoch", "warning")],
        results=_results(folder / "results.json", problems, folder),
        adaptation=_adaptation(folder / "adapt.json", problems, folder),
        problems=problems,
    )
    if len(run.quantities) > MOST_QUANTITIES:
        problems.append(f"metrics.jsonl: {len(run.quantities):,} quantities, of which the first are drawn")
    return run


def is_number(value: object) -> TypeGuard[float]:
    """A finite int or float that can be reckoned with; neither a bool, nor text, nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e100 < value < 1e100


def flatten(fields: Mapping[str, Any], prefix: str = "") -> Record:
    """Nested mappings as one with dotted paths; lists stay values, an empty mapping disappears."""
    flat: Record = {}
    for key, value in fields.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def _text(path: Path, most: int, problems: list[str], within: Path | None) -> str:
    try:
        return parsing.read_text(path, most, within)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror or error})")
    except UserError as error:
        problems.append(f"{path.name} cannot be read ({str(error).removeprefix(f'{path}: ')})")
    return ""


def _mapping(name: str, parse: Callable[[str], Any], text: str, problems: list[str]) -> Record:
    if not text:
        return {}
    try:
        value = parse(text)
    except UserError as error:
        problems.append(f"{name} cannot be parsed ({error})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{name} holds no fields")
        return {}
    return value


def _journal(path: Path, problems: list[str]) -> list[Record]:
    """The lines that parse, of very many losses some. The last line of a killed run is often cut short."""
    try:
        parsing.check(path, _MOST_JOURNAL, within=path.parent)
        with path.open("rb") as file:
            total = sum(1 for _ in _lines(file))
            file.seek(0)
            return list(_parsed(_lines(file), max(1, math.ceil(total / _MOST_LINES)), problems))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, UserError) as error:
        problems.append(f"{path.name} cannot be read ({reason(error)})")
    return []


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends, of those that are too long the beginning."""
    while line := file.readline(_LONGEST_LINE):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE)


def _parsed(lines: Iterable[bytes], every: int, problems: list[str]) -> Iterator[Record]:
    broken, others = [], 0
    for number, line in enumerate(lines, start=1):
        of_training = b'"event": "train"' in line
        if not line.strip() or (of_training and number % every):
            continue
        others += not of_training
        if others > _MOST_LINES:
            continue
        try:
            record = parsing.from_json(line.decode())
        except ValueError:
            record = None
        if isinstance(record, dict):
            yield record
        else:
            broken.append(number)
    if every > 1:
        problems.append(f"metrics.jsonl is long: of its lines of training one in {every} is shown")
    if others > _MOST_LINES:
        problems.append(f"metrics.jsonl: {others - _MOST_LINES:,} lines left out, which are not of training")
    if broken:
        shown = ", ".join(map(str, broken[:5])) + (" …" if len(broken) > 5 else "")
        problems.append(f"metrics.jsonl: {len(broken)} broken line{'s' * (len(broken) > 1)} left out ({shown})")


def _by_step(lines: list[Record], event: str) -> list[Record]:
    """One record a step, ordered; the last one counts, since resuming repeats the steps after its checkpoint."""
    kept = {line["step"]: line for line in lines if line.get("event") == event and is_number(line.get("step"))}
    return [kept[step] for step in sorted(kept)]


def _warnings(lines: list[Record], problems: list[str]) -> list[Record]:
    """Each message once, with its first step and how often it was raised; a loss that is no number is one too."""
    found: dict[str, Record] = {}
    for line in lines:
        if line.get("event") in ("warning", "non-finite"):
            message = str(line.get("message", ""))
            entry = found.setdefault(message, {"message": message, "step": line.get("step"), "count": 0})
            entry["count"] += 1
    if len(found) > _MOST_WARNINGS:
        problems.append(f"{len(found):,} warnings, of which the first {_MOST_WARNINGS} are shown")
    return list(found.values())[:_MOST_WARNINGS]


def _results(path: Path, problems: list[str], within: Path | None) -> list[Record]:
    """The evaluations: a list of them, or one alone. Absent is no problem: not every run is evaluated."""
    if not path.exists():
        return []
    text = _text(path, parsing.MOST_JSON, problems, within)
    try:
        value = parsing.from_json(text) if text else []
    except UserError as error:
        problems.append(f"{path.name} cannot be parsed ({error})")
        return []
    entries = value if isinstance(value, list) else [value]
    results = [e for e in entries if isinstance(e, dict) and isinstance(e.get("metrics"), dict)]
    if len(results) < len(entries):
        problems.append(f"{path.name}: {len(entries) - len(results)} entries without metrics left out")
    if len(results) > _MOST_RESULTS:
        problems.append(f"{path.name}: {len(results):,} results, of which the last {_MOST_RESULTS} are shown")
    kept = results[-_MOST_RESULTS:]
    return [{**e, "metrics": dict(list(e["metrics"].items())[:_MOST_METRICS])} for e in kept]


def _adaptation(path: Path, problems: list[str], within: Path | None) -> Record:
    """Verdict, plan and table of an adaptation that has come to its end; empty if there is none."""
    if not path.is_file():
        return {}
    found = _mapping(path.name, parsing.from_json, _text(path, parsing.MOST_JSON, problems, within), problems)
    table = found.get("table")
    if not isinstance(found.get("verdict"), str) or not isinstance(table, dict):
        return {}
    rows = [table.get("header"), *(table.get("rows") or [])][:_MOST_METRICS]
    if not all(isinstance(row, list) and len(row) == 4 for row in rows):
        problems.append(f"{path.name}: not the table of an adaptation")
        return {}
    header, *body = [tuple(map(str, row)) for row in rows]
    lines = [str(line) for name in ("plan", "notes") for line in found.get(name) or []][:_MOST_METRICS]
    return {
        "verdict": found["verdict"],
        "helped": found.get("kept") == "result",
        "header": header,
        "rows": body,
        "lines": lines,
    }
