"""What the hard examples of an objective have of their own."""

from __future__ import annotations

import pytest
import torch

from hexa.core import STD, Objective, ObjectiveConfig
from tests.laws.cases import Case


def test_each_hard_example_draws_its_own_numbers() -> None:
    case = Case("moco", {}, {name: {"kind": "mixup"} for name in ("one", "other")})
    made = case.objective(case.build()).examples(case.batch())
    assert not torch.equal(made["one"].crops[0], made["other"].crops[0])


def test_hard_examples_are_learned_from_by_the_methods_loss_and_clean_ones_by_its_own() -> None:
    case = Case("simclr", {}, {"adversarial": {}, "mixed": {"kind": "cutmix", "source": "adversarial"}})
    method = case.build()
    made = case.objective(method).examples(case.batch())
    assert method.clean_loss != method.loss
    assert made[STD].score.loss == method.clean_loss
    assert made["adversarial"].score.loss == made["mixed"].score.loss == method.loss


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_split_step_has_the_gradient_of_the_mean_over_the_batch(reduction: str) -> None:
    """A hard example that changes nothing (a mix of weight 1 with itself) leaves the plain step, whatever its share."""
    case, found = Case("moco", {}, {}), []
    unmixed = {"cutmix": {"alpha": 1e6, "beta": 1e-6, "fraction": 0.25}}  # λ = 1: an empty box
    for hard, config in (
        ({}, ObjectiveConfig(reduction=reduction)),
        (unmixed, ObjectiveConfig(reduction=reduction, split=True, clean_fraction=0.75)),
    ):
        method = case.build()
        for term in Objective(method, Case("moco", {}, hard).hard(), config).losses(case.batch()):
            term.loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-9)
