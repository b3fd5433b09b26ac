"""The methods the experiments are made with: their recipes at both scales, and the rows the paper has of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hexa.reproduce.design import Fields


@dataclass(frozen=True)
class TableRow:
    """A row of the tables: a scheme of a recipe. published: the method it is printed beside, and its epochs there."""

    key: str
    name: str
    recipe: str
    scheme: str
    published: tuple[str, int] | None = None
    changes: Fields = field(default_factory=dict)
    epochs: int | None = None


@dataclass(frozen=True)
class Method:
    """One method in all experiments.

    preset: of its linear classifiers. ablation: the recipe of ablation and study of Beta at the small scale, by data.
    small: the rows of tables there, by data, the plain one first. full: the rows at the published settings, where
    full_grid is the attack grid's recipe, and full_ablation what names of the ablation's recipes begin with.
    """

    title: str
    preset: str
    ablation: Mapping[str, str]
    small: Mapping[str, tuple[TableRow, ...]]
    full: tuple[TableRow, ...]
    full_grid: str
    full_ablation: str


def _full(recipe: str, scheme: str, name: str, epochs: int, *, plain: bool = False) -> TableRow:
    """A row of the authors. plain: of a recipe that has an attack, without it."""
    changes = {"hard_examples.adversarial": None} if plain else {}
    key = f"{recipe}{'-plain' if plain else ''}"
    return TableRow(key, f"{name}, {epochs} epochs", recipe, scheme, (name, epochs), changes, epochs)


def _moco(recipe: str) -> tuple[TableRow, ...]:
    return (
        TableRow("i", "MoCo-v2", recipe, "i", ("MoCo-v2", 200)),
        TableRow("ii", "HEXA-MoCo", recipe, "ii", ("HEXA-MoCo", 200)),
    )


def _dcluster(recipe: str) -> tuple[TableRow, ...]:
    return (
        TableRow("i", "DeepCluster-v2", recipe, "i", ("DeepCluster-v2", 200)),
        TableRow("ii", "HEXA-D", recipe, "ii", ("HEXA-D", 200)),
    )


_SIX = "cifar10-small-deepcluster-v2-6crop"

METHODS = {
    "moco": Method(
        title="MoCo-v2",
        preset="moco",
        ablation={"cifar": "cifar10-small-moco-v2", "digits": "digits-moco-v2"},
        small={"cifar": _moco("cifar10-small-moco-v2"), "digits": _moco("digits-moco-v2")},
        full=(
            _full("imagenet-moco-v2-200", "i", "MoCo-v2", 200),
            _full("imagenet-hexa-moco-200", "ii", "HEXA-MoCo", 200),
            _full("imagenet-moco-v2-800", "i", "MoCo-v2", 800),
            _full("imagenet-hexa-moco-800", "ii", "HEXA-MoCo", 800),
        ),
        full_grid="imagenet-hexa-moco-200",
        full_ablation="ablate-moco",
    ),
    "dcluster": Method(
        title="DeepCluster-v2",
        preset="swav",
        # six crops, as published
        ablation={"cifar": _SIX, "digits": "digits-deepcluster-v2"},
        small={
            "cifar": (
                *_dcluster("cifar10-small-deepcluster-v2"),
                # stand for the published eight; the plain one was published with 800 epochs alone
                TableRow("i-6crop", "DeepCluster-v2 (6-crop)", _SIX, "i"),
                TableRow("ii-6crop", "HEXA-D (6-crop)", _SIX, "ii", ("HEXA-D (8-crop)", 200)),
                TableRow("iv-6crop", "HEXA-D+ (6-crop)", _SIX, "iv", ("HEXA-D+ (8-crop)", 200)),
            ),
            "digits": (
                *_dcluster("digits-deepcluster-v2"),
                TableRow("iv", "HEXA-D+", "digits-deepcluster-v2", "iv"),
            ),
        },
        full=(
            _full("imagenet-deepcluster-v2-200", "i", "DeepCluster-v2", 200),
            _full("imagenet-hexa-dcluster-200", "ii", "HEXA-D", 200),
            _full("imagenet-hexa-dcluster-8crop-200", "ii", "HEXA-D (8-crop)", 200),
            _full("imagenet-hexa-dcluster-plus-8crop-200", "iv", "HEXA-D+ (8-crop)", 200),
            _full("imagenet-hexa-dcluster-8crop-800", "i", "DeepCluster-v2 (8-crop)", 800, plain=True),
            _full("imagenet-hexa-dcluster-8crop-800", "ii", "HEXA-D (8-crop)", 800),
            _full("imagenet-hexa-dcluster-plus-8crop-800", "iv", "HEXA-D+ (8-crop)", 800),
        ),
        full_grid="grid-attack",
        full_ablation="ablate-dcluster",
    ),
}
