"""Whole runs of the methods that cluster: what they write, pictures, the benchmark, and passes between epochs."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hexa import load_backbone
from hexa.core import Batch
from hexa.data.loading.loaders import EpochPasses
from hexa.recipes.experiment import Experiment
from hexa.run.run import pretrain, resume
from hexa.runtime.signals import Interrupted
from tests.end_to_end.endings import metric_lines
from tests.run.test_every_method import experiment as of_every

METHODS = ("deepcluster-v2", "pcl-v2")


def experiment(name: str, **changes: Any) -> Experiment:
    """Two epochs of five steps of 64 digits, the first of which warms up PCL."""
    return of_every(name, **({"method.warmup_epochs": 1} if name == "pcl-v2" else {}), **changes)


@pytest.fixture(scope="module", params=METHODS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, str]:
    said = io.StringIO()
    folder = tmp_path_factory.mktemp("prototypes") / request.param
    pretrain(experiment(request.param), folder, console=Console(file=said, width=200))
    return request.param, folder, said.getvalue()


def test_cluster_health_metrics(
    run: tuple[str, Path, str],
) -> None:
    name, folder, _ = run
    epochs = metric_lines(folder, "epoch")
    assert [line["epoch"] for line in epochs] == ([1] if name == "pcl-v2" else [0, 1])
    assert epochs[0]["clusters/nmi_labels"] > 0
    assert ("clusters/nmi_previous" in epochs[-1]) == (name == "deepcluster-v2")


def test_ctrl_c_between_epochs(
    run: tuple[str, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a pass between epochs stops there and loses nothing."""
    name, whole, _ = run
    if name != "pcl-v2":
        pytest.skip("no pass over the data before the second epoch")
    images = EpochPasses.images

    def interrupted(self: EpochPasses) -> Iterator[Batch]:
        signal.raise_signal(signal.SIGINT)
        return images(self)

    monkeypatch.setattr(EpochPasses, "images", interrupted)
    quiet = {"training.checkpoint_every_steps": None, "training.checkpoint_every": 5}
    with pytest.raises(Interrupted) as stop:
        pretrain(experiment(name, **quiet), tmp_path / "run", console=Console(file=io.StringIO()))
    assert stop.value.step == 5
    monkeypatch.setattr(EpochPasses, "images", images)
    resume(tmp_path / "run", console=Console(file=io.StringIO()))
    assert load_backbone(tmp_path / "run").content_hash() == load_backbone(whole).content_hash()


def test_embeddings_beyond_clean_share(tmp_path: Path) -> None:
    """Images beyond the clean share keep their last embedding."""
    changes = {"objective.clean_fraction": 0.5, "method.num_prototypes": [200], "epochs": 2}
    out = pretrain(
        experiment("deepcluster-v2", **changes),
        tmp_path / "run",
        console=Console(file=io.StringIO()),
    )
    assert len(metric_lines(out, "epoch")) == 2
