"""The terms of a step: what they weigh, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hexa.core import STD
from tests.laws.cases import Case


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


def test_a_term_is_its_weight_times_the_mean_of_its_scores() -> None:
    case = Case("moco", {}, {"adversarial": {"weight": 0.5}, "cutmix": {}})
    objective = case.objective(case.build())
    seen = {}
    for term in objective.losses(case.batch()):
        term.loss.backward()
        ((name, part),) = term.parts.items()
        example = replace(part.example, branch=replace(part.example.branch, update=False))
        mean = example.score(example).mean()
        torch.testing.assert_close(part.loss, mean.detach())
        seen[name] = float(term.loss.detach() / mean.detach())
    assert seen == pytest.approx({"std": 1.0, "adversarial": 0.5, "cutmix": 1.0})


def test_a_weight_of_zero_is_no_term() -> None:
    case = Case("moco", {}, {"adversarial": {"weight": 0.0}, "cutmix": {}})
    terms = []
    for term in case.objective(case.build()).losses(case.batch()):
        term.loss.backward()
        terms += term.parts
    assert terms == ["std", "cutmix"]
