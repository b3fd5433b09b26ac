"""The pre-registered test of the paper's claim: choice of rates, order of units, contrasts and reading."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

FOLDER = Path(__file__).parents[2] / "benchmarks" / "claim"
sys.path.insert(0, str(FOLDER))
try:
    import plan
    import report
    import run
finally:
    sys.path.remove(str(FOLDER))

HERE = "one kind"
ELSEWHERE = "another kind"


def made(
    unit: plan.Unit, knn: float | None = 50.0, kind: str = HERE, time: str = "1", **scores: float
) -> plan.Row:
    row: plan.Row = unit._asdict() | {"kind": kind, "time": time}
    if unit.step == "dose":
        return row | {"epsilon": 3.0}
    return row | ({"diverged": "loss"} if knn is None else {"scores": {"knn": knn} | scores})


def carried_out(knn: dict[tuple[str, str, float, int], float] | None = None) -> list[plan.Row]:
    """Rows of the whole plan, in its order; the score of a unit is 50, or that of `knn`."""
    rows: list[plan.Row] = []
    known = knn or {}
    while unit := next((u for u in plan.units(rows) if not plan.is_made(u, rows, HERE)), None):
        value = known.get(tuple(unit), 50.0)
        rows.append(
            made(
                unit,
                value,
                time=f"{len(rows):04d}",
                labels500=value,
            )
        )
    return rows


def test_attack_dose() -> None:
    found = plan.dose_of(
        {
            1.0: 0.5,
            2.0: 1.1,
            3.0: 1.5,
        }
    )
    assert found == 2.0
    assert plan.dose_of({1.0: 0.5, 8.0: 0.9}) == 8.0
    assert plan.DOSES[0] == 1.0
    assert plan.DOSES[-1] == 8.0


def test_adjusted_p_values() -> None:
    found = plan.holm([0.01, 0.04])
    assert found == pytest.approx([0.02, 0.04])
    assert plan.holm([0.04, 0.03]) == pytest.approx([0.06, 0.06])
    assert plan.holm([0.9, 0.2, 0.01]) == pytest.approx([0.9, 0.4, 0.03])


def test_paired_interval_and_p_value() -> None:
    """The interval and the p-value agree with scipy."""
    a, b = np.random.default_rng(0).normal(size=(2, 5))
    expected = stats.ttest_rel(a, b)
    contrast = plan.Contrast(tuple((a - b).tolist()))
    assert contrast.p == pytest.approx(expected.pvalue)
    for level in (0.9, 0.95, 0.975):
        assert contrast.interval(level) == pytest.approx(expected.confidence_interval(level))
    found = plan.Contrast((1.0,)).interval()
    assert found == (-math.inf, math.inf)
    assert plan.Contrast((1.0,)).p == 1.0
    assert plan.Contrast((0.0, 0.0)).p == 1.0


def test_holm_interval_duality() -> None:
    """Each interval excludes zero exactly if Holm rejects."""
    generator = np.random.default_rng(1)
    for _ in range(300):
        pair = []
        for _ in range(2):
            differences = generator.normal(0.6, 0.5, 5)
            pair.append(plan.Contrast(tuple(differences.tolist())))
        adjusted = plan.holm([one.p for one in pair])
        excluded = [low > 0 or high < 0 for low, high in plan.holm_intervals(pair)]
        assert excluded == [p < 0.05 for p in adjusted]


GAIN = (1.5, 1.4, 1.6, 1.5, 1.5)


@pytest.mark.parametrize(
    ("h1", "h2", "expected"),
    [
        (GAIN, (1.0, 1.2, 0.9, 1.1, 1.0), ("shown",)),
        (GAIN, (0.1, 0.0, 0.2, -0.1, 0.1), ("step size", "refuted at this scale")),
        (GAIN, (0.3, 0.5, 0.1, 0.7, -0.1), ("step size",)),
        ((-0.5, 0.4, 0.1, 0.0, 0.2), (-1.0, -1.1, -0.9, -1.0, -1.2), ("refuted at this scale",)),
        ((-2.0, 2.0, 1.0, -1.0, 3.0), (3.0, -2.0, 1.0, 0.0, 2.0), ("open",)),
        ((1.0,), (1.0,), ("open",)),
    ],
)
def test_hypothesis_reading(
    h1: tuple[float, ...], h2: tuple[float, ...], expected: tuple[str, ...]
) -> None:
    found = plan.reading(plan.Contrast(h1), plan.Contrast(h2))
    assert found == expected


def test_unit_order_and_number() -> None:
    rows = carried_out()
    order = list(dict.fromkeys(row["step"] for row in rows))
    expected = ["rates", "dose", *list(plan.STEPS)[1:]]
    assert order == expected
    count = {name: sum(row["step"] == name for row in rows) for name in order}
    # with equal scores the smallest rate wins everywhere, so every grid is extended, and then halved
    assert count == {
        "rates": 4 + 5 * 3 + 6,
        "dose": 1,
        "small-rates": 10,
        "small": 25,
        "long-rates": 10,
        "long": 21,
        "deepcluster": 24,
        "short": 18,
    }
    primary = [row["arm"] for row in rows if row["step"] == "small"][:15]
    assert set(primary) == {"plain", "adversarial-1", "placebo-aux"}
    assert plan.rates(rows, "short")["plain"] == 0.015
    assert plan.rates(rows, "long")["plain"] == 0.0075


def test_common_rate_training() -> None:
    """The common rate is trained too if it is not an arm's own."""
    scores = {
        ("rates", "plain", 0.06, 100): 60.0,
        ("rates", "adversarial-1", 0.12, 100): 55.0,
    }
    rows = carried_out(scores)
    third_seed = [row for row in rows if row["step"] == "short" and row["seed"] == 2]
    tested = {(row["arm"], row["rate"]) for row in third_seed}
    assert ("plain", 0.06) in tested
    assert ("adversarial-1", 0.12) in tested
    assert ("adversarial-1", 0.06) in tested
    first, second = plan.hypotheses(rows, "short")["H1"]
    assert first == ("adversarial-1", 0.06)
    assert second == ("plain", 0.06)


