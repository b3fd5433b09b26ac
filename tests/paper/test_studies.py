"""The experiments against the paper's description of them."""

from __future__ import annotations

import pytest

from hexa.evaluation import protocols
from hexa.recipes.experiment import Experiment
from hexa_paper import plan, studies
from hexa_paper.request import Request
from hexa_paper.schemes import SCHEMES
from hexa_paper.studies import METHODS, TABLES
from tests.paper.conftest import plan_of

#: The methods of the paper's own; the others stand in tables.
OWN = [name for name, method in METHODS.items() if "ablation" in method]
TERMS = {
    "Std": set(),
    "Std+Adv": {"Adv"},
    "Std+Cmx": {"Cmx"},
    "Std+Adv+Cmx": {"Adv", "Cmx"},
    "Std+Adv+CmxA": {"Adv", "CmxA"},
    "Std+Adv+Cmx+CmxA": {"Adv", "Cmx", "CmxA"},
}


def terms_of(experiment: Experiment) -> set[str]:
    """Return the loss terms of an experiment in the paper's words, by kind and source."""
    words = {
        ("adversarial", "std"): "Adv",
        ("cutmix", "std"): "Cmx",
        ("cutmix", "adversarial"): "CmxA",
    }
    return {
        words[hard.kind, hard.source]
        for hard in experiment.hard_examples.values()
        if hard.weight > 0
    }


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize(
    ("scale", "data"), [("small", "digits"), ("small", "cifar10"), ("full", "cifar10")]
)
def test_ablation_schemes(method: str, scale: str, data: str) -> None:
    """The ablation has the six schemes."""
    arms = studies.study("ablation", method=method, scale=scale, data=data).arms
    made = {arm.name: plan.experiment_of(arm, Request(data)) for arm in arms}
    assert {name: terms_of(experiment) for name, experiment in made.items()} == TERMS
    assert {
        hard.weight for experiment in made.values() for hard in experiment.hard_examples.values()
    } == {1.0}
    if scale == "small":  # arms differ by their hard examples alone
        rest = [experiment.model_dump(exclude={"hard_examples"}) for experiment in made.values()]
        assert all(fields == rest[0] for fields in rest)
        assert rest[0]["objective"]["reduction"] == "mean"
    assert len({experiment.method.name for experiment in made.values()}) == 1


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(
            (name, method)
            for name in studies.EXPERIMENTS
            for method in METHODS
            if name != "robust" and (method in OWN or name in TABLES)
        ),
        ("robust", None),
    ],
)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_experiment_plans(name: str, method: str | None, scale: str) -> None:
    """Every experiment can be planned."""
    data = "folder:imagenet" if scale == "full" else "cifar10"
    whole = plan_of(name, method, scale, data, seeds=(0, 1), epochs=None)
    study = whole.study
    jobs = whole.final()
    lengths = sum(
        1 + len(set(whole.equal_times(arm)) - {whole.epochs_of(arm)}) for arm in study.arms
    )
    assert len({job.name for job in jobs}) == len(jobs) == 2 * lengths
    known = protocols.every()
    for measure in (measure for measure in study.measures if measure.protocol in known):
        known[measure.protocol].options(
            measure.options.get("preset"),
            {k: v for k, v in measure.options.items() if k != "preset"},
        )
    for arm in study.arms:
        if arm.epochs != 0:
            assert (
                terms_of(plan.experiment_of(arm, whole.request)) == TERMS[SCHEMES[arm.scheme].title]
            )


def test_moco_v1_small_recipe() -> None:
    """A linear head, τ 0.07, colours always changed and no blur (He et al. 2020)."""
    arms = studies.arms_of("compared", "cifar")
    (arm,) = [arm for arm in arms if arm.published == ("MoCo", 200)]
    made = plan.experiment_of(arm, Request("cifar10"))
    method = made.method.model_dump()
    assert method["name"] == "moco"
    assert method["head"] == "linear"
    assert method["temperature"] == 0.07
    views = made.views
    assert views.size == 32
    assert views.hue == 0.4
    assert views.jitter_probability == 1.0
    assert views.blur_probability == 0.0
    assert made.network.name == "small-resnet"
