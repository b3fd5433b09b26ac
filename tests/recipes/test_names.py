"""Names of recipes: their modifiers."""

from __future__ import annotations

import itertools
import re

import pytest

from hexa import recipes
from hexa.config import UserError
from hexa.hard_examples import Adversarial, CutMix
from hexa.recipes import modifiers
from hexa.recipes.experiment import Experiment, override
from hexa.recipes.modifiers import MODIFIERS


def test_modifier_order() -> None:
    """Modifiers commute, and the name is in their order."""
    given = ("cutmix-adversarial", "small", "adversarial")
    made = [
        recipes.get("+".join(["cifar10-simclr", *order])) for order in itertools.permutations(given)
    ]
    assert all(one == made[0] for one in made)
    assert made[0].recipe == "cifar10-simclr+small+adversarial+cutmix-adversarial"
    assert list(made[0].hard_examples) == ["adversarial", "cutmix_adversarial"]
    assert made[0].network.name == "small-resnet"
    assert made[0].objective.reduction == "mean"


@pytest.mark.parametrize("name", recipes.names())
def test_recipe_modifier_grid(name: str) -> None:
    """Every recipe takes every modifier."""
    hard = recipes.get(name).hard_examples
    for modifier in MODIFIERS:
        if modifier == "split" and hard:
            with pytest.raises(UserError, match="leave out other hard examples"):
                recipes.get(f"{name}+split")
            continue
        made = recipes.get(
            f"{name}+{modifier}{'+adversarial' * (modifier in ('cutmix-adversarial', 'late'))}"
        )
        assert recipes.get(made.recipe) == made


def test_derived_recipe_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that changes another recipe has its own name."""

    def derived() -> Experiment:
        return override(recipes.get("digits-moco-v2"), {"epochs": 2})

    monkeypatch.setattr(recipes, "_registry", {"mine": derived, **recipes._all()})
    monkeypatch.setattr(recipes, "_all", lambda: recipes._registry)
    assert recipes.get("mine").recipe == "mine"
    assert recipes.get("mine+small").recipe == "mine+small"
    (row,) = [row for row in recipes.describe() if row["epochs"] == 2 and row["data"] == "digits"]
    assert row["name"] == "mine"


def test_robust_modifier() -> None:
    """Robust is N-FGSM through the only batch norms."""
    strong = Adversarial(epsilon=8.0, step_size=8.0, random_start=2.0, project=False, branch="main")
    assert (
        recipes.get("cifar10-moco-v2+robust+cutmix-adversarial").hard_examples["adversarial"]
        == strong
    )


def test_late_modifier() -> None:
    """Late has every hard example start half way."""
    made = recipes.get("digits-moco-v2+adversarial+late+cutmix").hard_examples
    assert {name: hard.start for name, hard in made.items()} == {"adversarial": 0.5, "cutmix": 0.5}


def test_cutmix_adversarial_source() -> None:
    """Another hard example is not what is mixed."""
    mixed = recipes.get("cifar10-simclr").model_copy(update={"hard_examples": {"cutmix": CutMix()}})
    with pytest.raises(UserError, match=r"add \+adversarial"):
        modifiers.apply(mixed, ["cutmix-adversarial"], {})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cifar10-hexa-mocco", "cifar10-hexa-moco"),
        ("cifar10-hexa-deepcluster", "cifar10-hexa-dcluster"),
        ("cifar10-hexamoco", "cifar10-hexa-moco"),
        ("cifar10-moco-v2-adversarial", "cifar10-moco-v2+adversarial"),
        ("cifar10-byol-cutmix", "cifar10-byol+cutmix"),
        ("digits-hexa", "digits-hexa-moco"),
    ],
)
def test_recipe_name_suggestions(name: str, meant: str) -> None:
    """A name with hard examples is never corrected to a plain method."""
    with pytest.raises(UserError, match=f"did you mean '{re.escape(meant)}'"):
        recipes.get(name)


@pytest.mark.parametrize("size", ["", "+small"])
@pytest.mark.parametrize(
    ("hard", "plain"), [("hexa-moco", "moco-v2"), ("hexa-dcluster", "deepcluster-v2")]
)
def test_paper_recipe_equivalence(hard: str, plain: str, size: str) -> None:
    """The paper's names are the plain recipes with adversarial views."""
    names = (f"{hard}{size}", f"{plain}{size}+adversarial")
    made, expected = (recipes.get(f"cifar10-{name}") for name in names)
    assert made.model_dump(exclude={"recipe"}) == expected.model_dump(exclude={"recipe"})
    assert made.recipe == f"cifar10-{hard}{size}"
