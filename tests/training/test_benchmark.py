"""The JSON of the benchmark is what was agreed; figures are this machine's, so only relations by counting hold."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from hexa import recipes
from hexa.experiment import override
from hexa.training.benchmark import NAIVE, SCHEMES, benchmark, table

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


def test_a_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="at least once"):
        benchmark(recipes.get("digits-hexa-moco"), repeats=0)
