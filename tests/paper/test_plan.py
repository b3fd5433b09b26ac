"""The plan as a pure function: which runs, how long, which rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hexa import recipes
from hexa.config import UserError
from hexa_paper import plan, storage
from hexa_paper.plan import Job, Plan
from hexa_paper.request import Request, Target
from hexa_paper.studies import PROBE, Study, study
from hexa_paper.work import Work
from tests.paper.conftest import costs_for, jobs_of, request_for, stored_run

ABLATION, FULL = study("ablation", data="digits"), study("table1", scale="full")
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


@pytest.mark.parametrize(("chosen", "data"), [(ABLATION, "digits"), (FULL, "folder:imagenet")])
def test_a_single_rate_needs_no_search_and_none_is_the_recipes_at_the_full_scale(
    chosen: Study, data: str
) -> None:
    given = Plan(chosen, request_for(data, rates=(0.07,)))
    given.check()
    assert given.search == []
    assert {rate_of(job) for job in jobs_of(chosen, given.request)} == {0.07}
    written = {recipes.get(arm.recipe).optimizer.learning_rate for arm in chosen.arms}
    assert set(Plan(chosen, request_for(data)).best_rates([]).values()) == written


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
    whole, keys = Plan(ABLATION, request_for(epochs=4)), [arm.key for arm in ABLATION.arms]
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
    request, costs = request_for(epochs=20), costs_for(ABLATION.arms)
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


def test_learning_curves_train_every_length_anew() -> None:
    curves = study("learning-curves", data="digits")
    jobs = jobs_of(curves, request_for(epochs=8, seeds=(4,)), costs_for(curves.arms))
    assert [job.experiment.epochs for job in jobs] == [8, 6, 4, 2] * 2


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


def test_the_cost_is_that_of_what_is_left(tmp_path: Path) -> None:
    request, costs = request_for(epochs=20, seeds=(0, 1)), costs_for(ABLATION.arms)
    jobs, work = (
        jobs_of(ABLATION, request, costs),
        Work(ABLATION, replace(request, out=tmp_path), costs),
    )
    storage.write(storage.job_file(tmp_path, jobs[0].name), jobs[0].record)
    first, adversarial, *_ = work.lines(jobs)
    assert first == {
        "": "final",
        "arm": "Std",
        "epochs": 20,
        "runs": 2,
        "done": 1,
        "time left": 20 * 1000 * 1.0,
    }
    assert (adversarial["done"], adversarial["time left"]) == (0, 2 * 20 * 1000 * 2.0)
    assert replace(work, costs=None).lines(jobs)[1]["image passes"] == 2 * 20 * 1000 * 2


def test_images_of_several_classes_are_measured_by_svms() -> None:
    several = Target("voc:somewhere", several=True)
    request = Request(several.source, targets=(several, Target("digits")), num_images=1000)
    found = [(measure.protocol, measure.source) for measure in Plan(ABLATION, request).measures()]
    assert found == [("svm", "voc:somewhere"), ("knn", "digits"), (PROBE.protocol, "digits")]
    detection = study("table4", data="digits")
    assert [measure.protocol for measure in Plan(detection, request).measures()] == ["detect"]
    with pytest.raises(UserError, match="needs boxes"):
        Plan(detection, request_for("digits")).measures()
    with pytest.raises(UserError, match="needs one class per image"):
        Plan(study("table5", data="digits"), replace(request, targets=(several,))).measures()


def test_a_field_of_a_hard_example_is_for_the_arms_that_have_it() -> None:
    request = request_for(fields={"hard_examples.adversarial.epsilon": "2"})
    Plan(ABLATION, request).check()
    found = {arm.name: plan.experiment_of(arm, request).hard_examples for arm in ABLATION.arms}
    assert found["Std"] == {}
    assert set(found["Std+Cmx"]) == {"cutmix"}
    assert {hard["adversarial"].epsilon for hard in found.values() if "adversarial" in hard} == {
        2.0
    }  # type: ignore[attr-defined]
    with pytest.raises(
        UserError, match="no arm of ablation has that hard example; there are adversarial, cutmix"
    ):
        Plan(ABLATION, request_for(fields={"hard_examples.mixup.weight": "1"})).check()


def test_published_rates_and_lengths_are_kept() -> None:
    with pytest.raises(
        UserError, match="--rates: table1 at the full scale searches for no rate; give a single one"
    ):
        Plan(FULL, request_for("folder:imagenet", rates=(0.03, 0.06))).check()
    with pytest.raises(
        UserError, match="--epochs: arms of table1 at the full scale have published ones"
    ):
        Plan(FULL, request_for("folder:imagenet", epochs=10)).check()
    Plan(study("ablation", scale="full"), request_for("folder:imagenet", epochs=10)).check()
    Plan(ABLATION, request_for(rates=(0.03, 0.06), epochs=10)).check()
