"""What the terms of a step share, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexa.core import STD
from tests.laws.cases import Case


def test_each_hard_example_draws_its_own_numbers() -> None:
    case = Case("moco", {}, {name: {"kind": "mixup"} for name in ("one", "other")})
    made = case.objective(case.build()).examples(case.batch())
    assert not torch.equal(made["one"].crops[0], made["other"].crops[0])


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ({}, True),
        ({"branch": "main"}, True),
        ({"generation": "aux_train"}, False),
        ({"generation": "main_eval"}, False),
        ({"random_start": True}, False),
        ({"weight": 0.0}, False),
    ],
    ids=str,
)
def test_the_clean_pass_leaves_its_input_gradient_only_where_an_attack_takes_it(
    fields: dict[str, Any], shared: bool
) -> None:
    """It costs memory and a convolution's backward pass."""
    case = Case("moco", {}, {"adversarial": fields})
    clean = next(case.objective(case.build()).losses(case.batch()))
    assert clean.parts[STD].example.crops[0].requires_grad == shared