def test_winning_edge() -> None:
    """A choice of step 4 doubles the largest rate while it wins."""
    scores = {("small-rates", "plain", rate, 100): 50 + rate for rate in (0.015, 0.03, 0.06)}
    tried = plan.tried(carried_out(scores), "small-rates", "plain")
    assert list(tried) == [0.015, 0.0075, 0.03, 0.06, 0.12]


def test_unit_continuation_order() -> None:
    """Units continue after any row, in the same order."""
    rows = carried_out()
    names = [plan.unit_of(row) for row in rows]
    for count in range(0, len(rows), 7):
        following = next(u for u in plan.units(rows[:count]) if u not in names[:count])
        assert following == names[count]
    assert all(plan.is_made(unit, rows, HERE) for unit in plan.units(rows))


def test_futility_stop() -> None:
    """Futility is declared only after three negative differences."""
    scores = {("small", "placebo-aux", 0.0075, seed): 51.0 for seed in range(5)}
    seeds = {row["seed"] for row in carried_out(scores) if row["step"] == "small"}
    assert seeds == {0, 1, 2}
    scores[("small", "placebo-aux", 0.0075, 1)] = 49.0
    seeds = {row["seed"] for row in carried_out(scores) if row["step"] == "small"}
    assert seeds == {0, 1, 2, 3, 4}


def test_machine_pairs() -> None:
    """Pairs are of one kind of machine; of two rows the older counts."""

    def unit(arm: str, seed: int) -> plan.Unit:
        return plan.Unit("small", arm, 0.06, seed)

    rows = [
        made(unit("plain", 0), 50.0, HERE, "3"),
        made(unit("adversarial-1", 0), 53.0, ELSEWHERE, "1"),
        made(unit("adversarial-1", 1), 52.0, HERE, "4"),
        made(unit("plain", 1), 51.0, HERE, "5"),
        made(unit("adversarial-1", 1), 58.0, ELSEWHERE, "2"),
        made(unit("plain", 1), 51.0, ELSEWHERE, "6"),
        made(unit("plain", 2), None, HERE, "7"),
        made(unit("adversarial-1", 2), 51.0, HERE, "8"),
    ]
    sides = ("adversarial-1", 0.06), ("plain", 0.06)
    assert plan.differences(rows, "small", *sides) == {1: 7.0}


