"""Accuracy among the first k, and options of a protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score

from hexa.evaluation import evaluate, protocols
from hexa.evaluation.protocol import accuracies, deviations
from hexa.evaluation.protocols.linear import PROTOCOL as LINEAR
from tests.conftest import Says


def test_topk_scikit_learn() -> None:
    first = torch.Generator().manual_seed(0)
    second = torch.Generator().manual_seed(1)
    scores = torch.randn(200, 9, generator=first)
    labels = torch.randint(0, 9, (200,), generator=second)
    found = accuracies(scores, labels)
    assert found.keys() == {"top1", "top5", "balanced_accuracy"}
    for k in (1, 5):
        expected = top_k_accuracy_score(
            labels.numpy(),
            scores.numpy(),
            k=k,
            labels=np.arange(9),
        )
        assert found[f"top{k}"] == pytest.approx(100 * expected)


def test_topk_ties() -> None:
    """If scores are equal, the lower class comes first."""
    found = accuracies(torch.zeros(8, 8), torch.arange(8))
    expected = {
        "top1": 12.5,
        "top5": 62.5,
        "balanced_accuracy": 12.5,
    }
    assert found == expected


def test_topk_nan_and_few_classes() -> None:
    """NaN scores are wrong; a figure that is 100 by construction is left out."""
    labels = torch.zeros(3, dtype=torch.int64)
    no_numbers = torch.full((3, 8), float("nan"))
    found = accuracies(no_numbers, labels)
    assert found == {"top1": 0.0, "top5": 0.0, "balanced_accuracy": 0.0}
    few = accuracies(torch.rand(3, 5), labels)
    assert few.keys() == {"top1", "balanced_accuracy"}
    single = accuracies(torch.zeros(3, 1), labels)
    assert single == {"top1": 100.0, "balanced_accuracy": 100.0}


def test_new_protocol_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says) -> None:
    """The command line, its help and the documentation's table find it there."""
    source = Path(protocols.get("knn").run.__code__.co_filename).read_text()
    own = source.replace('"""The k = 200', '"""My own k = 200')
    (tmp_path / "own_way.py").write_text(own)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    assert "own-way" in protocols.names()
    assert protocols.summary("own-way").startswith("My own")
    assert "My own k = 200" in says("evaluate own-way --help").out
    found = evaluate("own-way", "pixels:8", "digits", device="cpu", k=1)["protocol"]
    assert found == "own-way/k1-t0.07"


def test_protocol_deviations() -> None:
    """Changes are recorded next to what was published."""
    name, options = LINEAR.options("swav", {"epochs": "7"})
    assert name == "swav"
    published = LINEAR.presets["swav"]
    assert deviations(published, options) == {"epochs": [100, 7]}
    assert options.model_dump() == {**published.model_dump(), "epochs": 7}
    _, same = LINEAR.options("swav", {"epochs": 100})
    assert deviations(published, same) == {}
