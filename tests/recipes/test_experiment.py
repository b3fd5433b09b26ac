"""Experiments: overrides, files, and errors that name the field and its nearest neighbour."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hexa import recipes
from hexa.config import ConfigError
from hexa.methods import SimCLRConfig
from hexa.recipes.experiment import override
from hexa_paper.methods.jigsaw import JigsawConfig, PuzzleConfig


def refused(said: str, fields: dict[str, Any], recipe: str = "digits-moco-v2") -> None:
    with pytest.raises(ConfigError, match=said):
        override(recipes.get(recipe), fields)


def test_overrides_by_text_and_by_value() -> None:
    plain = recipes.get("digits-moco-v2")
    changed = override(
        plain, {"method.temperature": "1e-1", "epochs": 3, "training.precision": "fp32"}
    )
    assert changed.method.temperature == 0.1
    assert changed.epochs == 3
    assert changed.training.precision == "fp32"
    assert changed.method.queue_size == plain.method.queue_size
    assert override(plain, {"data": "folder:a: b"}).data == "folder:a: b"


def test_hard_examples_come_and_go_by_naming_them() -> None:
    plain = recipes.get("digits-moco-v2")
    changed = override(plain, {"hard_examples.cutmix.weight": "0.5"})
    assert changed.hard_examples["cutmix"].weight == 0.5
    assert override(changed, {"hard_examples.cutmix": "none"}).hard_examples == {}
    named = {"hard_examples.mine.kind": "cutmix", "hard_examples.mine.per_sample": "true"}
    assert override(plain, named).hard_examples["mine"].per_sample


def test_wrong_values_name_their_field() -> None:
    refused("epochs: should be greater than 0, got -1", {"epochs": "-1"})
    refused(
        r"method\.temperature: should be a valid number, .*got 'warm'",
        {"method.temperature": "warm"},
    )
    refused("seed: should be greater than or equal to 0, got -1", {"seed": -1})


def test_sources_in_a_circle_are_refused() -> None:
    circle = {
        "hard_examples.a.kind": "cutmix",
        "hard_examples.a.source": "b",
        "hard_examples.b.kind": "cutmix",
    }
    refused("each other", {**circle, "hard_examples.b.source": "a"})


def test_another_method_comes_with_its_defaults() -> None:
    changed = override(
        recipes.get("digits-moco-v2"), {"method.temperature": "0.5", "method.name": "simclr"}
    )
    assert changed.method == SimCLRConfig(temperature=0.5)
    nested = override(
        recipes.get("digits-moco-v2"), {"method.name": "jigsaw", "method.puzzle.grid": "2"}
    )
    assert nested.method == JigsawConfig(puzzle=PuzzleConfig(grid=2))
    refused(r"method\.name: .*'simclr'", {"method.name": "simclar"})
    refused(
        r"method\.queue_size: unknown field", {"method.name": "simclr", "method.queue_size": "64"}
    )
    same = override(recipes.get("digits-moco-v2"), {"method.name": "moco", "method.dim": "64"})
    assert same.method == recipes.get("digits-moco-v2").method.model_copy(update={"dim": 64})


ATTACK = {"kind": "adversarial"}
MIX = {"kind": "cutmix"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"x": ATTACK, "y": MIX}, {"y": ATTACK, "x": MIX}, False),
        ({"x": ATTACK, "y": MIX}, {"y": MIX, "x": ATTACK}, True),
    ],
)
def test_the_essence_tells_kinds_apart_and_not_their_order(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    essences = [
        override(recipes.get("digits-moco-v2"), {"hard_examples": of}).essence(set())
        for of in (one, other)
    ]
    assert (
        json.dumps(essences[0], sort_keys=True) == json.dumps(essences[1], sort_keys=True)
    ) == same
