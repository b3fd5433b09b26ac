"""Where a run reports to besides its own files: TensorBoard, and by one field Weights & Biases or MLflow.

Server, account and project come from their own settings: WANDB_PROJECT, WANDB_MODE=offline, `wandb login`;
MLFLOW_TRACKING_URI (by default mlflow.db in this folder), MLFLOW_EXPERIMENT_NAME. The project, or experiment, is `hexa`
by default. A run stores its id in tracker.json, and continues under it when it is resumed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from hexa.config import ConfigError, reason
from hexa.runtime.files import write_text
from hexa.runtime.packages import install_extra

Name = Literal["wandb", "mlflow"]
State = Literal["finished", "interrupted", "failed"]
FILE = "tracker.json"
_REMEDIES = {
    "wandb": "log in with 'wandb login', or set WANDB_MODE=offline",
    "mlflow": "see that MLFLOW_TRACKING_URI names a server that answers, or sqlite:///mlflow.db",
}


class Tracker(Protocol):
    """One run at a tracker. Any method may fail: the journal then drops the tracker, and training goes on."""

    identity: str
    """The id by which the run is found again."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Metrics of one step."""

    def finish(self, state: State, results: Mapping[str, float]) -> None:
        """The end of this session, with the final results if it is that of the run."""


def check(name: Name | None) -> None:
    """Raise ConfigError if the package of a tracker isn't installed: before anything else is done."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise _problem(
            f"{name} is not installed; install it ({install_extra(name)}), or take another tracker, or none"
        )


def start(name: Name, folder: Path, fields: Mapping[str, Any], resumed: bool = False) -> Tracker:
    """Begin the run of a folder, or continue it if it is resumed. Raises ConfigError if the tracker can't.

    fields: its configuration by dotted path.
    """
    noted: dict[str, str] = {}
    with suppress(OSError, ValueError, TypeError):
        noted |= json.loads((folder / FILE).read_text(encoding="utf-8"))
    try:
        made: Tracker = (Wandb if name == "wandb" else MLflow)(
            folder, fields, noted.get(name) if resumed else None
        )
        write_text(folder / FILE, json.dumps({**noted, name: made.identity}) + "\n")
    except Exception as error:
        why = reason(error, 300) or type(error).__name__
        raise _problem(f"{name} can't begin ({why}); {_REMEDIES[name]}") from error
    return made


def _problem(message: str) -> ConfigError:
    return ConfigError([("training.tracker", message)])


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Those of the values that are finite numbers."""
    given = ((name, value) for name, value in values.items() if type(value) in (int, float))
    return {name: float(value) for name, value in given if math.isfinite(value)}  # type: ignore[arg-type]


class Wandb:
    """Weights & Biases."""

    def __init__(self, folder: Path, fields: Mapping[str, Any], known: str | None) -> None:
        import wandb

        self.identity = known or secrets.token_hex(4)
        names = {"project": os.environ.get("WANDB_PROJECT", "hexa"), "name": folder.resolve().name}
        settings = wandb.Settings(console="off")  # the terminal is the progress bar's
        again: Any = {"id": self.identity, "resume": "allow", "dir": str(folder)}
        self._run = wandb.init(**names, **again, config=dict(fields), settings=settings)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, state: State, results: Mapping[str, float]) -> None:
        self._run.summary.update({"state": state, **results})
        self._run.finish(exit_code=0 if state == "finished" else 1)


class MLflow:
    """MLflow, by its client: nothing of this process's active run or tracking address is changed."""

    def __init__(self, folder: Path, fields: Mapping[str, Any], known: str | None) -> None:
        # its seven tries, each waiting longer, would hold up training for minutes when a server has gone
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        if known is not None:
            self.identity = known
            self._client.update_run(known, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hexa")
        existing = self._client.get_experiment_by_name(name)
        experiment = (
            existing.experiment_id if existing is not None else self._client.create_experiment(name)
        )
        self.identity = self._client.create_run(
            experiment, run_name=folder.resolve().name
        ).info.run_id
        params = [Param(_allowed(path), str(value)[:500]) for path, value in fields.items()]
        while params:  # a hundred are taken at a time
            self._client.log_batch(
                self.identity, params=[params.pop() for _ in range(min(100, len(params)))]
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        # `loss` beside `loss/std` would be a file beside a folder of its name where runs are kept as files
        names, now = (
            [_allowed(name if "/" in name else f"run/{name}") for name in values],
            int(1000 * time.time()),
        )
        metrics = [
            Metric(name, value, now, step)
            for name, value in zip(names, values.values(), strict=True)
        ]
        self._client.log_batch(self.identity, metrics)

    def finish(self, state: State, results: Mapping[str, float]) -> None:
        self.log(results, 0)
        status = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self.identity, status[state])


def _allowed(name: str) -> str:
    """A name without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-./ ]", "_", name)


class TensorBoard:
    """A tracker that writes event files into a folder. A resumed run hides what came after the step it continues from.

    torch's writer would do it in a thread that prints a traceback when the disk is full.
    """

    identity = "tensorboard"

    def __init__(self, folder: Path, step: int = 0) -> None:
        self._folder, self._step = folder, step
        self._file: Any = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        # imported at the first line, not before the first step: it takes a second
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            name = (
                f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
            )
            self._file = (self._folder / name).open("ab", buffering=0)
            self._write(file_version="brain.Event:2")
            self._write(step=self._step + 1, session_log=SessionLog(status=SessionLog.START))
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._write(step=step, summary=summary)

    def finish(self, state: State, results: Mapping[str, float]) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        RecordWriter(self._file).write(Event(wall_time=time.time(), **fields).SerializeToString())
