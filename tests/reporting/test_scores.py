"""Evaluations as tables, and sentences on their differences."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hexa.reporting import scores, verdicts
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
    """Two arms are compared in pairs of one seed, with the wider interval of seeds and test images."""
    values = {"a": [50.0, 60.0, 70.0], "bb": [51.0, 62.1, 72.9]}
    runs = _two_arms(make_run, values, 1_000_000)
    (said,) = verdicts.verdicts(runs, [run.folder.name for run in runs])
    gains = np.subtract(values["bb"], values["a"])
    reach = stats.t.ppf(0.975, 2)
    half = float(reach * stats.sem(gains))
    assert half > agresti_caffo(60, 62, 1_000_000)
    assert f"bb0 and 2 more is not shown to differ from a0 and 2 more: +2.0 ± {half:.1f} " in said
    assert "over 3 paired seeds" in said
    assert verdicts.verdicts(runs[:3], ["a", "b", "c"]) == []
    (few,) = verdicts.verdicts([*runs[:3], runs[4]], list("abcd"))
    assert "fewer than two seeds" in few


def agresti_caffo(first: float, second: float, images: int) -> float:
    """Half of the 95 % interval of a difference of two shares in percent, in points."""
    variance = 0.0
    for percent in (first, second):
        share = (percent / 100 * images + 1) / (images + 2)
        variance += share * (1 - share) / (images + 2)
    return 196 * variance**0.5


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize(
    ("images", "found"), [(1_000, "is not shown to differ"), (100_000, "is better")]
)
def test_equal_gains_of_seeds(make_run: MakeRun, seeds: int, images: int, found: str) -> None:
    """Gains that agree by chance do not make an interval of width 0."""
    values = [90.0, 91.0, 92.0, 93.0]
    arms = {
        "a": values[:seeds],
        "bb": values[1:][:seeds],
    }
    runs = _two_arms(make_run, arms, images)
    (said,) = verdicts.verdicts(runs, [run.folder.name for run in runs])
    mean = 90 + (seeds - 1) / 2
    half = agresti_caffo(mean, mean + 1, images)
    assert found in said
    assert f"+1.0 ± {half:.1f} points" in said
    assert ("fewer than three seeds" in said) == (seeds < 3)


def test_false_verdicts(make_run: MakeRun) -> None:
    """Two arms of equal accuracy are seldom called different, also if few images are ever misclassified."""
    generator = np.random.default_rng(0)
    arms = {"a": [0.0, 0.0], "bb": [0.0, 0.0]}
    runs = _two_arms(make_run, arms, 360)
    named = 0
    for _ in range(300):
        for run in runs:
            right = 358 + generator.binomial(2, 0.5)
            run.results[0]["metrics"]["top1"] = 100 * right / 360
        (said,) = verdicts.verdicts(runs, list("abcd"))
        named += "is not shown to differ" not in said
    assert named <= 15


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
    clean, attacked = verdicts.verdicts(runs, ["a", "bb"])
    assert "over 50 test images" in clean  # the attacked images alone were scored
    half = agresti_caffo(20, 60, 50)
    assert f"bb is better than a: +40.0 ± {half:.1f} points" in attacked
    assert "ε = 8" in attacked
    assert "over 50 test images" in attacked


def test_verdicts_of_one_seed(make_run: MakeRun) -> None:
    runs = _two_arms(make_run, {"a": [50.0], "bb": [52.0]}, 100)
    (said,) = verdicts.verdicts(runs, ["a", "bb"])
    half = agresti_caffo(50, 52, 100)
    assert f"bb is not shown to differ from a: +2.0 ± {half:.1f} points" in said
    runs = _two_arms(make_run, {"c": [60.0], "dd": [52.0]}, 10_000)
    assert "dd is worse than c: −8.0" in verdicts.verdicts(runs, ["c", "dd"])[0]
    runs = _two_arms(make_run, {"e": [60.0], "ff": [52.0]}, None)
    assert "number of test images is unknown" in verdicts.verdicts(runs, ["e", "ff"])[0]


def _on(data: str, fit: str, test: str, top1: float, **others: Any) -> dict[str, Any]:
    """A result; fit, test: fingerprints, which are the sources' names too."""
    facts = {
        side: {"source": f"folder:{name}", "split": "train", "images": 10_000, "fingerprint": name}
        for side, name in (("fit", fit), ("test", test))
    }
    of_all = {"protocol": "knn", "data": data, "seed": 0, "precision": "fp32"}
    return {**of_all, "metrics": {"top1": top1}, "data_facts": facts, **others}


