"""What the hard examples of an objective have of their own."""

from __future__ import annotations

import torch

from tests.laws.cases import Case


def test_each_hard_example_draws_its_own_numbers() -> None:
    case = Case("moco", {}, {name: {"kind": "mixup"} for name in ("one", "other")})
    made = case.objective(case.build()).examples(case.batch())
    assert not torch.equal(made["one"].crops[0], made["other"].crops[0])
