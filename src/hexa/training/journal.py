"""What a run writes down while it goes: metrics.jsonl, TensorBoard events, a tracker, and environment.json."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from hexa.runtime import packages, peers, processes
from hexa.runtime.files import write_whole
from hexa.training.trackers import State, Tracking

METRICS, ENVIRONMENT, TENSORBOARD = "metrics.jsonl", "environment.json", "tensorboard"
#: Events that are numbers over time: of a step, of a monitor, of what a method does between epochs.
METRIC_EVENTS = ("train", "monitor", "epoch")
_STATES: dict[str, State] = {"end": "finished", "interrupted": "interrupted"}
_PACKAGES = ("hexa", "torch", "torchvision", "timm", "numpy", "pillow", "scikit-learn", "safetensors")


class Journal:
    """Appends events to metrics.jsonl, one JSON object a line, and mirrors their numbers to TensorBoard and a tracker.

    A journal without folder writes nothing: that of every process but the main one. Opened at a step, as a resumed run
    does, it first drops the lines after that step, and a last line that was cut short, so that no step appears twice.
    The tracker also hears how the sitting ended, and `results`, the final numbers, which whoever has them sets.
    """

    def __init__(
        self, folder: Path | None, step: int = 0, tensorboard: bool = True, tracking: Tracking | None = None
    ) -> None:
        self.folder = folder
        self.results: Mapping[str, object] = {}
        self._tracking = tracking
        self._state: State = "failed"
        self._step = step
        self._tensorboard = tensorboard and folder is not None
        self._events: Any = None
        if folder is not None:
            truncate(folder / METRICS, step)
            self._file = (folder / METRICS).open("a", encoding="utf-8")

    def write(self, event: str, step: int, **values: object) -> None:
        """Append one event. Numbers that JSON can't hold become null. `time` is added to events without metrics."""
        if self.folder is None:
            return
        line: dict[str, object] = {"event": event, "step": step, **values}
        if event not in METRIC_EVENTS:
            line["time"] = now()
        self._file.write(json.dumps({key: _plain(value) for key, value in line.items()}) + "\n")
        self._file.flush()
        self._state = _STATES.get(event, self._state)
        if event in METRIC_EVENTS:
            named = {f"monitor/{name}" if event == "monitor" else name: value for name, value in values.items()}
            self._to_tensorboard(step, named)
            if self._tracking is not None:
                self._tracking.log(named, step)

    def _to_tensorboard(self, step: int, values: Mapping[str, object]) -> None:
        if not self._tensorboard:
            return
        assert self.folder is not None
        if self._events is None:
            # imported at the first line, not before the first step: it takes a second
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.folder / TENSORBOARD), purge_step=self._step + 1)
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files, the tracker first: it may have something to complain of."""
        if self._tracking is not None:
            self._tracking.finish(self._state, self.results)
        if self.folder is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def truncate(path: Path, step: int) -> None:
    """Drop the lines of a journal that lie after `step` or are no JSON objects, at once or not at all.

    What a method did before the first step of an epoch is dropped at `step` too: a run that goes on does it again.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if not isinstance(fields, dict) or not line.endswith(b"\n"):
            continue
        last = step - 1 if fields.get("event") == "epoch" else step
        if fields.get("step", step + 1) <= last:
            kept.append(line)
    write_whole(path, lambda file: file.writelines(kept))


def discard(folder: Path) -> None:
    """Remove what a run wrote down in `folder` that ended before there was anything to go on from."""
    (folder / METRICS).unlink(missing_ok=True)
    shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)


def write_environment(folder: Path, device: torch.device, precision: str, resumed: bool = False) -> None:
    """environment.json: what a result depends on beside the configuration; of each later sitting in its `resumed`."""
    path, found = folder / ENVIRONMENT, environment(device, precision)
    if resumed and path.is_file():
        try:
            first = json.loads(path.read_text())
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


def commit() -> str | None:
    """The commit of the checkout that the package lies in, with -dirty if files differ; None outside a checkout."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # a package installed into some other project's checkout is not under that project's version
        if not git("ls-files", "--", Path(__file__).name):
            return None
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


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
