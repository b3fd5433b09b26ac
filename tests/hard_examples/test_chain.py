"""Chains against their steps made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hexa.config import ConfigError
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.chain import Chain
from hexa.hard_examples.cutmix import CutMix
from hexa.objective import STD
from hexa.recipes import get
from hexa.recipes.experiment import override
from tests.laws.cases import Case, backward, count_passes


def test_the_default_attacks_cut_mixed_views_by_both_pseudo_labels() -> None:
    case = Case("simclr", {"bn_groups": 1}, {"chain": {}})
    objective = case.objective(case.build())
    clean, made = (objective.examples(case.batch())[name] for name in (STD, "chain"))
    stream = case.batch().stream.child("hard example", "chain")
    mixed = replace(CutMix()(clean, stream.child(0)), score=objective.score)
    for a, b, before in zip(
        made.crops, Adversarial()(mixed, stream.child(1)).crops, mixed.crops, strict=True
    ):
        assert torch.equal(a, b)
        assert not torch.equal(a, before)
    assert len(made.mixture) == 2
    assert made.branch.name == "aux"
    assert made.facts.keys() == {"lambda", "perturbation", "zero_gradient"}


def test_a_chain_costs_the_gradient_of_what_it_attacks_and_its_own_pass() -> None:
    case = Case("moco", {}, {"chain": {}})
    method = case.build()
    passes = count_passes(method.query, lambda: backward(case.objective(method), case.batch()))
    assert passes == 3  # clean, attack, chain


def test_a_chain_that_begins_with_an_attack_shares_the_clean_gradient() -> None:
    config = Chain.model_validate({"steps": [{"kind": "adversarial"}, {"kind": "cutmix"}]})
    assert config.gradient_of_source.name == "main"
    assert Chain().gradient_of_source is None
    assert config.branches() == ("aux", "main")


def test_steps_are_written_as_a_list() -> None:
    experiment = override(
        get("digits-moco-v2"), {"hard_examples.chain.steps": "[{kind: mixup}, {kind: vat}]"}
    )
    assert [step.kind for step in experiment.hard_examples["chain"].steps] == ["mixup", "vat"]
    with pytest.raises(
        ConfigError, match=r"hard_examples\.chain\.steps.*a list of hard examples is needed"
    ):
        override(get("digits-moco-v2"), {"hard_examples.chain.steps": "1"})
    with pytest.raises(
        ConfigError,
        match=r"hard_examples\.chain\.steps.*unknown kind 'mixop'; did you mean 'mixup'",
    ):
        override(get("digits-moco-v2"), {"hard_examples.chain.steps": "[{kind: mixop}]"})
