"""What the hard examples of an objective have of their own."""

from __future__ import annotations

import torch

from hexa.core import STD
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
