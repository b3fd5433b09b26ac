"""The terms of an objective: what they weigh, what they leave behind, and what hard examples have of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hexa.config import ConfigError
from hexa.objective import STD, Objective, ObjectiveConfig
from tests.laws.cases import Case, backward

MEAN = ObjectiveConfig(reduction="mean")


def test_each_hard_example_draws_its_own_numbers() -> None:
    made = Case("moco", {}, {name: {"kind": "mixup"} for name in ("one", "other")}).examples()
    assert not torch.equal(made["one"].crops[0], made["other"].crops[0])


def test_hard_examples_are_learned_from_by_the_methods_loss_and_clean_ones_by_its_own() -> None:
    case = Case(
        "simclr", {}, {"adversarial": {}, "mixed": {"kind": "cutmix", "source": "adversarial"}}
    )
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
def test_the_clean_pass_leaves_its_input_gradient_only_where_an_attack_takes_it(
    fields: dict[str, Any], shared: bool
) -> None:
    """It costs memory and a convolution's backward pass."""
    case = Case("moco", {}, {"adversarial": fields})
    assert (
        next(case.objective(case.build()).losses(case.batch()))
        .parts[STD]
        .example.crops[0]
        .requires_grad
        == shared
    )


def test_a_weight_on_its_way_moves_the_terms_share_at_an_even_pace() -> None:
    """DynACL: (2 − w) · L_std / 2 + w · L_adv / 2 with w = 1 + ⅔ · t / T."""
    case = Case("moco", {}, {"adversarial": {"final_weight": 5.0}, "cutmix": {"weight": 0.5}})
    objective = Objective(case.build(), {"adversarial": case.hard()["adversarial"]}, MEAN, steps=12)
    for step in range(12):
        w = 1 + 2 / 3 * step / 12
        assert objective.weights(step) == pytest.approx({"std": (2 - w) / 2, "adversarial": w / 2})
    assert case.objective(case.build(), steps=12).weights(11)["cutmix"] == 0.5
    assert objective.weights() == {"std": 0.5, "adversarial": 0.5}
    assert case.hard()["adversarial"].but(weight=0.0).at(0.5).weight == 0
    with pytest.raises(ValueError, match="weight 0 leaves it out"):
        Case("moco", {}, {"adversarial": {"weight": 0, "final_weight": 1.0}}).hard()


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


@pytest.mark.parametrize("hard", [{"random_start": True}, {}], ids=str)
def test_without_a_clean_term_only_hard_examples_teach(hard: dict[str, Any]) -> None:
    """Gradients are those of their terms alone, statistics those of their passes; pseudo-labels are made as always."""
    case, states, gradients = (
        Case("simclr", {}, {"adversarial": {"branch": "main", **hard}}),
        [],
        [],
    )
    for config, shared in ((ObjectiveConfig(clean_weight=0.0), True), (ObjectiveConfig(), False)):
        method = case.build()
        objective = Objective(method, case.hard(), config, share_gradients=shared)
        terms = []
        for term in objective.losses(case.batch()):
            if STD in term.parts:
                method.zero_grad()
                term.loss.backward()  # its inputs' gradient; that of weights is put aside
                method.zero_grad()
            else:
                term.loss.backward()
            terms += term.parts
        gradients.append(
            torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])
        )
        states.append(terms)
        objective.commit(case.batch())
    assert states == [["adversarial"], [STD, "adversarial"]]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-9)


def test_the_clean_pass_without_a_term_moves_no_statistics() -> None:
    case = Case("simclr", {}, {"adversarial": {"generation": "aux_eval"}})
    method = case.build()
    before = {
        name: value.clone()
        for name, value in method.named_buffers()
        if "running" in name and "aux" not in name
    }
    backward(Objective(method, case.hard(), ObjectiveConfig(clean_weight=0.0)), case.batch())
    assert all(torch.equal(value, method.get_buffer(name)) for name, value in before.items())


def test_the_clean_term_weighs_what_it_is_given() -> None:
    case = Case("moco", {}, {"adversarial": {"start": 0.5, "weight": 3.0}})
    made = Objective(
        case.build(), case.hard(), ObjectiveConfig(clean_weight=2.0, reduction="mean"), steps=4
    )
    assert made.weights(0) == {STD: 1.0}  # alone
    assert made.weights(2) == {STD: 0.4, "adversarial": 0.6}
    with pytest.raises(ConfigError, match="there from the first step; leave out adversarial"):
        Objective(case.build(), case.hard(), ObjectiveConfig(clean_weight=0.0))
