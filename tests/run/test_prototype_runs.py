"""Whole runs of the methods that cluster: what they write, pictures, the benchmark, and passes between epochs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hexa import load_backbone
from hexa.core import Batch
from hexa.data.loading.loaders import EpochPasses
from hexa.recipes.experiment import Experiment
from hexa.run.run import pretrain, resume
from hexa.runtime.signals import Interrupted
from tests.end_to_end.endings import metric_lines
from tests.run.test_every_method import QUIET, experiment as of_every

METHODS = ("deepcluster-v2", "pcl-v2")


def experiment(name: str, **changes: Any) -> Experiment:
    """Two epochs of five steps of 64 digits, the first of which warms up PCL."""
    return of_every(
        name,
        **({"method.warmup_epochs": 1} if name == "pcl-v2" else {}),
        **changes,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run of each method."""
    home = tmp_path_factory.mktemp("prototypes")
    return {name: pretrain(experiment(name), home / name, console=QUIET) for name in METHODS}


def test_cluster_health_metrics(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        epochs = metric_lines(folder, "epoch")
        assert [line["epoch"] for line in epochs] == ([1] if name == "pcl-v2" else [0, 1])
        assert epochs[0]["clusters/nmi_labels"] > 0
        assert ("clusters/nmi_previous" in epochs[-1]) == (name == "deepcluster-v2")


def test_ctrl_c_between_epochs(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a pass before the second epoch stops there and loses nothing."""
    images = EpochPasses.images

    def interrupted(self: EpochPasses) -> Iterator[Batch]:
        signal.raise_signal(signal.SIGINT)
        return images(self)

    monkeypatch.setattr(EpochPasses, "images", interrupted)
    quiet = {"training.checkpoint_every_steps": None, "training.checkpoint_every": 5}
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(experiment("pcl-v2", **quiet), run, console=QUIET)
    # the line that schedulers wait for
    assert metric_lines(run, "interrupted") == [{"event": "interrupted", "step": 5}]
    monkeypatch.setattr(EpochPasses, "images", images)
    resume(run, console=QUIET)
    assert load_backbone(run).content_hash() == load_backbone(runs["pcl-v2"]).content_hash()


def test_embeddings_beyond_clean_share(tmp_path: Path) -> None:
    """Images beyond the clean share keep their last embedding."""
    changes = {"objective.clean_fraction": 0.5, "method.num_prototypes": [200], "epochs": 2}
    out = pretrain(experiment("deepcluster-v2", **changes), tmp_path / "run", console=QUIET)
    assert len(metric_lines(out, "epoch")) == 2
