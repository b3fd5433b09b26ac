"""Results above the published rows of their protocol."""

from __future__ import annotations

from typing import Any

from hexa_paper import counterparts
from tests.reporting.conftest import MakeRun, run_with


def result(
    protocol: str, metrics: dict[str, float], known_as: str, images: int, **more: Any
) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "metrics": metrics,
        "data": known_as,
        "data_facts": {"test": {"known_as": known_as, "images": images, "fingerprint": known_as}},
        "options": {},
        **more,
    }


def test_results_of_several_runs_share_the_table_and_its_columns(make_run: MakeRun) -> None:
    linear = "linear/moco"
    runs = [
        run_with(
            make_run("a", epochs=200),
            result(linear, {"top1": 90.0}, "CIFAR-10", 10_000),
            result(linear, {"top1": 71.0}, "CIFAR-100", 10_000),
            result("knn/k200", {"top1": 50.0}, "CIFAR-10", 10_000),
        ),
        run_with(make_run("b", epochs=3), result(linear, {"top1": 40.0}, "CIFAR-10", 500)),
        run_with(make_run("c"), {"protocol": 7, "metrics": {"top1": 1}, "data_facts": "odd"}),
    ]
    (table,) = counterparts.tables(runs, ["a", "b", "c"])
    assert table.header == ("method", "epochs", "CIFAR-10", "CIFAR-100")
    assert table.own == range(2)
    assert table.rows[0] == ("a (linear/moco)", "200", "90.0", "71.0")
    assert "10,000 test images, here 500" in table.rows[1][0]
    assert table.rows[1][1:] == ("3", "40.0", "–")
    assert ("HEXA-MoCo", "800", "91.5", "73.2") in table.rows  # no recipe of a run repeats it
    assert "InstDisc" not in [row[0] for row in table.rows]  # nothing on CIFAR was published for it


def test_the_row_that_a_recipe_repeats_is_marked(make_run: MakeRun) -> None:
    recipe = "imagenet-hexa-dcluster-200"
    done = run_with(
        make_run("a", recipe=recipe), result("linear/swav", {"top1": 60.0}, "ImageNet", 50_000)
    )
    (table,) = counterparts.tables([done], ["a"])
    assert [row[:2] for row in table.rows if "repeated" in row[0]] == [
        ("HEXA-D (repeated by the recipe)", "200")
    ]
