"""Learning from a share of the labels: published rates, lists of labels, what a result says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexa.config import UserError
from hexa.evaluation.protocol import Outcome, Task
from hexa.evaluation.supervised import Plan, decayed
from hexa.runtime.random import Stream
from hexa_paper.protocols import semi_supervised
from hexa_paper.semi_supervised.options import SemiSupervisedOptions
from tests.evaluation.test_tuning import images, task


@pytest.mark.parametrize(
    ("preset", "percent", "rates"),
    [
        ("hexa", 1, (0.01, 1)),
        ("hexa", 10, (0.01, 0.1)),
        ("swav", 1, (0.02, 5)),
        ("swav", 10, (0.01, 0.2)),
    ],
)
def test_label_share_rates(
    monkeypatch: pytest.MonkeyPatch, preset: str, percent: float, rates: tuple[float, float]
) -> None:
    """Rates are those of the share of labels."""
    plans: list[tuple[int, Plan]] = []

    def fake(task: Task, fit: Any, test: Any, plan: Plan, *_: object, **__: object) -> Any:
        plans.append((len(fit), plan))
        return Outcome({"top1": 1.0}, effective={"batch_size": 256})

    monkeypatch.setattr(semi_supervised, "tuned", fake)
    published = semi_supervised.PROTOCOL.presets[preset]
    options = SemiSupervisedOptions.model_validate({**published.model_dump(), "percent": percent})
    found = semi_supervised.run(task(images(600, 0)), options)
    ((count, plan),) = plans
    assert count == 6 * percent
    assert (plan.trunk_rate, plan.head_rate) == rates
    assert plan.optimizer.keywords["weight_decay"] == (5e-4 if preset == "hexa" else 0)
    factors = [
        decayed(plan.factor, plan.decay_at, epoch, plan.epochs) for epoch in (11, 12, 15, 16)
    ]
    assert factors == pytest.approx([1, 0.2, 0.2, 0.04])
    expected = {"trunk_rate": rates[0], "head_rate": rates[1], "batch_size": 256}
    assert found.effective == expected


def test_class_shares() -> None:
    """Every class keeps its share."""
    labels = np.arange(90) % 3
    drawn = [semi_supervised.draw_share(labels, 0.1, Stream(seed)) for seed in range(2)]
    found = [np.bincount(labels[rows]).tolist() for rows in drawn]
    expected = [[3, 3, 3]] * 2
    assert found == expected
    assert (drawn[0] != drawn[1]).any()
    assert len(semi_supervised.draw_share(labels, 0.001, Stream(0))) == 3


def test_labelled_image_list(tmp_path: Path) -> None:
    """A list names the labelled images."""
    source = images(20, 0)
    (tmp_path / "list.txt").write_text("000003\n000011\n\n")
    found = semi_supervised.rows_of(source, tmp_path / "list.txt").tolist()
    assert found == [3, 11]
    (tmp_path / "other.txt").write_text("000003\nx.jpg\n")
    with pytest.raises(UserError, match=r"1 of its 2 names are not in .*: x\.jpg"):
        semi_supervised.rows_of(source, tmp_path / "other.txt")
    with pytest.raises(UserError, match="cannot be read"):
        semi_supervised.rows_of(source, tmp_path / "none.txt")
    source.paths[5] = "elsewhere/000011"
    with pytest.raises(UserError, match="of several images: 000011"):
        semi_supervised.rows_of(source, tmp_path / "list.txt")
