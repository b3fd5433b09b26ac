"""Log of a run: metrics.jsonl, which trackers mirror, and environment.json. `Trainer._log` makes the
fields of its `train` lines."""

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
from hexa.runtime.console import Reporter
from hexa.runtime.files import write_text, write_whole
from hexa.training.trackers import State, Tracker, numbers

METRICS = "metrics.jsonl"
ENVIRONMENT = "environment.json"
TENSORBOARD = "tensorboard"
#: Events whose numbers are plotted over time: training steps, monitor scores, start of an epoch.
METRIC_EVENTS = ("train", "monitor", "epoch")
_STATES: dict[str, State] = {"end": "finished", "interrupted": "interrupted"}


class Journal:
    """Appends events to metrics.jsonl, one JSON object per line; mirrors their numbers to trackers;
    shows warnings.

    A journal without folder writes nothing; all processes except the main one have such a journal.
    Call `open` once the first step of the session is known. Trackers also receive the final state
    of the session. Raises OSError if a line cannot be written.
    """

    def __init__(self, folder: Path | None = None, reporter: Reporter | None = None) -> None:
        self.folder = folder
        self.reporter = reporter or Reporter()
        self.there: list[dict[str, Any]] = []
        self._trackers: list[Tracker] = []
        self._failures: set[str] = set()
        self._state: State = "failed"

    def open(self, step: int = 0, trackers: Sequence[Tracker] = ()) -> Self:
        """Open the log to continue after `step`.

        Later lines and a truncated last line are dropped, so that no step appears twice. `there`
        are the lines of the step itself.
        """
        self._trackers = list(trackers)
        if self.folder is not None:
            self.there = [
                line for line in truncate(self.folder / METRICS, step) if line["step"] == step
            ]
            # unbuffered: closing the file must not retry a line that the disk refused
            self._file = (self.folder / METRICS).open("ab", buffering=0)
        return self

    def write(self, event: str, step: int, **values: object) -> None:
        """Append one event. Numbers that JSON cannot represent become null. Events without metrics
        get a `time`."""
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
            self.warn(step, self._tell(lambda tracker: tracker.log(named, step)))

    def warn(self, step: int, messages: Iterable[str]) -> None:
        """Log warnings and show them."""
        for message in messages:
            self.write("warning", step, message=message)
            self.reporter.say(f"warning: {message}")

    @contextmanager
    def looking(self, what: str, step: int) -> Iterator[None]:
        """Turn failures of monitoring (monitor, report) inside the context into warnings, once per
        reason."""
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

    def _tell(self, act: Callable[[Tracker], None]) -> list[str]:
        """Call every tracker. Return a message for each one that failed; it is dropped, since it
        must not end a training."""
        messages = []
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                why = f"{type(error).__name__}: {reason(error, 300)}"
                name = type(tracker).__name__
                messages.append(f"{name} failed ({why}); the run continues without it")
        return messages

    def close(self) -> None:
        """Finish the trackers and close the file. Failures of trackers are shown but not logged,
        because scripts read from the last line whether the run was interrupted."""
        try:
            for message in self._tell(lambda tracker: tracker.finish(self._state)):
                self.reporter.say(f"warning: {message}")
        finally:
            if self.folder is not None:
                self._file.close()


def truncate(path: Path, step: int) -> list[dict[str, Any]]:
    """Atomically drop the lines of a log after `step` and damaged lines; return the remaining
    lines.

    The `epoch` event at `step` itself is dropped too, because a resumed run prepares that epoch
    again.
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
    resumed: int | None,
    data: Mapping[str, Any] | None,
) -> None:
    """Write environment.json: everything that a result depends on, except the configuration.

    resumed: step at which a later session resumes; it is appended to the file's list `resumed`.
    data: facts about the images.
    """
    path = folder / ENVIRONMENT
    content = {**environment(device, precision), "data": data}
    if resumed is not None and path.is_file():
        content["step"] = resumed
        with suppress(ValueError, AttributeError, TypeError):  # replace a broken file
            first = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
            sessions = [*first.get("resumed", []), content]
            content = {**first, "launcher": content["launcher"], "resumed": sessions}
    write_text(path, json.dumps(content, indent=2) + "\n")


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Return versions, device, commit, threads and precision of this process."""
    on_gpu = device.type == "cuda"
    return {
        "time": now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": packages.versions(),
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
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def rounded(value: float) -> float:
    """Return a number as the log holds it, with seven significant digits, as many as fp32 holds."""
    return float(f"{value:.7g}")


def _plain(value: object) -> object:
    """Round floats; NaN and infinity become None."""
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value
