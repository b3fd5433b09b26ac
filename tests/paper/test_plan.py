"""The plan as a pure function: which runs, how long, which rates."""

from __future__ import annotations

from typing import Any

import pytest

from hexa_paper import plan
from hexa_paper.plan import Job, Plan
from hexa_paper.studies import study
from tests.paper.conftest import costs_for, jobs_of, request_for, stored_run

ABLATION = study("ablation", data="digits")
FULL = study("table1", scale="full")
RATES = (0.02, 0.04, 0.08, 0.16)


def rate_of(job: Job) -> float:
    return job.experiment.optimizer.learning_rate


def test_the_search_is_the_same_for_every_arm_and_scores_no_test_image() -> None:
    jobs = Plan(ABLATION, request_for(epochs=20)).search
    by_arm = {
        arm.key: sorted(rate_of(job) for job in jobs if job.arm == arm) for arm in ABLATION.arms
    }
    assert list(by_arm.values()) == [list(RATES)] * 6
    assert {job.experiment.epochs for job in jobs} == {5}
    assert {measure.holdout for job in jobs for measure in job.measures} == {plan.HOLDOUT}
    assert {job.experiment.seed for job in jobs}.isdisjoint(range(10))


@pytest.mark.parametrize(
    ("best", "otherwise", "diverged", "wanted"),
    [
        ((0.02, 0.04, 0.08, 0.16, 0.04, 0.08), 80.0, 0.0, (0.02, 0.04, 0.08, 0.16, 0.04, 0.08)),
        ((), 70.0, 0.0, (0.02,) * 6),  # of equal ones the smallest
        ((), 5.0, 0.08, (0.08,) * 6),  # those below diverged
    ],
)
def test_each_arm_takes_its_own_best_rate(
    best: Any, otherwise: float, diverged: float, wanted: Any
) -> None:
    whole = Plan(ABLATION, request_for(epochs=4))
    keys = [arm.key for arm in ABLATION.arms]
    high = dict(zip(keys, best, strict=False))
    found = []
    for job in whole.search:
        stored = stored_run(job, top1=90.0 if rate_of(job) == high.get(job.arm.key) else otherwise)
        found.append(
            stored | ({"diverged": "not finite", "results": []} if rate_of(job) < diverged else {})
        )
    rates = whole.best_rates(found)
    assert rates == dict(zip(keys, wanted, strict=True))
    final = whole.final_jobs(rates)
    assert {(job.arm.key, rate_of(job)) for job in final} == set(rates.items())
    assert all(measure.holdout is None for job in final for measure in job.measures)


def test_epochs_at_equal_time_cost_what_the_plain_arm_costs() -> None:
    request = request_for(epochs=20)
    costs = costs_for(ABLATION.arms)
    timed = Plan(ABLATION, request, costs)
    # terms cost a second each: 1, 2, 2, 3, 3, 4 an image, so 20 epochs of one are 10, 10, 7, 7, 5 of the others
    assert [timed.lengths_of(arm) for arm in ABLATION.arms] == [
        [20],
        [20, 10],
        [20, 10],
        [20, 7],
        [20, 7],
        [20, 5],
    ]
    assert len(jobs_of(ABLATION, request, costs)) == 3 * (1 + 5 * 2)
    assert timed.relative_time(ABLATION.arms[3], 7) == pytest.approx(7 * 3 / 20)
    assert all(
        Plan(ABLATION, request_for(epochs=1), costs).lengths_of(arm) == [1] for arm in ABLATION.arms
    )


def test_whatever_decides_a_result_is_in_the_identity() -> None:
    def first(**changes: object) -> Job:
        jobs = jobs_of(ABLATION, request_for(epochs=1, **{"seeds": (0,)} | changes))
        assert len({(job.name, job.record["identity"]) for job in jobs}) == 6
        return jobs[0]

    plain = first()
    assert (first().name, first().record["identity"]) == (plain.name, plain.record["identity"])
    assert first(fields={"batch_size": 64}).name == plain.name
    assert first(fields={"batch_size": 64}).record["identity"] != plain.record["identity"]
    assert first(fields={"training.num_workers": 1}).record["identity"] == plain.record["identity"]
    assert first(seeds=(3,)).name != plain.name
