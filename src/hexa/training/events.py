"""TensorBoard event files, written line by line in this process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexa.training.trackers import State


class TensorBoard:
    """A tracker whose books are files in a folder. A resumed run hides what was written after the step it goes on from.

    torch's writer would do it in a thread that prints a traceback when the disk is full.
    """

    identity = "tensorboard"

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._folder, self._step = folder, step
        self._file: Any = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        # imported at the first line, not before the first step: it takes a second
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        if self._file is None:
            self._begin()
        found = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._write(step=step, summary=found)

    def finish(self, state: State, results: Mapping[str, float]) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]

        self._folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (self._folder / name).open("ab", buffering=0)
        self._write(file_version="brain.Event:2")
        self._write(step=self._step + 1, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        RecordWriter(self._file).write(Event(wall_time=time.time(), **fields).SerializeToString())
