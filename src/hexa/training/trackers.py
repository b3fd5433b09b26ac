"""Trackers that mirror the metrics of a run: TensorBoard, and optionally Weights & Biases.

Account and project come from the tracker's own settings: WANDB_PROJECT (default: hexa),
WANDB_MODE=offline, `wandb login`. A run stores its id in tracker.json and keeps it when it is
resumed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from hexa.config import ConfigError, field_error, is_number, reason
from hexa.runtime import parsing
from hexa.runtime.files import write_text
from hexa.runtime.packages import install_extra

Name = Literal["wandb"]
State = Literal["finished", "interrupted", "failed"]
FILE = "tracker.json"
_REMEDY = "log in with 'wandb login', or set WANDB_MODE=offline"


class Tracker(Protocol):
    """A run at a tracker. Any method may fail: the journal then drops the tracker, and training
    continues."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step."""

    def finish(self, state: State) -> None:
        """End this session."""


def check(name: Name | None) -> None:
    """Raise ConfigError if the package of a tracker is not installed; called before anything else
    is done."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise _problem(f"{name} is not installed; install it ({install_extra(name)}) or use none")


def start(folder: Path, fields: Mapping[str, Any], resumed: bool = False) -> Wandb:
    """Start a tracked run, or resume it. Raises ConfigError if the tracker fails.

    fields: the configuration by dotted path.
    """
    known = None
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = parsing.from_json(parsing.read_text(folder / FILE, parsing.MOST_JSON))["wandb"]
    try:
        made = Wandb(folder, fields, known if resumed else None)
        write_text(folder / FILE, json.dumps({"wandb": made.identity}) + "\n")
    except Exception as error:
        why = reason(error, 300) or type(error).__name__
        raise _problem(f"wandb did not start ({why}); {_REMEDY}") from error
    return made


def _problem(message: str) -> ConfigError:
    return field_error("training.tracker", message)


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {name: float(value) for name, value in values.items() if is_number(value)}


class Wandb:
    """Weights & Biases."""

    def __init__(self, folder: Path, fields: Mapping[str, Any], known: str | None) -> None:
        import wandb

        self.identity = known or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "hexa"),
            name=folder.resolve().name,
            id=self.identity,
            resume="allow",
            dir=str(folder),
            config=dict(fields),
            settings=wandb.Settings(console="off"),  # the progress bar owns the terminal
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, state: State) -> None:
        self._run.summary.update({"state": state})
        self._run.finish(exit_code=0 if state == "finished" else 1)


class TensorBoard:
    """A tracker that writes event files into a folder. A resumed run hides events after its first
    step.

    torch's writer is not used, because its thread prints a traceback when the disk is full.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._folder = folder
        self._step = step
        self._file: Any = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        # imported at the first log line because the import takes a second
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            begin = int(time.time())
            name = f"events.out.tfevents.{begin:010d}.{socket.gethostname()}.{os.getpid()}"
            self._file = (self._folder / name).open("ab", buffering=0)
            self._write(file_version="brain.Event:2")
            self._write(step=self._step + 1, session_log=SessionLog(status=SessionLog.START))
        shown = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=shown))

    def finish(self, state: State) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        event = Event(wall_time=time.time(), **fields)
        RecordWriter(self._file).write(event.SerializeToString())
