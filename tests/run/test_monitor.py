"""The k-NN monitor against a vote written out, on the exported backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexa.config import UserError
from hexa.data import ArraySource, open_source
from hexa.data.sources.decode import DecodeError
from hexa.evaluation.embed import embed
from hexa.run.build import Machine, build_method, setting_of
from hexa.run.monitor import KnnMonitor
from hexa.run.run import pretrain
from hexa.weights.pretrained import Backbone, load_backbone
from tests.end_to_end.endings import metric_lines

from .test_run import quiet, tiny


def features(backbone: Backbone, split: str, folder: Path) -> tuple[Any, Any]:
    found = np.load(embed(backbone, f"digits#{split}", folder / f"{split}.npz").path)
    rows = found["features"].astype(float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), found["labels"]


def few(kind: type[ArraySource]) -> Any:
    """200 digits."""
    digits = open_source("digits", "train")
    return kind(digits.images[:200], digits.labels[:200], digits.class_names)  # type: ignore[index]


def monitor_of(source: ArraySource, **changes: Any) -> Any:
    experiment = tiny(**{"monitor__knn_every": 1, **changes})
    machine = Machine.of(experiment)
    return KnnMonitor.of(
        experiment, source, build_method(experiment, setting_of(experiment, 200), machine), machine
    )


def test_knn_monitor_vote(tmp_path: Path, whole: Path) -> None:
    """It votes as published and leaves the run as it is."""
    with_it = pretrain(
        tiny(monitor__knn_every=1, monitor__k=20, views__test_scale=3),
        tmp_path / "a",
        console=quiet(),
    )
    backbone = load_backbone(with_it)
    assert backbone.content_hash() == load_backbone(whole).content_hash()
    assert backbone.image_size == 24
    found = [line["knn"] for line in metric_lines(with_it, "monitor")]
    bank, bank_labels = features(backbone, "train", tmp_path)
    queries, labels = features(backbone, "test", tmp_path)
    right = 0
    for query, label in zip(queries, labels, strict=True):
        similarity = bank @ query
        votes = np.zeros(10)
        for neighbour in np.argsort(-similarity)[:20]:
            votes[bank_labels[neighbour]] += np.exp(similarity[neighbour] / 0.07)
        right += int(votes.argmax() == label)
    # an image on the border of two classes may fall either way in fp32
    assert found == [pytest.approx(100 * right / len(labels), abs=100 * 2 / len(labels))]


def test_monitor_without_test_split() -> None:
    """A source without a test split is asked about itself."""
    monitor = monitor_of(few(ArraySource), monitor__max_images=50)
    bank, queries = monitor.parts()
    assert len(bank) == 50
    assert len(queries) == 40
    assert not set(bank.paths) & set(queries.paths)
    assert 0 <= monitor() <= 100
    assert monitor() == monitor()


class Torn(ArraySource):
    """Some images can't be read."""

    unreadable = range(0)

    def decode(self, index: int) -> torch.Tensor:
        if index in self.unreadable:
            raise DecodeError("truncated")
        return super().decode(index)


def test_monitor_unreadable_images(tmp_path: Path) -> None:
    """The tolerance of the training does not apply: the monitor has its own sample and its own
    share of unreadable images."""
    torn = few(Torn)
    monitor = monitor_of(torn)
    said: list[str] = []
    torn.unreadable = range(100)
    assert 0 <= monitor(said.append) <= 100
    assert len(said) == 2
    assert "cannot be read: " in said[0]
    assert "truncated" in said[0]
    monitor(said.append)
    assert len(said) == 2  # they were decoded once
    monitor._images = None
    torn.unreadable = range(200)
    with pytest.raises(UserError, match="no image could be read"):
        monitor()


def test_monitor_without_labels() -> None:
    """Without labels there is none."""
    labelled = few(ArraySource)
    assert monitor_of(ArraySource(labelled.images)) is None
    assert monitor_of(labelled, monitor__knn_every=0) is None
    for asked in ({"monitor__until": 60.0}, {"monitor__holdout": 0.2}):
        with pytest.raises(
            UserError,
            match=r"monitor\.(until|holdout): .* has no labels; give labelled monitor\.data",
        ):
            monitor_of(ArraySource(labelled.images), **asked)
