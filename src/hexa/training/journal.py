"""What a run writes down while it goes: metrics.jsonl, which trackers mirror, and environment.json."""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from hexa.runtime import packages, parsing, peers, processes
from hexa.runtime.checkout import commit
from hexa.runtime.files import write_whole
from hexa.training.trackers import State, Tracking

METRICS, ENVIRONMENT, TENSORBOARD = "metrics.jsonl", "environment.json", "tensorboard"
#: Events that are numbers over time: of a step, of a monitor, of what a method does between epochs.
METRIC_EVENTS = ("train", "monitor", "epoch")
_STATES: dict[str, State] = {"end": "finished", "interrupted": "interrupted"}
_PACKAGES = ("hexa", "torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn", "safetensors")


class Journal:
    """Appends events to metrics.jsonl, one JSON object a line, and mirrors their numbers to trackers.

    A journal without folder writes nothing: that of every process but the main one. Opened at a step, as a resumed run
    does, it first drops the lines after that step, and a last line that was cut short, so that no step appears twice;
    those of the step itself are `there`. Trackers also hear how the session ended, and `results`, the final numbers,
    which whoever has them sets. Raises OSError for a line that can't be written.
    """

    def __init__(self, folder: Path | None, step: int = 0, trackers: Sequence[Tracking] = ()) -> None:
        self.folder = folder
        self.results: Mapping[str, object] = {}
        self.there: list[dict[str, Any]] = []
        self._trackers = trackers
        self._state: State = "failed"
        if folder is not None:
            self.there = [line for line in truncate(folder / METRICS, step) if line["step"] == step]
            # unbuffered: a line that the disk refuses must not be tried again when the file is closed
            self._file = (folder / METRICS).open("ab", buffering=0)

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
            named = {f"monitor/{name}" if event == "monitor" else name: value for name, value in values.items()}
            for tracker in self._trackers:
                tracker.log(named, step)

    def _append(self, line: str) -> None:
        assert self.folder is not None
        try:
            if os.fstat(self._file.fileno()).st_nlink == 0 and not (self.folder / METRICS).exists():
                raise OSError(errno.ENOENT, "was removed while the run was going on")
            rest = line.encode()
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder / METRICS)) from error

    def close(self) -> None:
        """Close the file, trackers first: they may have something to complain of."""
        try:
            for tracker in self._trackers:
                tracker.finish(self._state, self.results)
        finally:
            if self.folder is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def truncate(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop the lines of a journal that lie after `step` or are damaged, at once or not at all; return the others.

    What a method did before the first step of an epoch is dropped at `step` too: a run that goes on does it again.
    """
    if not path.exists():
        return []
    parsing.check(path, sys.maxsize)  # a pipe would be read for ever
    kept, parsed = [], []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or not isinstance(fields.get("step"), int) or not line.endswith(b"\n"):
            continue
        if fields["step"] <= (step - 1 if fields.get("event") == "epoch" else step):
            kept.append(line)
            parsed.append(fields)
    write_whole(path, lambda file: file.writelines(kept))
    return parsed


def discard(folder: Path) -> None:
    """Remove what a run wrote down in `folder` that ended before there was anything to go on from."""
    (folder / METRICS).unlink(missing_ok=True)
    shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)


def write_environment(folder: Path, device: torch.device, precision: str, resumed: int | None = None) -> None:
    """environment.json: what a result depends on beside the configuration.

    resumed: the step after which a later session goes on; it gets an entry of its own in the file's `resumed`.
    """
    path, found = folder / ENVIRONMENT, environment(device, precision)
    if resumed is not None and path.is_file():
        found["step"] = resumed
        try:
            first = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
            found = {**first, "launcher": found["launcher"], "resumed": [*first.get("resumed", []), found]}
        except (ValueError, AttributeError, TypeError):
            pass  # a broken file is replaced
    text = json.dumps(found, indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Versions, device, commit, threads and precision of this process."""
    on_gpu = device.type == "cuda"
    return {
        "time": now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": commit(),
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "device_type": device.type,
        "cuda": torch.version.cuda if on_gpu else None,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processes": processes.world_size(),
        "launcher": peers.launcher(),
        "process": asdict(peers.Peer.here(processes.rank())),
    }


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return packages.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _plain(value: object) -> object:
    """Seven significant digits are what fp32 holds; NaN and infinity are not JSON."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
