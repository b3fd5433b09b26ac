"""The input of a tracker, by a stand-in of its package."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from hexa.run.run import pretrain
from hexa.training import trackers
from tests.end_to_end.endings import metric_lines
from tests.run.test_run import quiet, tiny
from tests.torture.harness import forked


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    fake = MagicMock(__spec__=importlib.util.spec_from_loader("wandb", None))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_metrics_and_configuration_arrive(wandb: MagicMock, tmp_path: Path) -> None:
    experiment = tiny(training__tracker="wandb", monitor__knn_every=1)
    folder = pretrain(experiment, tmp_path / "my run", console=quiet())
    options = wandb.init.call_args.kwargs
    assert options["resume"] == "allow"
    assert options["name"] == "my run"
    assert options["project"] == "hexa"
    assert options["config"]["method.queue_size"] == 256
    assert options["config"]["network.widths"] == [4, 8]
    run = wandb.init.return_value
    told: dict[int, dict[str, float]] = {}
    for (values,), how in run.log.call_args_list:
        told.setdefault(how["step"], {}).update(values)
    for line in metric_lines(folder, "train"):
        for name in ("loss/std", "learning_rate"):
            assert told[line["step"]][name] == pytest.approx(line[name], rel=1e-6)
    (monitor,) = metric_lines(folder, "monitor")
    assert told[monitor["step"]]["monitor/knn"] == pytest.approx(monitor["knn"], rel=1e-6)
    run.summary.update.assert_called_once_with({"state": "finished"})
    run.finish.assert_called_once_with(exit_code=0)


def test_strange_identity_file(wandb: MagicMock, tmp_path: Path) -> None:
    """A file of a stranger's run is read within bounds, and a pipe is not waited for."""
    os.mkfifo(tmp_path / "tracker.json")
    found = forked(lambda: trackers.start(tmp_path, {}, resumed=True).identity, seconds=10)
    assert len(found.value) == 8
