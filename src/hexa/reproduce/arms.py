"""The arms of the paper's experiments as data: recipes with a few fields changed, and the rows they stand beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hexa.core.schemes import SCHEMES

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One row of a study: a recipe with some fields changed.

    key: a name for folders. scheme: i–vi. epochs: its own length, where arms differ by it. published: the row
    (method, epochs) it stands beside.
    """

    key: str
    name: str
    recipe: str
    scheme: str
    changes: Fields = field(default_factory=dict)
    epochs: int | None = None
    published: tuple[str, int] | None = None


@dataclass(frozen=True)
class Method:
    """One method in all experiments, or several that stand in tables alone.

    preset: of its linear classifiers. small: the rows of tables at the small scale, by data, the plain one first. full:
    the rows at the published settings. ablation: the recipe of ablation and study of Beta at the small scale, by data;
    full_grid is the attack grid's at the published settings, and full_ablation that of the ablation and the study of
    Beta. peers: the arms of published learning curves of classifiers, by scale, where those of pre-training were not.
    """

    title: str
    preset: str
    small: Mapping[str, tuple[Arm, ...]]
    full: tuple[Arm, ...]
    ablation: Mapping[str, str] = field(default_factory=dict)
    full_grid: str = ""
    full_ablation: str = ""
    peers: Mapping[str, tuple[Arm, ...]] = field(default_factory=dict)


#: The row that HEXA-D of eight crops is compared with. The paper has it with 800 epochs alone.
PLAIN = ("DeepCluster-v2 (8-crop)", 200)
#: At the small scale terms are averaged, so that no arm takes larger steps.
MEAN: Fields = {"objective.reduction": "mean"}


def arm_of(recipe: str, scheme: str, changes: Fields = MEAN, *, key: str = "", name: str = "", **hard: Fields) -> Arm:
    """A scheme of a recipe. hard: fields of its hard examples that differ from the published ones."""
    own = SCHEMES[scheme]
    examples = {kind: {**fields, **hard.get(kind, {})} for kind, fields in own.hard_examples.items()}
    return Arm(key or scheme, name or own.title, recipe, scheme, {**changes, "hard_examples": examples})


def _small(recipe: str, *names: str, published: tuple[str, ...] | None = None, suffix: str = "") -> tuple[Arm, ...]:
    """Rows of tables: schemes i, ii and iv of a recipe under these names; published: the method of each, if any."""
    return tuple(
        replace(
            arm_of(
                recipe,
                scheme,
                key=scheme + suffix.replace("(", "").replace(")", "").replace(" ", "-"),
                name=name + suffix,
            ),
            published=(method, 200) if method else None,
        )
        for scheme, name, method in zip(("i", "ii", "iv"), names, published or names, strict=False)
    )


def _full(recipe: str, scheme: str, name: str, epochs: int) -> Arm:
    """A row of the authors."""
    return Arm(recipe, f"{name}, {epochs} epochs", recipe, scheme, {}, epochs, (name, epochs))


def _compared(
    recipe: str, name: str, epochs: int, row: str = "", *, key: str = "", changes: Fields | None = None
) -> Arm:
    """A compared system at the small scale, beside its row of this length. row: the method there, if not `name`."""
    arm = arm_of(f"cifar10-{recipe}+small", "i", {**MEAN, **(changes or {})}, key=key or recipe, name=name)
    return replace(arm, published=(row or name, epochs))