def test_other_machine_seed() -> None:
    """A test seed that began on another kind of machine is held back."""
    begun = [made(plan.Unit("small", "plain", 0.06, 0))]
    other = plan.Unit("small", "adversarial-1", 0.06, 0)
    assert plan.held_back(other, begun, ELSEWHERE)
    assert not plan.held_back(other, begun, HERE)
    assert not plan.held_back(other._replace(seed=1), begun, ELSEWHERE)
    chosen = [made(plan.Unit("rates", "plain", 0.06, 100))]
    assert not plan.held_back(plan.Unit("rates", "plain", 0.12, 100), chosen, ELSEWHERE)
    assert plan.is_made(plan.unit_of(chosen[0]), chosen, ELSEWHERE)
    assert not plan.is_made(plan.unit_of(begun[0]), begun, ELSEWHERE)


def test_page_and_plot_rebuild(tmp_path: Path) -> None:
    """There is a page only with rows of the main test; page and plot are rebuilt without a change."""
    generator = np.random.default_rng(0)
    rows = carried_out()
    report.write([row for row in rows if row["step"] in ("rates", "dose", "small-rates")], tmp_path)
    assert not list(tmp_path.iterdir())
    for row in rows:
        step = plan.STEPS.get(row["step"])
        if step is not None and step.tests:
            marks = [f"knn@{mark}" for mark in step.marks]
            names = [*report.OUTCOMES, *marks]
            row["scores"] = {name: float(generator.normal(50, 1)) for name in names}
    before: dict[str, bytes] = {}
    for _ in range(2):
        report.write(rows, tmp_path)
        files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert files.keys() == {report.PAGE, report.PLOT}
        assert before in ({}, files)
        before = files
    text = before[report.PAGE].decode()
    words = [word for word in text.split() if any(map(str.isalpha, word))]
    assert len(words) <= 600
    for name, said in (("adversarial-1", "worse"), ("plain", "better")):
        for row in rows:
            row["scores"] = {"knn": 40 if row["arm"] == name else 50}
        report.write(rows, tmp_path)
        assert f" Against the plain method: {said}, " in (tmp_path / report.PAGE).read_text()


def test_seed_on_two_machines() -> None:
    """A seed that two kinds of machine made counts once, by its older row."""
    rows = carried_out()
    for row in [row for row in rows if row["step"] == "small" and row["seed"] == 1]:
        rows.append(row | {"kind": ELSEWHERE, "time": "9999", "scores": {"knn": 90.0}})
    cells = list(report.others(rows, ["small"]))[2].split(" | ")
    assert cells[3:5] == ["50.0", "5"]


def test_published_page(tmp_path: Path) -> None:
    """The page of the documentation is what the stored rows give, and its plot is there."""
    report.write(run.stored(FOLDER / "rows"), tmp_path)
    docs = FOLDER.parents[1] / "docs"
    page = tmp_path / report.PAGE
    assert page.exists() == (docs / report.PAGE).exists() == (docs / report.PLOT).exists()
    if page.exists():
        assert page.read_text() == (docs / report.PAGE).read_text()


def test_held_out_images(tmp_path: Path) -> None:
    """Held-out images are not trained on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    original = tmp_path / "original"
    original.mkdir()
    labels = [number % 3 for number in range(210)]
    for split, first in (("train", 0), ("test", 1000)):
        images = [{"bytes": str(first + number).encode(), "path": None} for number in range(210)]
        pq.write_table(pa.table({"img": images, "label": labels}), original / f"{split}.parquet")
    named = run.data_sets(f"parquet:{original}", tmp_path / "made", smoke=True)

    def images_of(name: str, split: str) -> set[bytes]:
        _, _, folder = named[name].partition(":")
        table = pq.read_table(Path(folder) / f"{split}.parquet")
        return {image["bytes"] for image in table["img"].to_pylist()}

    held = images_of("tune", "test")
    everything = images_of("all", "train")
    assert len(held) == 3 * 10
    assert held | images_of("tune", "train") == everything
    assert not held & images_of("tune", "train")
    assert not held & images_of("small", "train")
    assert not images_of("all", "test") & everything