def _drawn(seed: int, top1: float) -> dict[str, Any]:
    """A result of images that `--holdout` drew."""
    result = _on("folder:all", f"rest{seed}", f"part{seed}", top1, seed=seed)
    for facts in result["data_facts"].values():
        facts |= {"source": "folder:all", "part_of": "all"}
    return result


@pytest.mark.parametrize(("fit", "more"), [("few", {}), ("many", {"precision": "bf16"})])
def test_results_of_other_settings(make_run: MakeRun, fit: str, more: dict[str, str]) -> None:
    """Classifiers that learned from other images, or in other precision, are not compared."""
    runs = [
        run_with(make_run("a"), _on(f"folder:{fit}", fit, "T", 80.0, **more)),
        run_with(make_run("bb", batch_size=8), _on("folder:many", "many", "T", 95.0)),
    ]
    grid = scores.evaluations(runs, ["a", "bb"])
    shown = {(row[1], *row[3:]) for row in grid.rows}
    assert shown == {
        (f"folder:{fit}, scored on folder:T", "80.0", "–"),
        ("folder:many, scored on folder:T", "–", "95.0"),
    }
    assert not grid.best
    (said,) = verdicts.verdicts(runs, ["a", "bb"])
    assert "nothing is compared" in said
    unscored = Run(Path("none"), {"epochs": 7})
    assert verdicts.verdicts([runs[0], unscored], ["a", "none"]) == []


def test_images_of_one_name(make_run: MakeRun) -> None:
    """A folder whose content changed is in two rows of their own, with the fingerprints."""
    before = _on("folder:x", "many", "T1", 80.0)
    after = _on("folder:x", "more", "T1", 90.0)
    run = run_with(make_run(), before, after)
    rows = scores.evaluations([run], ["a"]).rows
    names = [row[1] for row in rows]
    assert names[0] != names[1]
    assert ["many" in name for name in names] == [True, False]


def test_drawn_images(make_run: MakeRun) -> None:
    """Parts that were drawn by different seeds share a row; pairs have the same part."""
    values = {"a": [80.0, 70.0, 90.0], "bb": [85.0, 75.0, 95.0]}
    runs = []
    for name, of_seeds in values.items():
        for seed, top1 in enumerate(of_seeds):
            folder = make_run(f"{name}{seed}", seed=seed, batch_size=8 * len(name))
            runs.append(run_with(folder, _drawn(seed, top1)))
    names = [run.folder.name for run in runs]
    each = scores.evaluations(runs, names)
    (row,) = each.rows
    assert row[1] == "folder:all"
    assert "–" not in row
    assert not each.best  # of different images
    means = scores.over_seeds(runs, names)
    assert means.rows[0][3:] == ("80.0 ± 10.0", "85.0 ± 10.0")
    assert means.best == {(0, 4)}
    (said,) = verdicts.verdicts(runs, names)
    assert "bb0 and 2 more is better than a0 and 2 more: +5.0" in said
    runs[5] = run_with(runs[5].folder, _drawn(1, 20.0))
    (said,) = verdicts.verdicts(runs, names)
    assert "+5.0" in said
    assert "over 2 paired seeds" in said
    (said,) = verdicts.verdicts([runs[0], runs[4]], ["a", "bb"])
    assert "nothing is compared" in said


