"""The record of a run: metrics.jsonl, which trackers mirror, and environment.json."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch

from hexa.config import reason
from hexa.runtime import packages, parsing, processes, rendezvous
from hexa.runtime.files import write_text, write_whole
from hexa.runtime.progress import Reporter
from hexa.training.trackers import State, Tracker, numbers

METRICS = "metrics.jsonl"
ENVIRONMENT = "environment.json"
TENSORBOARD = "tensorboard"
#: Events that are numbers over time: of a step, of a monitor, of what a method does between epochs.
METRIC_EVENTS = ("train", "monitor", "epoch")
_STATES: dict[str, State] = {"end": "finished", "interrupted": "interrupted"}
_PACKAGES = (
    "hexa",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "pillow",
    "scikit-learn",
    "safetensors",
)


class Journal:
    """Appends events to metrics.jsonl, one JSON object a line, mirrors their numbers to trackers, and shows warnings.

    A journal without folder writes nothing: that of every process but the main one. `open` is called when the step is
    known that the run starts at, or continues from. Trackers also hear how the session ended. Raises OSError for a line
    that can't be written.
    """

    def __init__(self, folder: Path | None = None, reporter: Reporter | None = None) -> None:
        self.folder = folder
        self.reporter = reporter or Reporter()
        self.there: list[dict[str, Any]] = []
        self._trackers: list[Tracker] = []
        self._failures: set[str] = set()
        self._state: State = "failed"

    def open(self, step: int = 0, trackers: Sequence[Tracker] = ()) -> Self:
        """Continue after `step`: later lines, and a last line that was cut short, are dropped, so that no step appears
        twice; those of the step itself are `there`.
        """
        self._trackers = list(trackers)
        if self.folder is not None:
            self.there = [
                line for line in truncate(self.folder / METRICS, step) if line["step"] == step
            ]
            # unbuffered: a line that the disk refuses must not be tried again when the file is closed
            self._file = (self.folder / METRICS).open("ab", buffering=0)
        return self

    def write(self, event: str, step: int, **values: object) -> None:
        """Append one event. Numbers that JSON can't hold become null. `time` is added to events without metrics."""
        if self.folder is None:
            return
        line: dict[str, object] = {"event": event, "step": step, **values}
        if event not in METRIC_EVENTS:
            line["time"] = now()
        self._append(json.dumps({key: _plain(value) for key, value in line.items()}) + "\n")
        self._state = _STATES.get(event, self._state)
        if event in METRIC_EVENTS:
            prefix = "monitor/" if event == "monitor" else ""
            named = numbers({f"{prefix}{name}": value for name, value in values.items()})
            self._tell(lambda tracker: tracker.log(named, step), step)

    def warn(self, step: int, messages: Iterable[str]) -> None:
        """Write warnings down and show them."""
        for message in messages:
            self.write("warning", step, message=message)
            self.reporter.say(f"warning: {message}")

    @contextmanager
    def looking(self, what: str, step: int) -> Iterator[None]:
        """Around what only observes a training (monitor, report): a failure is a warning, once for each reason."""
        try:
            yield
        except Exception as error:
            why = f"{type(error).__name__}: {reason(error)}"
            message = f"{what} failed ({why}); the run is not affected"
            if message not in self._failures:
                self._failures.add(message)
                self.warn(step, [message])

    def _append(self, line: str) -> None:
        assert self.folder is not None
        try:
            rest = line.encode()
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder / METRICS)) from error

    def _tell(self, act: Callable[[Tracker], None], step: int) -> None:
        """Call every tracker; one that fails is dropped with a warning, since it must not end a training."""
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = f"{type(error).__name__}: {reason(error, 300)}"
                message = f"{type(tracker).__name__} failed ({why}); the run goes on without it"
                self.warn(step, [message])

    def close(self, step: int = 0) -> None:
        """Tell the trackers, whose failures are warnings of `step`, and close the file."""
        try:
            self._tell(lambda tracker: tracker.finish(self._state), step)
        finally:
            if self.folder is not None:
                self._file.close()


def truncate(path: Path, step: int) -> list[dict[str, Any]]:
    """Atomically drop the lines of a journal that lie after `step` or are damaged; return the others.

    What a method did before the first step of an epoch is dropped at `step` too: a run that continues does it again.
    """
    if not path.exists():
        return []
    kept = []
    for line, fields in parsing.read_lines(path, sys.maxsize):
        if fields is None or not isinstance(fields.get("step"), int) or not line.endswith(b"\n"):
            continue
        last = step - 1 if fields.get("event") == "epoch" else step
        if fields["step"] <= last:
            kept.append((line, fields))
    write_whole(path, lambda file: file.writelines(line for line, _ in kept))
    return [fields for _, fields in kept]


def write_environment(
    folder: Path,
    device: torch.device,
    precision: str,
    resumed: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """environment.json: what a result depends on besides the configuration.

    resumed: the step after which a later session continues; it is added to the file's list `resumed`. data: facts about
    the images.
    """
    path = folder / ENVIRONMENT
    content = {**environment(device, precision), "data": data}
    if resumed is not None and path.is_file():
        content["step"] = resumed
        with suppress(ValueError, AttributeError, TypeError):  # a broken file is replaced
            first = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
            sessions = [*first.get("resumed", []), content]
            content = {**first, "launcher": content["launcher"], "resumed": sessions}
    write_text(path, json.dumps(content, indent=2) + "\n")


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Versions, device, commit, threads and precision of this process."""
    on_gpu = device.type == "cuda"
    return {
        "time": now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: packages.version(name) for name in _PACKAGES},
        **packages.provenance(),
        "device": torch.cuda.get_device_name(device) if on_gpu else packages.processor_name(),
        "device_type": device.type,
        "cuda": torch.version.cuda if on_gpu else None,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processes": processes.world_size(),
        "launcher": rendezvous.launcher(),
    }


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _plain(value: object) -> object:
    """Seven significant digits are what fp32 holds; NaN and infinity are not JSON."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
