"""The input of a tracker, by a stand-in of its package."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hexa.run.run import pretrain
from hexa.training import trackers
from tests.end_to_end.endings import metric_lines
from tests.run.test_run import quiet, tiny
from tests.torture.harness import forked


class FakeWandb(types.ModuleType):
    """Keeps runs in memory, by id."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = importlib.util.spec_from_loader("wandb", None)
        self.runs: dict[str, dict[str, Any]] = {}
        self.Settings = lambda **options: options

    def init(self, **options: Any) -> Any:
        kept = self.runs.setdefault(
            options["id"], {"options": options, "log": [], "summary": {}, "exits": []}
        )
        assert options["resume"] == "allow"

        def log(values: dict[str, float], step: int) -> None:
            kept["log"].append((step, values))

        return types.SimpleNamespace(
            log=log,
            summary=kept["summary"],
            finish=lambda exit_code: kept["exits"].append(exit_code),
        )


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def logged(folder: Path, event: str) -> dict[int, dict[str, float]]:
    return {line["step"]: line for line in metric_lines(folder, event)}


def test_metrics_and_configuration_arrive(wandb: FakeWandb, tmp_path: Path) -> None:
    folder = pretrain(
        tiny(training__tracker="wandb", monitor__knn_every=1), tmp_path / "my run", console=quiet()
    )
    (run,) = wandb.runs.values()
    assert run["options"]["name"] == "my run"
    assert run["options"]["project"] == "hexa"
    assert run["options"]["config"]["method.queue_size"] == 256
    assert run["options"]["config"]["network.widths"] == [4, 8]
    told: dict[int, dict[str, float]] = {}
    for step, values in run["log"]:
        told.setdefault(step, {}).update(values)
    for step, line in logged(folder, "train").items():
        assert told[step]["loss/std"] == pytest.approx(line["loss/std"], rel=1e-6)
        assert told[step]["learning_rate"] == pytest.approx(line["learning_rate"], rel=1e-6)
    (monitor,) = logged(folder, "monitor").values()
    assert told[monitor["step"]]["monitor/knn"] == pytest.approx(monitor["knn"], rel=1e-6)
    assert run["summary"]["state"] == "finished"
    assert run["exits"] == [0]


def test_strange_identity_file(wandb: FakeWandb, tmp_path: Path) -> None:
    """A file of a stranger's run is read within bounds, and a pipe is not waited for."""
    os.mkfifo(tmp_path / "tracker.json")
    found = forked(lambda: trackers.start("wandb", tmp_path, {}, resumed=True).identity, seconds=10)
    assert len(found.value) == 8
