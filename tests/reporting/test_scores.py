"""Evaluations as tables."""

from __future__ import annotations

import statistics

from hexa.reporting import scores
from hexa.reporting.runs import Run, read_run
from tests.reporting.conftest import MakeRun, run_with


def test_side_by_side_runs(make_run: MakeRun) -> None:
    """Several runs stand side by side, with the best marked."""
    runs = [read_run(make_run(name, seed=seed)) for seed, name in enumerate("abc")]
    grid = scores.evaluations(runs, list("abc"))
    assert grid.header == ("protocol", "data", "metric", "a", "b", "c")
    top1 = [run.results[0]["metrics"]["top1"] for run in runs]
    assert grid.rows[0][3:] == tuple(f"{score:.1f}" for score in top1)
    assert (0, 3 + top1.index(max(top1))) in grid.best
    equal = next(row for row, cells in enumerate(grid.rows) if cells[2] == "top5")
    assert not any(row == equal for row, _ in grid.best)


def test_seed_averages(make_run: MakeRun) -> None:
    """Seeds are averaged if nothing else differs."""
    runs = [read_run(make_run(f"s{seed}", seed=seed)) for seed in range(3)]
    runs.append(read_run(make_run("other", hard_examples={})))
    grid = scores.over_seeds(runs, ["s0", "s1", "s2", "other"])
    assert grid.header[3:] == ("s0 and 2 more", "other")
    top1 = [run.results[0]["metrics"]["top1"] for run in runs[:3]]
    assert grid.rows[0][3] == f"{statistics.mean(top1):.1f} ± {statistics.stdev(top1):.1f}"
    assert scores.over_seeds(runs[2:], ["s2", "other"]).rows == ()


def _two_arms(make_run: MakeRun, scores_of: dict[str, list[float]], images: object) -> list[Run]:
    return [
        run_with(
            make_run(f"{name}{seed}", seed=seed, batch_size=8 * len(name)),
            {
                "protocol": "knn",
                "metrics": {"top1": value},
                "data_facts": {"test": {"images": images, "fingerprint": "x"}},
            },
        )
        for name, values in scores_of.items()
        for seed, value in enumerate(values)
    ]


def test_paired_seed_verdict(make_run: MakeRun) -> None:
    """Two arms are compared in pairs of one seed."""
    runs = _two_arms(make_run, {"a": [50.0, 60.0, 70.0], "bb": [52.0, 62.1, 71.9]}, 100)
    (said,) = scores.verdicts(runs, [run.folder.name for run in runs])
    assert "bb0 and 2 more is better than a0 and 2 more: +2.0 ± 0.2 points" in said
    assert "paired over 3 seeds" in said
    assert scores.verdicts(runs[:3], ["a", "b", "c"]) == []
    (few,) = scores.verdicts([*runs[:3], runs[4]], list("abcd"))
    assert "fewer than two seeds" in few


def agresti_caffo(first: float, second: float, images: int) -> float:
    """Half of the 95 % interval of a difference of two shares in percent, in points."""
    variance = 0.0
    for percent in (first, second):
        share = (percent / 100 * images + 1) / (images + 2)
        variance += share * (1 - share) / (images + 2)
    return 196 * variance**0.5


def test_verdicts_under_attack(make_run: MakeRun) -> None:
    runs = [
        run_with(
            make_run(name, batch_size=8 * len(name)),
            {
                "protocol": "robust",
                "metrics": {"top1": 90.0, "robust@8": robust},
                "options": {"images": 50},
                "data_facts": {"test": {"images": 100, "fingerprint": "x"}},
            },
        )
        for name, robust in (("a", 20.0), ("bb", 60.0))
    ]
    clean, attacked = scores.verdicts(runs, ["a", "bb"])
    assert "over 50 test images" in clean  # the attacked images alone were scored
    half = agresti_caffo(20, 60, 50)
    assert f"bb is better than a: +40.0 ± {half:.1f} points" in attacked
    assert "ε = 8" in attacked
    assert "over 50 test images" in attacked


def test_verdicts_of_one_seed(make_run: MakeRun) -> None:
    runs = _two_arms(make_run, {"a": [50.0], "bb": [52.0]}, 100)
    (said,) = scores.verdicts(runs, ["a", "bb"])
    half = agresti_caffo(50, 52, 100)
    assert f"bb is not shown to differ from a: +2.0 ± {half:.1f} points" in said
    runs = _two_arms(make_run, {"c": [60.0], "dd": [52.0]}, 10_000)
    assert "dd is worse than c: −8.0" in scores.verdicts(runs, ["c", "dd"])[0]
    runs = _two_arms(make_run, {"e": [60.0], "ff": [52.0]}, None)
    assert "number of test images is unknown" in scores.verdicts(runs, ["e", "ff"])[0]
