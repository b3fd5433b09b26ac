"""Experiments: overrides, files, and errors that name the field and its nearest neighbour."""

from __future__ import annotations

from typing import Any

import pytest

from hexa import recipes
from hexa.config import ConfigError
from hexa.hard_examples import CutMix
from hexa.methods import SimCLRConfig
from hexa.objective import Objective
from hexa.recipes.experiment import override
from hexa_paper.methods.jigsaw import JigsawConfig, PuzzleConfig
from tests.laws.cases import Case


def refused(said: str, fields: dict[str, Any], recipe: str = "digits-moco-v2") -> None:
    with pytest.raises(ConfigError, match=said):
        override(recipes.get(recipe), fields)


def test_override_text_and_values() -> None:
    plain = recipes.get("digits-moco-v2")
    changed = override(
        plain, {"method.temperature": "1e-1", "epochs": 3, "training.precision": "fp32"}
    )
    assert changed.method.temperature == 0.1
    assert changed.epochs == 3
    assert changed.training.precision == "fp32"
    assert changed.method.queue_size == plain.method.queue_size
    assert override(plain, {"data": "folder:a: b"}).data == "folder:a: b"


def test_hard_example_overrides() -> None:
    """Hard examples come and go by naming them."""
    plain = recipes.get("digits-moco-v2")
    changed = override(plain, {"hard_examples.cutmix.weight": "0.5"})
    assert changed.hard_examples["cutmix"].weight == 0.5
    assert override(changed, {"hard_examples.cutmix": "none"}).hard_examples == {}
    named = {"hard_examples.mine.kind": "cutmix", "hard_examples.mine.per_sample": "true"}
    assert override(plain, named).hard_examples["mine"].per_sample


def test_wrong_value_fields() -> None:
    """Wrong values name their field."""
    refused("epochs: should be greater than 0, got -1", {"epochs": "-1"})
    refused(
        r"method\.temperature: should be a valid number, .*got 'warm'",
        {"method.temperature": "warm"},
    )
    refused("seed: should be greater than or equal to 0, got -1", {"seed": -1})


def test_circular_sources() -> None:
    """Sources in a circle are refused."""
    circle = {
        "hard_examples.a.kind": "cutmix",
        "hard_examples.a.source": "b",
        "hard_examples.b.kind": "cutmix",
    }
    refused("cycle", {**circle, "hard_examples.b.source": "a"})


@pytest.mark.parametrize("name", ["std", "total"])
def test_taken_names(name: str) -> None:
    """A hard example cannot have the name of another term in the log."""
    refused(rf"hard_examples\.{name}: ", {f"hard_examples.{name}.kind": "cutmix"})
    with pytest.raises(ConfigError, match=name):
        Objective(Case("moco").build(), {name: CutMix()})


def test_method_change_defaults() -> None:
    """Another method comes with its defaults."""
    plain = recipes.get("digits-moco-v2")
    changed = override(plain, {"method.temperature": "0.5", "method.name": "simclr"})
    assert changed.method == SimCLRConfig(temperature=0.5)
    nested = override(plain, {"method.name": "jigsaw", "method.puzzle.grid": "2"})
    assert nested.method == JigsawConfig(puzzle=PuzzleConfig(grid=2))
    refused(r"method\.name: .*'simclr'", {"method.name": "simclar"})
    refused(
        r"method\.queue_size: unknown field", {"method.name": "simclr", "method.queue_size": "64"}
    )
    same = override(plain, {"method.name": "moco", "method.dim": "64"})
    assert same.method == plain.method.model_copy(update={"dim": 64})


def test_essence_kinds_and_order() -> None:
    """The essence distinguishes kinds, and not their order."""

    def essence(**kinds: str) -> list[Any]:
        fields = {f"hard_examples.{name}.kind": kind for name, kind in kinds.items()}
        return override(recipes.get("digits-moco-v2"), fields).essence(set())

    one = essence(x="adversarial", y="cutmix")
    assert one == essence(y="cutmix", x="adversarial")
    assert one != essence(x="cutmix", y="adversarial")
