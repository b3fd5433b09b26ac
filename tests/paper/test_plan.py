"""Plans: which runs, how long, which rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexa.config import UserError
from hexa_paper import plan
from hexa_paper.plan import Job
from hexa_paper.request import Request
from tests.paper.conftest import finish, plan_of

RATES = (0.02, 0.04, 0.08, 0.16)


def test_search_per_arm() -> None:
    """The search is the same for every arm."""
    ablation = plan_of("ablation", epochs=20)
    jobs = ablation.search
    tried = {
        arm.key: sorted(job.rate for job in jobs if job.arm == arm) for arm in ablation.study.arms
    }
    assert list(tried.values()) == [list(RATES)] * 6
    assert {job.experiment.epochs for job in jobs} == {5}
    found = {measure.holdout for job in jobs for measure in job.measures}
    assert found == {plan.HOLDOUT}
    assert {job.experiment.seed for job in jobs} == {plan.SEARCH_SEED}
    assert plan_of("ablation", epochs=20, rates=(0.03,)).search == []
    assert plan_of("ablation", epochs=3).search == []
    assert len(plan_of("ablation", epochs=3, rates=(0.03, 0.06)).search) == 12


@pytest.mark.parametrize(
    ("best", "otherwise", "diverged", "wanted"),
    [
        ((0.02, 0.04, 0.08, 0.16, 0.04, 0.08), 80.0, 0.0, (0.02, 0.04, 0.08, 0.16, 0.04, 0.08)),
        ((), 70.0, 0.0, (0.02,) * 6),  # of equal ones the smallest
        ((), 5.0, 0.08, (0.08,) * 6),  # those below diverged
    ],
)
def test_best_rates(
    best: Any, otherwise: float, diverged: float, wanted: Any, tmp_path: Path
) -> None:
    ablation = plan_of("ablation", epochs=4, out=tmp_path)
    keys = [arm.key for arm in ablation.study.arms]
    high = dict(zip(keys, best, strict=False))
    for job in ablation.search:
        score = 90.0 if job.rate == high.get(job.arm.key) else otherwise
        finish(job, tmp_path, "not finite" if job.rate < diverged else "", top1=score)
    assert ablation.rates() == dict(zip(keys, wanted, strict=True))
    final = ablation.final()
    found = {(job.arm.key, job.rate) for job in final}
    expected = set(ablation.rates().items())
    assert found == expected
    assert all(measure.holdout is None for job in final for measure in job.measures)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        # passes: 4 of the plain step and 3 of each further term
        (
            "moco",
            [
                [20],
                [20, 11],
                [20, 11],
                [20, 8],
                [20, 8],
                [20, 6],
            ],
        ),
        # each term costs what the plain step does
        (
            "dcluster",
            [
                [20],
                [20, 10],
                [20, 10],
                [20, 7],
                [20, 7],
                [20, 5],
            ],
        ),
    ],
)
def test_equal_time(method: str, wanted: list[list[int]]) -> None:
    ablation = plan_of("ablation", method, epochs=20, seeds=(0,))
    jobs = ablation.final()
    found = [
        [job.experiment.epochs for job in jobs if job.arm == arm] for arm in ablation.study.arms
    ]
    assert found == wanted
    assert plan_of("ablation", method, epochs=1).equal_times(ablation.study.arms[5]) == [1]


def test_six_crop_costs() -> None:
    """Crops of a quarter of the area cost a quarter; half of the batch, or of the epochs, half of a term."""
    tables = plan_of("table1", "dcluster", data="cifar10", epochs=20)
    arms = {arm.key: arm for arm in tables.study.arms}
    views = plan.experiment_of(arms["i-6-crop"], tables.request).views
    (small,) = views.extra_crops
    assert small.size is not None
    ratio = tables.cost(arms["i-6-crop"]) / tables.cost(arms["i"])
    expected = 1 + small.count * (small.size / views.size) ** 2 / 2
    assert ratio == pytest.approx(expected)
    for field in ("fraction", "start"):
        fields = {f"hard_examples.adversarial.{field}": 0.5}
        half = plan_of("ablation", "dcluster", fields=fields)
        found = half.cost(half.study.arms[1]) / half.cost(half.study.arms[0])
        assert found == 1.5


def test_job_names() -> None:
    """Names follow from what decides a result."""

    def first(**changes: Any) -> Job:
        jobs = plan_of("ablation", epochs=1, **{"seeds": (0,)} | changes).final()
        assert len({job.name for job in jobs}) == 6
        return jobs[0]

    plain = first().name
    assert first().name == plain
    assert first(fields={"batch_size": 64}).name != plain
    assert first(fields={"training.num_workers": 1}).name == plain
    prefix = plain.rpartition("-seed")[0]
    assert first(seeds=(3,)).name == f"{prefix}-seed3"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epochs": 0}, "epochs"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"seeds": ()}, "seeds"),
        ({"rates": (0.1, -1.0)}, "rates"),
        ({"fields": {"seed": 3}}, "seed"),
    ],
)
def test_refused_requests(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Request("digits", **options).check()


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("ablation", {"scale": "full", "data": "folder:x", "rates": (0.1, 0.2)}, "--rates"),
        ("table1", {"scale": "full", "data": "folder:x", "epochs": 3}, "--epochs"),
        (
            "table1",
            {"fields": {"hard_examples.cutmix.alpha": 1}},
            "--hard_examples.cutmix.alpha",
        ),
    ],
)
def test_refused_plans(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        plan_of(name, **options).check()
