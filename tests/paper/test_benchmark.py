"""The JSON of the benchmark is what was agreed; figures are this machine's, so only relations by counting hold."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.run.build import Machine
from hexa_paper import benchmark as module
from hexa_paper.benchmark import NAIVE, SCHEMES, Bench, benchmark, fitted, table
from tests.conftest import Says

ROW = {"images_per_second", "relative_cost", "peak_memory_bytes"}
FIELDS = {"batch_size": 8, "method.queue_size": 64, "views.size": 8, "training.precision": "fp32"}
FIELDS |= {"network.widths": [4, 8], "training.device": "cpu"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)


def test_the_command_prints_what_was_agreed(says: Says) -> None:
    fields = [word for name, value in FIELDS.items() for word in (f"--{name}", value)]
    out, said = says("benchmark", "digits-hexa-moco", "--repeats", "1", "--json", *fields)
    measured = json.loads(out)
    speeds = {"views_images_per_second", "end_to_end_images_per_second"}
    assert (
        set(measured)
        == {"machine", "recipe", "precision", "query_share", "schemes", "naive"} | speeds
    )
    assert (list(measured["schemes"]), list(measured["naive"])) == (list(SCHEMES), list(NAIVE))
    for row in (*measured["schemes"].values(), *measured["naive"].values()):
        assert set(row) == ROW
        assert row["images_per_second"] > 0
        assert row["peak_memory_bytes"] is None
    assert measured["schemes"]["std"]["relative_cost"] == 1.0
    assert measured["query_share"] > 0
    assert (measured["machine"]["batch_size"], measured["machine"]["repeats"]) == (8, 1)
    lines = [line.partition(":")[0] for line in said.splitlines() if "images/s" in line]
    assert lines == [*SCHEMES, *(f"naive {name}" for name in NAIVE)]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(measured))
    text = console.export_text()
    for name in (*SCHEMES, "naive std+adv", "views alone", "end to end", "GPU only"):
        assert name in text


def test_some_schemes_alone_whatever_batch_norms_they_need() -> None:
    found = benchmark(
        override(recipes.get("digits-moco-v2"), FIELDS), repeats=1, schemes={"std+cmx", "std+adv"}
    )
    assert set(found["schemes"]) == {"std", "std+adv", "std+cmx"}
    assert found["naive"] == {}


def test_hard_examples_of_no_scheme_have_a_row_of_their_own() -> None:
    found = benchmark(
        override(recipes.get("digits-moco-v2"), FIELDS | {"hard_examples.randaugment.weight": 1}), 1
    )
    assert set(found["own"]) == ROW
    assert "the recipe's own" in list(table(found).columns[0]._cells)


def test_steps_are_those_of_the_trainer() -> None:
    """Clipped, at the rate of the last step, with all layers learning and crops in the trainer's layout."""
    fields = FIELDS | {
        "optimizer.max_gradient_norm": 1e-3,
        "training.channels_last": True,
        "epochs": 4,
    }
    made = override(recipes.get("digits-moco-v2"), fields)
    bench = Bench(made, Machine.of(made))
    seen: list[Any] = []
    optimizer, objective = bench.optimizer.optimizer, bench.objectives["std"]
    before = optimizer.step
    optimizer.step = lambda: seen.extend(
        p.grad.norm() for p in bench.optimizer.parameters if p.grad is not None
    )  # type: ignore[method-assign]
    bench._train(objective, bench._next())
    optimizer.step = before  # type: ignore[method-assign]
    assert seen
    assert max(seen) <= 1.001e-3
    assert 0 < optimizer.param_groups[0]["lr"] <= 1e-6


def test_batches_are_those_of_a_run() -> None:
    fields = {"training.resident_limit_bytes": 0, "training.num_workers": 0}
    made = override(recipes.get("digits-moco-v2"), FIELDS | fields)
    bench = Bench(made, Machine.of(made), only=())
    assert not bench.loader.resident
    for name in ("views", "end to end"):
        bench.work()[name]()


@pytest.mark.parametrize(("per_image", "batch"), [(1e-6, 64), (0.02, 32), (1.0, 4)])
def test_the_batch_is_halved_until_three_rounds_fit(
    monkeypatch: pytest.MonkeyPatch, per_image: float, batch: int
) -> None:
    """Of 23 passes, each five times: 115 · 64 · 0.02 s are too long, 115 · 32 · 0.02 s are 73.6 s."""
    monkeypatch.setattr(module, "timed", lambda work, count: 32 * per_image)
    assert (
        fitted(override(recipes.get("digits-hexa-moco"), FIELDS | {"batch_size": 64})).batch_size
        == batch
    )


def test_rounds_end_in_time_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 40))  # seconds from one look to the next
    monkeypatch.setattr(module, "timed", lambda work, count: 1.0)
    plain = override(recipes.get("digits-moco-v2"), FIELDS)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    assert benchmark(plain, schemes=())["machine"]["repeats"] == 2
    assert benchmark(plain, 4, schemes=())["machine"]["repeats"] == 4


def test_a_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="repeats must be ≥ 1"):
        benchmark(recipes.get("digits-hexa-moco"), repeats=0)
