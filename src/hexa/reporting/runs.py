"""Reading a run folder for a report: whatever is there, and in plain words what is not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from hexa.config import UserError

Record = dict[str, Any]

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
    results: one evaluation each. problems: what was missing or broken, for the reader of the report.
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
        results = _results(folder, [])
        if not results:
            raise UserError(f"{folder}: no result of 'hexa evaluate' in it; give run folders or such JSON files")
        return Run(folder, results=results)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder; give a folder that 'hexa pretrain' wrote, or a result's JSON")
    if not any((folder / name).is_file() for name in ("config.yaml", "metrics.jsonl", "results.json")):
        raise UserError(f"{folder}: not a run folder (no config.yaml, metrics.jsonl or results.json in it)")
    problems: list[str] = []
    config_text = _text(folder / "config.yaml", problems)
    lines = list(_journal(_text(folder / "metrics.jsonl", problems), problems))
    return Run(
        folder,
        config=_mapping(folder / "config.yaml", _parse_yaml, config_text, problems),
        config_text=config_text,
        environment=_mapping(folder / "environment.json", _parse_json, None, problems),
        train=_by_step(lines, "train"),
        monitor=_by_step(lines, "monitor"),
        epochs=_by_step(lines, "epoch"),
        warnings=_warnings(lines),
        events=[line for line in lines if line.get("event") not in ("train", "monitor", "epoch", "warning")],
        results=_results(folder / "results.json", problems),
        problems=problems,
    )


def is_number(value: object) -> TypeGuard[float]:
    """A finite int or float; neither a bool, nor text, nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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


def _text(path: Path, problems: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror or error})")
    return ""


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _parse_json(text: str) -> Any:
    return json.loads(text)


def _mapping(path: Path, parse: Any, text: str | None, problems: list[str]) -> Record:
    text = _text(path, problems) if text is None else text
    if not text:
        return {}
    try:
        value = parse(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be parsed ({error})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds no fields")
        return {}
    return {str(key): inner for key, inner in value.items()}


def _journal(text: str, problems: list[str]) -> Iterator[Record]:
    """The lines that parse. The last line of a killed run is often cut short, so a few bad ones are no surprise."""
    broken = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield record
        else:
            broken.append(number)
    if broken:
        shown = ", ".join(map(str, broken[:5])) + (" …" if len(broken) > 5 else "")
        problems.append(f"metrics.jsonl: {len(broken)} broken line{'s' * (len(broken) > 1)} left out ({shown})")


def _by_step(lines: list[Record], event: str) -> list[Record]:
    """One record a step, ordered; the last one counts, since resuming repeats the steps after its checkpoint."""
    kept = {line["step"]: line for line in lines if line.get("event") == event and is_number(line.get("step"))}
    return [kept[step] for step in sorted(kept)]


def _warnings(lines: list[Record]) -> list[Record]:
    """Each message once, with its first step and how often it was raised; a loss that is no number is one too."""
    found: dict[str, Record] = {}
    for line in lines:
        if line.get("event") in ("warning", "non-finite"):
            message = str(line.get("message", ""))
            entry = found.setdefault(message, {"message": message, "step": line.get("step"), "count": 0})
            entry["count"] += 1
    return list(found.values())


def _results(path: Path, problems: list[str]) -> list[Record]:
    """The evaluations: a list of them, or one alone. Absent is no problem: not every run is evaluated."""
    if not path.exists():
        return []
    text = _text(path, problems)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text:
            problems.append(f"{path.name} cannot be parsed ({error})")
        return []
    entries = value if isinstance(value, list) else [value]
    results = [e for e in entries if isinstance(e, dict) and isinstance(e.get("metrics"), dict)]
    if len(results) < len(entries):
        problems.append(f"{path.name}: {len(entries) - len(results)} entries without metrics left out")
    return results
