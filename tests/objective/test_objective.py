"""The terms of an objective: their weights, their gradients, and the random numbers of hard
examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hexa.config import UserError
from hexa.objective import STD, Objective, ObjectiveConfig
from tests.laws.cases import Case, backward

MEAN = ObjectiveConfig(reduction="mean")


def test_hard_example_streams() -> None:
    """Each hard example draws its own random numbers."""
    made = Case("moco", {}, {name: {"kind": "mixup"} for name in ("one", "other")}).examples()
    assert not torch.equal(made["one"].crops[0], made["other"].crops[0])


def test_split_parts_of_few_images() -> None:
    """Parts share no image, also if a share is less than one."""
    rows = ObjectiveConfig(split=True).rows({STD: 1 / 32, "hard": 31 / 32}, 8)
    assert rows == {STD: slice(0, 1), "hard": slice(1, 8)}


def test_hard_and_clean_losses() -> None:
    """Hard examples use the method's loss, and clean ones its clean loss."""
    case = Case(
        "simclr", {}, {"adversarial": {}, "mixed": {"kind": "cutmix", "source": "adversarial"}}
    )
    method = case.build()
    made = case.objective(method).examples(case.batch())
    assert method.clean_loss != method.loss
    assert made[STD].score.loss == method.clean_loss
    assert made["adversarial"].score.loss == made["mixed"].score.loss == method.loss


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_split_step_gradient(reduction: str) -> None:
    """A hard example that changes nothing (a mix of weight 1 with itself) gives the plain step, for
    any share."""
    case = Case("moco", {}, {})
    found = []
    unmixed = {"cutmix": {"alpha": 1e6, "beta": 1e-6, "fraction": 0.25}}  # λ = 1: an empty box
    for hard, config in (
        ({}, ObjectiveConfig(reduction=reduction)),
        (unmixed, ObjectiveConfig(reduction=reduction, split=True, clean_fraction=0.75)),
    ):
        method = case.build()
        backward(Objective(method, Case("moco", {}, hard).hard(), config), case.batch())
        found.append(
            torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
        )
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-9)


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
def test_clean_input_gradient(fields: dict[str, Any], shared: bool) -> None:
    """The clean pass keeps its input gradient only if an attack can share it, because it costs
    memory and time."""
    case = Case("moco", {}, {"adversarial": fields})
    assert (
        next(case.objective(case.build()).losses(case.batch()))
        .parts[STD]
        .example.crops[0]
        .requires_grad
        == shared
    )


def test_term_weight_and_mean() -> None:
    """A term is its weight times the mean of its scores."""
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


def test_stretched_starts() -> None:
    """Starts move with the length of the training, but no hard example starts twice or in the past."""
    case = Case("moco", {}, {"cutmix": {"start": 0.5}, "mixup": {"start": 1.0}})
    objective = case.objective(case.build(), steps=10)

    def first(last: int = 40) -> list[int]:
        return [step for step in range(last) if objective.starting(step)]

    assert first() == [5]
    objective.stretch(3, lambda step: 3 * step)
    assert first() == [15]
    objective.stretch(8, lambda step: step)
    assert first() == [8]
    objective.stretch(9, lambda step: 3 * step)
    assert first() == [8]
    assert "mixup" not in objective.present(39)


def test_terms_out_of_order() -> None:
    """A term without backward, and a commit without a step, are refused with a remedy."""
    case = Case("moco", {}, {"adversarial": {}})
    objective = case.objective(case.build())
    with pytest.raises(UserError, match=r"losses\(batch\)"):
        objective.commit(case.batch())
    with pytest.raises(UserError, match=r"backward\(\)"):
        list(objective.losses(case.batch()))