def test_kept_evaluations(make_run: MakeRun) -> None:
    """A later evaluation replaces one of the same images and precision only, whatever the source was called."""
    first = _on("folder:many", "many", "T1", 80.0)
    results = [
        first,
        _on("folder:many", "many", "T2", 60.0),
        _on("folder:many", "many", "T1", 81.0, precision="bf16"),
        _on("folder:./many", "many", "T1", 82.0),
    ]
    run = run_with(make_run(), *results)
    assert scores.newest(run) == [results[3], *results[1:3]]
    rows = scores.evaluations([run], ["a"]).rows
    shown = [(row[0], row[1].rpartition(" ")[2], row[3]) for row in rows]
    assert shown == [
        ("knn", "folder:T1", "82.0"),
        ("knn", "folder:T2", "60.0"),
        ("knn in bf16", "folder:T1", "81.0"),
    ]


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (("x", "test"), "x"),
        (("x", "train"), "x"),
        (("x", "extra"), "x, scored on x#extra"),
        (("y", "train"), "x, scored on y"),
    ],
)
def test_names_of_data(test: tuple[str, str], said: str) -> None:
    source, split = test
    facts = {
        "fit": {"source": "x", "split": "train"},
        "test": {"source": source, "split": split, "known_as": "CIFAR-10"},
    }
    result = {"data": "x", "data_facts": facts}
    assert scores.spelled(result) == said
    assert scores.data(result) == (said if "scored" in said else "CIFAR-10")
    assert scores.data({"data": "x", "data_facts": []}) == "x"


def _evaluations(values: list[float], **others: Any) -> list[dict[str, Any]]:
    """Results of one training on the same images, by evaluation seeds."""
    return [_on("x", "F", "T", top1, seed=seed, **others) for seed, top1 in enumerate(values)]


@pytest.mark.parametrize("values", [[60.0, 50.0], [50.0, 60.0]])
def test_evaluation_seeds(make_run: MakeRun, values: list[float]) -> None:
    """Evaluations of one training are averaged, in any order."""
    runs = [
        run_with(make_run("a"), *_evaluations(values)),
        run_with(make_run("bb", batch_size=8), *_evaluations([60.0])),
    ]
    (said,) = verdicts.verdicts(runs, ["a", "bb"])
    assert "bb is better than a: +5.0" in said


@pytest.mark.parametrize(
    ("options", "interval", "found"),
    [
        ({"shots": [1], "draws": 1}, None, "labels were drawn once"),
        ({"percent": 1.0, "draws": 1, "list_file": None}, None, "labels were drawn once"),
        ({"percent": 1.0, "draws": 1, "list_file": "1percent.txt"}, None, "better than a: +6.0"),
        ({"percent": 100.0, "draws": 1, "list_file": None}, None, "better than a: +6.0"),
        ({"shots": [1], "draws": 5}, 5.0, "not shown to differ"),
        ({"shots": [1], "draws": 5}, 1.0, "better than a: +6.0"),
        ({"shots": [1], "draws": 5}, "much", "labels were drawn once"),  # a doctored file
    ],
)
def test_drawn_labels(
    make_run: MakeRun, options: dict[str, Any], interval: float | str | None, found: str
) -> None:
    """The chance of drawn labels is part of the interval."""
    runs = []
    for name, top1 in (("a", 50.0), ("bb", 56.0)):
        (result,) = _evaluations([top1], options=options)
        if interval is not None:
            result["metrics"]["top1_interval"] = interval
        runs.append(run_with(make_run(name, batch_size=8 * len(name)), result))
    (said,) = verdicts.verdicts(runs, ["a", "bb"])
    assert found in said
    if isinstance(interval, float):
        half = np.hypot(agresti_caffo(50, 56, 10_000), np.sqrt(2) * interval)
        assert f"± {half:.1f} points" in said
