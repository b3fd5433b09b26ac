"""The paper's experiments as data: which arms are compared, by what they are measured, what was published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from hexa.config import UserError, nearest
from hexa.core.schemes import SCHEMES
from hexa.recipes.imagenet import BETAS

Scale = Literal["small", "full"]
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
class Measure:
    """One evaluation of every arm. metrics: those that become columns; empty for all but spreads."""

    title: str
    protocol: str
    options: Fields = field(default_factory=dict)
    metrics: tuple[str, ...] = ("top1",)


@dataclass(frozen=True)
class Study:
    """An experiment of the paper at one scale, with one method.

    lengths: the shares of the epochs at which every arm is trained anew. equal_time: train every arm for the time of
    the first one as well. search: look for each arm's learning rate; published settings are taken as they are.
    notes: what it cannot tell, a line each.
    """

    name: str
    method: str
    scale: Scale
    question: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    lengths: tuple[float, ...] = (1.0,)
    equal_time: bool = True
    search: bool = True
    notes: tuple[str, ...] = ()


# -- the methods ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """One method in all experiments.

    preset: of its linear classifiers. ablation: the recipe of ablation and study of Beta at the small scale, by data.
    small: the rows of tables there, by data, the plain one first. full: the rows at the published settings, where
    full_grid is the attack grid's recipe, and full_ablation that of the ablation and the study of Beta.
    """

    title: str
    preset: str
    ablation: Mapping[str, str]
    small: Mapping[str, tuple[Arm, ...]]
    full: tuple[Arm, ...]
    full_grid: str
    full_ablation: str


#: At the small scale terms are averaged, so that no arm takes larger steps.
_MEAN: Fields = {"objective.reduction": "mean"}


def _arm(recipe: str, scheme: str, changes: Fields = _MEAN, *, key: str = "", name: str = "", **hard: Fields) -> Arm:
    """A scheme of a recipe. hard: fields of its hard examples that differ from the published ones."""
    own = SCHEMES[scheme]
    examples = {kind: {**fields, **hard.get(kind, {})} for kind, fields in own.hard_examples.items()}
    return Arm(key or scheme, name or own.title, recipe, scheme, {**changes, "hard_examples": examples})


def _small(recipe: str, *names: str, published: tuple[str, ...] | None = None, suffix: str = "") -> tuple[Arm, ...]:
    """Rows of tables: schemes i, ii and iv of a recipe under these names; published: the method of each, if any."""
    return tuple(
        replace(
            _arm(
                recipe,
                scheme,
                key=scheme + suffix.replace("(", "").replace(")", "").replace(" ", "-"),
                name=name + suffix,
            ),
            published=(method, 200) if method else None,
        )
        for scheme, name, method in zip(("i", "ii", "iv"), names, published or names, strict=False)
    )


def _full(recipe: str, scheme: str, name: str, epochs: int, *, plain: bool = False) -> Arm:
    """A row of the authors. plain: of a recipe that has an attack, without it."""
    changes = {"hard_examples.adversarial": None} if plain else {}
    key = f"{recipe}{'-plain' if plain else ''}"
    return Arm(key, f"{name}, {epochs} epochs", recipe, scheme, changes, epochs, (name, epochs))


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
                # stand for the published eight; the plain one was published with 800 epochs alone
                *_small(
                    *(_SIX_CROPS, "DeepCluster-v2", "HEXA-D", "HEXA-D+"),
                    published=("", "HEXA-D (8-crop)", "HEXA-D+ (8-crop)"),
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


# -- the experiments --------------------------------------------------------------------------------------------------

_LOW_SHOT = "Few labels: SVMs on frozen features from k images of each class"
#: Their names, and the question each answers.
EXPERIMENTS = {
    "ablation": "Which hard examples help, alone and together? Schemes i–vi of the ablation",
    "attack-grid": "How far may an attack move the pixels? Radius ε and step η in grey levels",
    "beta-study": "From which Beta distribution is the share drawn that a mixed view keeps?",
    "learning-curves": "Does the gain last as training grows longer?",
    "low-shot-curve": _LOW_SHOT,
    "table1": "Linear classification on frozen features",
    "table2": _LOW_SHOT,
    "table3": "Semi-supervised: the whole network trained on 1 %, 10 % and all labels",
    "table4": "Detection",
    "table5": "Fine-tuning of the whole network",
}
#: The method the paper used where it was one alone; all others have both.
_PUBLISHED_WITH = {"attack-grid": "dcluster", "beta-study": "dcluster"}
#: Equal in what they do: one step moves every pixel by min(ε, η) grey levels (REFERENCE §5.2).
GRID = (1, 2, 3)
GRID_NOTE = (
    "With one step every pixel moves by min(ε, η) grey levels: cells of the same minimum are the same algorithm, and "
    "the same runs stand in them. Published were ε and η of 1 and 3, with three of four cells alike: what they "
    "differed by was seed noise."
)
KNN = Measure("k-NN top-1", "knn")
PROBE = Measure("linear probe top-1", "probe")
SVM = Measure("SVM mAP", "svm", metrics=("mAP",))


def study(name: str, *, method: str | None = None, scale: str = "small", data: str = "cifar10") -> Study:
    """The experiment `name`. Raises UserError for an unknown name, method or scale."""
    method = method or _PUBLISHED_WITH.get(name, "moco")
    asked = ((name, EXPERIMENTS, "experiment"), (method, METHODS, "method"), (scale, ("small", "full"), "scale"))
    for given, known, what in asked:
        if given not in known:
            raise UserError(f"unknown {what} '{given}'; {nearest(given, known)}")
    own, small, curves = METHODS[method], scale == "small", name == "learning-curves"
    source = "digits" if data.partition("#")[0] == "digits" else "cifar"
    return Study(
        name,
        method,
        cast(Scale, scale),
        EXPERIMENTS[name],
        tuple(_small_arms(name, own, source) if small else _full_arms(name, own)),
        _measures(name, small, own.preset),
        lengths=(0.25, 0.5, 0.75, 1.0) if curves else (1.0,),
        equal_time=small and not curves,
        search=small,
        notes=(GRID_NOTE,) if name == "attack-grid" else (),
    )


def _small_arms(name: str, method: Method, source: str) -> Iterable[Arm]:
    """On CIFAR-10 with the narrow network, or on the digits."""
    rows, six = method.small[source], method.ablation[source]
    if name == "ablation":
        return [_arm(six, number) for number in SCHEMES]
    if name == "attack-grid":
        return _grid(rows[0].recipe, _MEAN)
    if name == "beta-study":
        return _betas(six, _MEAN)
    if name == "learning-curves":
        return [replace(arm, published=None) for arm in rows[:2]]
    return rows


def _full_arms(name: str, method: Method) -> Iterable[Arm]:
    """The published settings, as the ImageNet recipes have them."""
    if name == "ablation":
        return [Arm(n, scheme.title, method.full_ablation + scheme.modifiers, n) for n, scheme in SCHEMES.items()]
    if name == "attack-grid":
        return _grid(method.full_grid, {"epochs": 40})
    if name == "beta-study":
        return _betas(method.full_ablation, {})
    if name == "learning-curves":
        return [arm for arm in method.full if arm.epochs == 800][:2]
    return method.full


def _grid(recipe: str, changes: Fields) -> list[Arm]:
    attacks = [
        _arm(*(recipe, "ii", changes), key=f"adv-{moved}", name=f"min(ε, η) = {moved}",
             adversarial={"epsilon": moved, "step_size": moved})
        for moved in GRID
    ]  # fmt: skip
    return [_arm(recipe, "i", changes), *attacks]


def _betas(recipe: str, changes: Fields) -> list[Arm]:
    mixed = [
        _arm(*(recipe, "iii", changes), key=f"beta-{alpha}-{beta}", name=f"Beta({alpha}, {beta})",
             cutmix={"alpha": alpha, "beta": beta})
        for alpha, beta in BETAS
    ]  # fmt: skip
    return [_arm(recipe, "i", changes), *mixed]


def _measures(name: str, small: bool, preset: str) -> tuple[Measure, ...]:
    if name in ("table2", "low-shot-curve"):
        return (Measure("SVM", "low-shot", {"shots": (1, 2, 4, 8, 16, 32)}, metrics=()),)
    if name == "table3":
        shares = ((f"{share} % of the labels", {"percent": share}) for share in (1, 10, 100))
        return tuple(Measure(title, "semi-supervised", options, ("top1", "top5")) for title, options in shares)
    if name == "table4":
        return (Measure("detection", "detect", metrics=("AP", "AP50", "AP75")),)
    if name == "table5":
        return (Measure("fine-tuned top-1", "fine-tune"),)
    if small and name == "table1":
        return (KNN, Measure("linear top-1", "linear", {"preset": "cifar"}))
    if small and name == "learning-curves":  # its accuracy after every epoch is a figure of its own
        return (KNN, PROBE, Measure("linear top-1, 10 epochs", "linear", {"preset": preset, "epochs": 10}))
    if small:
        return (KNN, PROBE)
    if name in ("ablation", "beta-study"):
        return (Measure("linear top-1, 1 epoch", "linear", {"preset": f"{preset}-ablation"}),)
    return (Measure("linear top-1", "linear", {"preset": preset}),)
