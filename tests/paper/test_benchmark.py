"""The JSON of the benchmark is what was agreed; figures are this machine's, so only relations by counting hold."""

from __future__ import annotations

from typing import Any

import pytest

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.run.build import Machine
from hexa_paper import benchmark as module
from hexa_paper.benchmark import Bench

FIELDS = {"batch_size": 8, "method.queue_size": 64, "views.size": 8, "training.precision": "fp32"}
FIELDS |= {"network.widths": [4, 8], "training.device": "cpu"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)


def test_benchmark_trainer_step() -> None:
    """Clipped, at the rate of the last step, with all layers learning and crops in the trainer's layout."""
    fields = FIELDS | {
        "optimizer.max_gradient_norm": 1e-3,
        "training.channels_last": True,
        "epochs": 4,
    }
    made = override(recipes.get("digits-moco-v2"), fields)
    bench = Bench(made, Machine.of(made))
    seen: list[Any] = []
    optimizer = bench.optimizer.optimizer
    objective = bench.objectives["std"]
    before = optimizer.step
    optimizer.step = lambda: seen.extend(
        p.grad.norm() for p in bench.optimizer.parameters if p.grad is not None
    )  # type: ignore[method-assign]
    bench._train(objective, bench._next())
    optimizer.step = before  # type: ignore[method-assign]
    assert seen
    assert max(seen) <= 1.001e-3
    assert 0 < optimizer.param_groups[0]["lr"] <= 1e-6


def test_benchmark_run_batches() -> None:
    """Batches are those of a run."""
    fields = {"training.resident_limit_bytes": 0, "training.num_workers": 0}
    made = override(recipes.get("digits-moco-v2"), FIELDS | fields)
    bench = Bench(made, Machine.of(made), plain=True)
    assert not bench.loader.resident
    for name in ("views", "end to end"):
        bench.work()[name]()
