"""Reading a run folder for a report: whatever is there, and in plain words what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pydantic

from hexa.config import UserError, is_number, reason, some
from hexa.reporting.tables import Table, counted
from hexa.runtime import parsing

Record = dict[str, Any]
_Cells = tuple[str, str, str, str]

#: Bytes of a journal, at most: some hundred thousand lines.
_MOST_JOURNAL = 64 * 1024**2
#: Quantities of a run that are shown, at most.
MOST_QUANTITIES = 100
#: Warnings that are shown, at most.
_MOST_WARNINGS = 100
#: Results that are shown, at most.
_MOST_RESULTS = 1000
#: Metrics of a result that are shown, at most.
_MOST_METRICS = 64

#: Files of which a run folder has at least one.
_FILES = ("config.yaml", "metrics.jsonl", "results.json")
#: Events that `Run.events` leaves out.
_OTHERS = ("train", "monitor", "epoch", "warning")
_PLACE = {"event", "step", "epoch", "seconds", "time"}
_STATES = {"interrupted": "interrupted", "non-finite": "stopped", "end": "finished"}
_STATES |= dict.fromkeys(("start", "resume"), "unfinished")


class Winner(pydantic.BaseModel):
    """The better of both sides of an adaptation."""

    load: str
    """A line of Python that loads it."""
    size: int
    """The side of its images in pixels."""


class Sides(pydantic.BaseModel):
    """The table of an adaptation: a row for each measure."""

    header: _Cells
    rows: list[_Cells]

    @property
    def table(self) -> Table:
        """The same as a table for a page."""
        return Table(self.header, self.rows)


class Adaptation(pydantic.BaseModel):
    """The part of the record of a finished adaptation that a report shows."""

    verdict: str
    kept: str
    """start or result."""
    table: Sides
    plan: list[str] = []
    notes: list[str] = []
    winner: Winner


@dataclass(frozen=True)
class Run:
    """The content of a run folder. Nothing in it is trusted: names and messages are text to be escaped."""

    folder: Path
    """The run folder, or the file of an evaluation alone."""
    config: Record = field(default_factory=dict)
    """The fields of config.yaml; empty if they cannot be read, as all that follows."""
    config_text: str = ""
    """config.yaml as it stands."""
    environment: Record = field(default_factory=dict)
    """The fields of environment.json."""
    train: list[Record] = field(default_factory=list)
    """Journal lines of training in the order of their steps, one a step (a resumed run repeats some)."""
    monitor: list[Record] = field(default_factory=list)
    """Journal lines of the monitor, in the same order."""
    epochs: list[Record] = field(default_factory=list)
    """Journal lines of what the method did between epochs, in the same order."""
    warnings: list[Record] = field(default_factory=list)
    """Each message once, with its first step and its count."""
    events: list[Record] = field(default_factory=list)
    """The other journal lines, such as start, checkpoint and end."""
    results: list[Record] = field(default_factory=list)
    """One evaluation each."""
    adaptation: Adaptation | None = None
    """The measurements of `hexa adapt`, initial weights and result side by side."""
    problems: list[str] = field(default_factory=list)
    """Missing or broken files, for the reader of the report."""

    @property
    def state(self) -> str:
        """finished, interrupted, stopped, unfinished (training or killed); evaluated or unknown without a journal."""
        names = [str(event.get("event")) for event in self.events]
        states = [_STATES[name] for name in names if name in _STATES]
        if states:
            return states[-1]
        if self.train or self.monitor:
            return "unfinished"
        return "evaluated" if self.results and not self.problems else "unknown"

    @property
    def quantities(self) -> list[str]:
        """The keys of the journal that ever hold a number, monitors first."""
        lines = self.monitor + self.train + self.epochs
        held = (key for line in lines for key in line if is_number(line[key]))
        return [key for key in dict.fromkeys(held) if key not in _PLACE]

    @property
    def epoch(self) -> float | None:
        """The last epoch of the journal."""
        return self._furthest("epoch")

    @property
    def seconds(self) -> float | None:
        """Seconds of training, by the journal's own clock."""
        return self._furthest("seconds")

    def _furthest(self, key: str) -> float | None:
        reached = [line[key] for line in self.train + self.monitor if is_number(line.get(key))]
        return max(reached, default=None)

    def last(self, key: str) -> float | None:
        """Return the last number of a quantity in the journal."""
        lines = [*self.monitor, *self.train]
        return next((line[key] for line in reversed(lines) if is_number(line.get(key))), None)

    @property
    def resumptions(self) -> list[Record]:
        """The environments in which it was resumed, each with the step that it was resumed from."""
        entries = self.environment.get("resumed")
        return (
            [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
        )

    @property
    def view_sets(self) -> int | None:
        """The number of passes with views of their own, which later ones repeat; None if all have."""
        start = self.config.get("start")
        planned = start.get("view_sets") if isinstance(start, dict) else None
        made = [event["view_sets"] for event in self.events if "view_sets" in event]
        sets = made[-1] if made else planned
        return round(sets) if is_number(sets) else None


def read_run(folder: Path | str) -> Run:
    """The run in `folder`. Missing and broken files become `problems`; raises UserError for anything that is not a run.

    A file instead is what `hexa evaluate --out` wrote: a run of which only that result is known.
    """
    folder = Path(folder)
    if folder.is_file():
        results = _Reader(folder.parent, within=None).results(folder.name)
        if results:
            return Run(folder, results=results)
        raise UserError(
            f"{folder}: no result of 'hexa evaluate' in it; give run folders or such JSON files"
        )
    if not any((folder / name).is_file() for name in _FILES):
        problem = "not a run folder" if folder.is_dir() else "no such run folder"
        raise UserError(
            f"{folder}: {problem}; give a folder that 'hexa pretrain' wrote, or a result's JSON"
        )
    read = _Reader(folder, within=folder)
    config_text = read.text("config.yaml", parsing.MOST_YAML)
    lines = read.journal()
    return Run(
        folder,
        config=read.mapping("config.yaml", config_text, parsing.from_yaml),
        config_text=config_text,
        environment=read.mapping("environment.json", read.text("environment.json", 2**20)),
        train=_by_step(lines, "train"),
        monitor=_by_step(lines, "monitor"),
        epochs=_by_step(lines, "epoch"),
        warnings=_warnings(lines),
        events=[line for line in lines if line.get("event") not in _OTHERS],
        results=read.results("results.json"),
        adaptation=read.adaptation(),
        problems=read.problems,
    )


def flatten(fields: Mapping[str, Any], prefix: str = "") -> Record:
    """Nested mappings as one with dotted paths; lists stay values, an empty mapping disappears."""
    flat: Record = {}
    for key, value in fields.items():
        path = f"{prefix}{key}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


@dataclass(frozen=True)
class _Reader:
    """Reads the files of one folder; what is missing or broken in them goes to `problems`."""

    folder: Path
    """The folder of the files."""
    within: Path | None
    """The folder that files must lie in, wherever links lead; None for anywhere."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each file that is missing or broken."""

    @contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Note a file that is missing or cannot be read."""
        try:
            yield
        except FileNotFoundError:
            self.problems.append(f"{name} is missing")
        except (OSError, ValueError) as error:
            said = reason(error).removeprefix(f"{self.folder / name}: ")
            self.problems.append(f"{name} cannot be read ({getattr(error, 'strerror', said)})")

    def text(self, name: str, most: int = parsing.MOST_JSON) -> str:
        """At most `most` bytes; empty text for a file that cannot be read."""
        with self.telling(name):
            return parsing.read_text(self.folder / name, most, self.within)
        return ""

    def parsed(self, name: str, text: str, parse: Callable[[str], Any] = parsing.from_json) -> Any:
        """None for text that is empty or cannot be parsed."""
        with self.telling(name):
            return parse(text) if text else None

    def mapping(
        self, name: str, text: str, parse: Callable[[str], Any] = parsing.from_json
    ) -> Record:
        value = self.parsed(name, text, parse)
        if isinstance(value, dict):
            return value
        if value is not None:
            self.problems.append(f"{name} holds no fields")
        return {}

    def journal(self) -> list[Record]:
        """The lines that parse. The last line of a killed run is often cut short."""
        name = "metrics.jsonl"
        lines: list[Record | None] = []
        with self.telling(name):
            read = parsing.read_lines(self.folder / name, _MOST_JOURNAL, self.within)
            lines += [fields for _, fields in read]
        broken = [number for number, fields in enumerate(lines, start=1) if fields is None]
        if broken:
            lost = counted(len(broken), "broken line")
            self.problems.append(f"{name}: {lost} left out ({some(broken)})")
        return [fields for fields in lines if fields is not None]

    def results(self, name: str) -> list[Record]:
        """The evaluations: a list of them, or one alone. A missing file is fine: not every run is evaluated."""
        value = self.parsed(name, self.text(name)) if (self.folder / name).exists() else []
        entries = value if isinstance(value, list) else [value]
        kept = []
        for entry in entries[-_MOST_RESULTS:]:
            metrics = entry.get("metrics") if isinstance(entry, dict) else None
            if isinstance(metrics, dict):
                kept.append({**entry, "metrics": dict(islice(metrics.items(), _MOST_METRICS))})
        left = len(entries) - len(kept)
        if left and value is not None:
            self.problems.append(f"{name}: {left} of {len(entries):,} entries left out")
        return kept

    def adaptation(self) -> Adaptation | None:
        """Return the record of a finished adaptation; None without one."""
        name = "adapt.json"
        record = self.mapping(name, self.text(name)) if (self.folder / name).is_file() else {}
        if "table" not in record:
            return None
        with self.telling(name):
            return Adaptation.model_validate(record)
        return None


def _by_step(lines: list[Record], event: str) -> list[Record]:
    """One record a step, ordered; the last one counts, since resuming repeats the steps after its checkpoint."""
    kept = {
        line["step"]: line
        for line in lines
        if line.get("event") == event and is_number(line.get("step"))
    }
    return [kept[step] for step in sorted(kept)]


def _warnings(lines: list[Record]) -> list[Record]:
    """Each message once, with its first step and how often it was raised; a loss that is NaN or infinite is one too."""
    messages: dict[str, Record] = {}
    for line in lines:
        if line.get("event") in ("warning", "non-finite"):
            message = str(line.get("message", ""))
            new = {"message": message, "step": line.get("step"), "count": 0}
            messages.setdefault(message, new)["count"] += 1
    return list(messages.values())[:_MOST_WARNINGS]
