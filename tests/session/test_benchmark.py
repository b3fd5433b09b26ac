"""The JSON of the benchmark is what was agreed; figures are this machine's, so only relations by counting hold."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from hexa import cli, recipes
from hexa.experiment import override
from hexa.session import benchmark_plan
from hexa.session.benchmark import NAIVE, SCHEMES, benchmark, table
from hexa.session.benchmark_plan import BUDGET, expected, fit_batch, fit_repeats, plan, units

ROW = {"images_per_second", "relative_cost", "peak_memory_bytes"}


FIELDS = {"batch_size": 8, "method.queue_size": 64, "views.size": 8, "training.precision": "fp32"}
FIELDS |= {"network.widths": [4, 8], "training.device": "cpu"}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return benchmark(override(recipes.get("digits-hexa-moco"), FIELDS), repeats=1)


def test_the_json_holds_what_was_agreed(measured: dict[str, Any]) -> None:
    assert set(json.loads(json.dumps(measured))) == {
        "machine",
        "recipe",
        "precision",
        "query_share",
        "schemes",
        "naive",
        "views_images_per_second",
        "end_to_end_images_per_second",
    }
    assert list(measured["schemes"]) == list(SCHEMES)
    assert list(measured["naive"]) == list(NAIVE)
    for row in (*measured["schemes"].values(), *measured["naive"].values()):
        assert set(row) == ROW
        assert all(value > 0 for value in row.values())
    assert measured["schemes"]["std"]["relative_cost"] == 1.0
    assert measured["precision"] == "fp32"
    assert measured["query_share"] > 0


def test_peak_memory_stays_that_of_the_baseline(measured: dict[str, Any]) -> None:
    schemes = measured["schemes"]
    assert schemes["std+adv+cmx"]["peak_memory_bytes"] <= 1.15 * schemes["std"]["peak_memory_bytes"]


def test_the_table_shows_every_row(measured: dict[str, Any]) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(measured))
    text = console.export_text()
    for name in (*SCHEMES, "naive std+adv", "views alone", "end to end"):
        assert name in text


def test_some_schemes_alone_whatever_batch_norms_they_need() -> None:
    plain = override(recipes.get("digits-moco-v2"), FIELDS)
    found = benchmark(plain, repeats=1, schemes={"std+cmx", "std+adv"})
    assert set(found["schemes"]) == {"std", "std+adv", "std+cmx"}
    assert found["naive"] == {}
    assert "naive" not in str(table(found).columns[0]._cells)


def test_hard_examples_of_no_scheme_have_a_row_of_their_own() -> None:
    views = override(recipes.get("digits-moco-v2"), FIELDS | {"hard_examples.hard_views.weight": 1})
    planned = plan(views, repeats=1)
    found = benchmark(planned.experiment, repeats=1)
    assert set(found["own"]) == ROW
    assert found["own"]["relative_cost"] > 1
    assert "the recipe's own" in list(table(found).columns[0]._cells)


# -- the plan ----------------------------------------------------------------------------------------------------------

WORK = units(list(SCHEMES), query=0.75, own=2)


def test_pieces_of_work_cost_what_counting_says() -> None:
    assert WORK == {
        "std": 1.0,
        "std+adv": 1.75,
        "std+cmx": 1.75,
        "std+adv+cmx": 2.5,
        "std+adv+cmxA": 2.5,
        "std+adv+cmx+cmxA": 3.25,
        "naive std+adv": 2.5,
        "naive std+adv+cmx": 3.25,
        "query": 0.75,
        "views": 0.1,
        "end to end": 2.6,
    }
    assert set(units(["std", "std+cmx"], 0.75, 0)) == {"std", "std+cmx", "query", "views", "end to end"}
    # each twice, the first eight once more, and four rounds; the views' rounds take a third of a second each
    assert expected(10.0, WORK, 4) == pytest.approx(10 * (2 * 21.95 + 18.5 + 4 * 21.95))
    assert expected(1e-6, WORK, 4) == pytest.approx(11 * 4 * 0.3, rel=0.01)


@pytest.mark.parametrize(
    ("per_image", "batch", "repeats"),
    [(1e-6, 256, 5), (0.0025, 256, 3), (0.0137, 32, 5), (0.33, 4, 1)],
)
def test_batch_and_rounds_fit_the_time(per_image: float, batch: int, repeats: int) -> None:
    """The third is ResNet-18 on two cores, the fourth ResNet-50 on photographs there: as little as there is."""
    sizes = [256, 128, 64, 32, 16, 8, 4]
    assert fit_batch(sizes, per_image, WORK, 3) == batch
    assert fit_repeats(batch * per_image, WORK) == repeats
    if per_image < 0.1:
        assert expected(batch * per_image, WORK, repeats) <= BUDGET


@pytest.mark.parametrize(
    ("given", "repeats", "keeps", "batch", "rounds"),
    [({}, None, False, 8, 5), ({}, 2, False, 8, 2), ({"batch_size": 4}, None, True, 4, 5), ({}, 7, True, 64, 7)],
)
def test_what_is_given_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], repeats: int | None, keeps: bool, batch: int, rounds: int
) -> None:
    """On a clock that calls 8 images what fits: whatever is asked of the real one."""
    experiment = override(recipes.get("digits-hexa-moco"), {**FIELDS, "batch_size": 64, **given})
    monkeypatch.setattr(benchmark_plan, "timed", lambda device, work, count: 1e-9)
    monkeypatch.setattr(benchmark_plan, "units", lambda schemes, query, own: dict.fromkeys(schemes, 1.0))
    monkeypatch.setattr(benchmark_plan, "fit_batch", lambda sizes, per_image, work, wanted: 8)
    found = plan(experiment, repeats, keep_batch=keeps)
    assert (found.experiment.batch_size, found.repeats) == (batch, rounds)
    assert f"batch {batch}" in str(found)
    assert ("instead of 64" in str(found)) == (batch == 8)


def test_the_plan_comes_first_then_each_scheme_then_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["benchmark", "digits-hexa-moco", "--repeats", "1"]
    for name, value in FIELDS.items():
        command += [f"--{name}", str(value)]
    assert cli.main([*command, "--json"]) == 0
    out, said = capsys.readouterr()
    assert list(json.loads(out)["schemes"]) == list(SCHEMES)
    lines = [line.partition(":")[0] for line in said.splitlines() if " × the plain step" in line or "round" in line]
    assert lines == ["digits-hexa-moco", *SCHEMES, *(f"naive {name}" for name in NAIVE)]
    assert "6 schemes, 2 of them the naive way too, batch 8, 1 round, about" in said


def test_a_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="repeats must be ≥ 1"):
        benchmark(recipes.get("digits-hexa-moco"), repeats=0)