#: MoCo v1's temperature and views; MoCo-v2 has its linear head at this size anyway.
_V1: Fields = {"method.temperature": 0.07, "views.recipe": "moco-v1"}
_SIX_CROPS = "cifar10-deepcluster-v2-6crop+small"
METHODS = {
    "moco": Method(
        title="MoCo-v2",
        preset="moco",
        ablation={"cifar": "cifar10-moco-v2+small", "digits": "digits-moco-v2"},
        small={
            "cifar": _small("cifar10-moco-v2+small", "MoCo-v2", "HEXA-MoCo"),
            "digits": _small("digits-moco-v2", "MoCo-v2", "HEXA-MoCo"),
        },
        full=tuple(
            _full(f"imagenet-{recipe}-{epochs}", scheme, name, epochs)
            for epochs in (200, 800)
            for recipe, scheme, name in (("moco-v2", "i", "MoCo-v2"), ("hexa-moco", "ii", "HEXA-MoCo"))
        ),
        full_grid="imagenet-hexa-moco-200",
        full_ablation="ablate-moco",
    ),
    "dcluster": Method(
        title="DeepCluster-v2",
        preset="swav",
        ablation={"cifar": _SIX_CROPS, "digits": "digits-deepcluster-v2"},  # six crops, as published
        small={
            "cifar": (
                *_small("cifar10-deepcluster-v2+small", "DeepCluster-v2", "HEXA-D"),
                *_small(  # stand for the published eight
                    *(_SIX_CROPS, "DeepCluster-v2", "HEXA-D", "HEXA-D+"),
                    published=(PLAIN[0], "HEXA-D (8-crop)", "HEXA-D+ (8-crop)"),
                    suffix=" (6-crop)",
                ),
            ),
            "digits": _small(
                *("digits-deepcluster-v2", "DeepCluster-v2", "HEXA-D", "HEXA-D+"),
                published=("DeepCluster-v2", "HEXA-D", ""),
            ),
        },
        full=(
            _full("imagenet-deepcluster-v2-200", "i", "DeepCluster-v2", 200),
            _full("imagenet-hexa-dcluster-200", "ii", "HEXA-D", 200),
            _full("imagenet-deepcluster-v2-8crop-200", "i", *PLAIN),
            _full("imagenet-hexa-dcluster-8crop-200", "ii", "HEXA-D (8-crop)", 200),
            _full("imagenet-hexa-dcluster-plus-8crop-200", "iv", "HEXA-D+ (8-crop)", 200),
            _full("imagenet-deepcluster-v2-8crop-800", "i", "DeepCluster-v2 (8-crop)", 800),
            _full("imagenet-hexa-dcluster-8crop-800", "ii", "HEXA-D (8-crop)", 800),
            _full("imagenet-hexa-dcluster-plus-8crop-800", "iv", "HEXA-D+ (8-crop)", 800),
        ),
        full_grid="grid-attack",
        full_ablation="ablate-dcluster",
        peers={
            "cifar": (
                arm_of("cifar10-swav-6crop+small", "i", key="swav-6-crop", name="SwAV (6-crop)"),
                arm_of(_SIX_CROPS, "ii", key="ii-6-crop", name="HEXA-D (6-crop)"),
            ),
            "full": (
                _full("imagenet-swav-200", "i", "SwAV (B=4096)", 200),
                _full("imagenet-hexa-dcluster-8crop-200", "ii", "HEXA-D (8-crop)", 200),
            ),
        },
    ),
    "swav": Method(
        title="SwAV",
        preset="swav",
        small={
            "cifar": (
                _compared("swav", "SwAV", 200, "SwAV (B=256)"),
                _compared("swav-6crop", "SwAV (6-crop)", 200, "SwAV (B=256)"),
            )
        },
        full=(
            _full("imagenet-swav-b256-200", "i", "SwAV (B=256)", 200),
            _full("imagenet-swav-200", "i", "SwAV (B=4096)", 200),
            _full("imagenet-swav-800", "i", "SwAV (B=4096)", 800),
        ),
    ),
    "compared": Method(
        title="the other compared systems",
        preset="moco",
        small={
            "cifar": (
                _compared("instdisc", "InstDisc", 200),
                _compared("jigsaw", "Jigsaw", 90),
                _compared("cpc", "CPC-v2", 200),
                _compared("cmc", "CMC", 200),
                _compared("simclr", "SimCLR", 1000),
                _compared("moco-v2", "MoCo", 200, key="moco-v1", changes=_V1),
                _compared("pirl", "PIRL", 800),
                _compared("pcl-v2", "PCL-v2", 200),
                _compared("byol", "BYOL", 800),
                _compared("infomin", "InfoMin", 800),
            )
        },
        full=(
            _full("imagenet-instdisc", "i", "InstDisc", 200),
            _full("imagenet-jigsaw-90", "i", "Jigsaw", 90),
            _full("imagenet-jigsaw-200", "i", "Jigsaw", 200),
            _full("imagenet-cpc", "i", "CPC-v2", 200),
            _full("imagenet-cmc", "i", "CMC", 200),
            _full("imagenet-simclr-200", "i", "SimCLR", 200),
            _full("imagenet-simclr", "i", "SimCLR", 1000),
            _full("imagenet-moco-v1-200", "i", "MoCo", 200),
            _full("imagenet-pirl", "i", "PIRL", 800),
            _full("imagenet-pcl-v2-200", "i", "PCL-v2", 200),
            _full("imagenet-byol-800", "i", "BYOL", 800),
            _full("imagenet-infomin-200", "i", "InfoMin", 200),
            _full("imagenet-infomin", "i", "InfoMin", 800),
        ),
    ),
}
