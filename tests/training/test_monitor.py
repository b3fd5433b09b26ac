"""Statistics with known values, and warnings about bad ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from hexa.training.monitor import Watch, effective_rank, feature_std


def test_feature_std_extremes() -> None:
    """The standard deviation is one on the sphere and zero at a point."""
    spread = F.normalize(
        torch.randn(1, 4000, 32, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    assert float(feature_std(spread)) == pytest.approx(1.0, abs=0.02)
    assert float(feature_std(spread[:, :1].expand(1, 50, 32))) == pytest.approx(0.0, abs=1e-6)


def test_effective_rank() -> None:
    """The effective rank counts equal directions."""
    # ± the first r axes: centred, with r equal singular values
    for rank in (1, 3, 7):
        axes = torch.eye(8)[:rank]
        assert float(effective_rank(torch.cat([axes, -axes])[None])) == pytest.approx(
            rank, rel=1e-5
        )
    values = torch.tensor([3.0, 1.0])
    share = values / values.sum()
    expected = math.exp(-float((share * share.log()).sum()))
    points = torch.cat([torch.diag(values), -torch.diag(values)])[None]
    assert float(effective_rank(points)) == pytest.approx(expected, rel=1e-5)
    assert float(effective_rank(torch.zeros(1, 4, 3))) == pytest.approx(1.0)


def healthy(**values: float) -> dict[str, float]:
    return {
        "feature_std": 0.9,
        "effective_rank": 60.0,
        "loss/std": 5.0,
        "accuracy/std": 0.5,
        **values,
    }


def test_healthy_run_warnings() -> None:
    """A healthy run is not warned about."""
    watch = Watch(chance_loss=8.3, num_classes=10)
    for _ in range(50):
        assert watch.train(healthy(), 127) == []
    assert watch.knn(60.0) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [({"feature_std": 0.01}, "std 0.010"), ({"effective_rank": 1.4}, "1.4 of 127")],
)
def test_collapse_warning(values: dict[str, float], words: str) -> None:
    """A collapse causes one warning, and another when it comes back."""
    watch = Watch(None, None)
    assert words in watch.train(healthy(**values), 127)[0]
    assert watch.train(healthy(**values), 127) == []
    assert watch.train(healthy(), 127) == []
    assert words in watch.train(healthy(**values), 127)[0]


def test_resumed_watch() -> None:
    """A resumed watch neither repeats nor forgets."""
    watch = Watch(8.0, 10)
    watch.train(healthy(feature_std=0.0), 127)
    watch.train(healthy(**{"feature_std": 0.0, "loss/std": 8.0}), 127)
    other = Watch(8.0, 10)
    other.state = watch.state
    assert other.state == watch.state
    assert other.train(healthy(feature_std=0.0), 127) == []
