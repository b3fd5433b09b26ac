"""Overfitting to a weak attack: detected, reported, and measured without side effects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hexa
from hexa.core import HardExample
from hexa.hard_examples.adversarial import Adversarial
from hexa.objective import Objective
from hexa.runtime import checkpoints
from hexa.training import trainer
from hexa.training.monitor import Watch
from hexa.training.overfitting import one_step_and_many
from tests.end_to_end.endings import ALONE, metric_lines
from tests.laws.cases import Case, batch
from tests.modules import unchanged


@pytest.mark.parametrize(
    ("fields", "judged"),
    [
        ({"epsilon": 4, "step_size": 4, "random_start": 2, "project": False}, True),
        ({}, False),
        ({"epsilon": 4, "steps": 3}, False),
        ({"epsilon": 4, "norm": "l2"}, False),
        ({"epsilon": [1, 4], "step_size": 4}, False),
    ],
)
def test_fast_attack_judge(fields: dict[str, Any], judged: bool) -> None:
    """One large sign step is compared with ten in its ball."""
    judge = Adversarial(
        epsilon=4.0,
        step_size=1.0,
        steps=10,
        random_start=1.0,
    )
    assert Adversarial.model_validate(fields).judge() == (judge if judged else None)


def test_attack_loss_measurement() -> None:
    """The losses are those of the attacks, and no state changes."""
    hard: dict[str, HardExample] = {
        "adversarial": Adversarial(epsilon=4.0, step_size=4.0),
        "silent": Adversarial(epsilon=4.0, step_size=4.0, weight=0.0),
        "late": Adversarial(epsilon=4.0, step_size=4.0, start=0.5),
    }
    method = Case("moco", {}, {"adversarial": {}}).build()
    with unchanged(method):
        found = one_step_and_many(Objective(method, hard, steps=10), batch())
    assert list(found) == ["adversarial"]
    one, many = found["adversarial"]
    made = Objective(method, {"one": hard["adversarial"]}).examples(batch())["one"]
    with torch.no_grad():
        assert one == pytest.approx(float(made.score_at(made.crops).mean()))
    assert many > one > 0


def test_overfitting_warning() -> None:
    """The warning appears once, until the problem disappears."""
    watch = Watch(None, None)
    assert watch.attacked("adversarial", 1.0, 5.0) == []  # not robust yet
    assert watch.attacked("adversarial", 0.8, 2.0) == []
    assert watch.attacked("adversarial", 0.9, 4.0) == []  # both rise: the views are harder
    again = Watch(None, None)
    again.state = watch.state  # a resumed run
    (said,) = again.attacked("adversarial", 0.4, 3.1)
    assert re.search(r" 3\.1 \(2 .* 0\.4 \(0\.8 ", said)
    assert "hard_examples.adversarial" in said
    assert again.attacked("adversarial", 0.3, 3.1) == []
    assert again.attacked("adversarial", 0.3, 2.9) == []
    assert len(again.attacked("adversarial", 0.3, 3.1)) == 1


def test_overfitting_warning_in_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run warns at the end of an epoch."""
    seen: list[int] = []

    def overfitted(objective: Objective, data: Any) -> dict[str, tuple[float, float]]:
        seen.append(data.step)
        return {"adversarial": (0.1, 5.0) if len(seen) > 1 else (1.0, 1.0)}

    monkeypatch.setattr(trainer, "one_step_and_many", overfitted)
    small = ALONE | {"network.widths": [4, 8], "views.size": 8}
    run = hexa.pretrain("digits-moco-v2", epochs=2, out=tmp_path / "run", **small)
    assert seen == [9, 19]
    kept = checkpoints.newest_good(run / "checkpoints", pytest.fail)
    watch = Watch(None, None)
    watch.state = kept[1]["watch"]
    assert watch.attacked("adversarial", 0.1, 5.0) == []  # the comparison is saved with its epoch
    assert [
        line["step"] for line in metric_lines(run, "warning") if "catastrophic" in line["message"]
    ] == [20]
