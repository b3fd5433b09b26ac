"""The paper's experiments as data: which arms are compared, by what they are measured, what was published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hexa.config import UserError, nearest
from hexa.recipes.imagenet import SCHEMES
from hexa.recipes.imagenet_prototypes import BETAS
from hexa.reproduce.design import (
    KNN,
    LINEAR,
    LOW_SHOT,
    PROBE,
    SCHEME_NAMES,
    WHILE_TRAINING,
    Arm,
    Fields,
    Measure,
    Scale,
    Study,
)

#: Recipes of the plain methods at the small scale, by the data and the number of crops: "" for two, "-6crop".
_SMALL = {
    ("moco", "cifar"): "cifar10-small-moco-v2",
    ("dcluster", "cifar"): "cifar10-small-deepcluster-v2",
    ("dcluster", "cifar-6crop"): "cifar10-small-deepcluster-v2-6crop",
    ("moco", "digits"): "digits-moco-v2",
    ("dcluster", "digits"): "digits-deepcluster-v2",
}
METHODS = tuple(dict.fromkeys(method for method, _ in _SMALL))
EXPERIMENTS = (
    *("ablation", "attack-grid", "beta-study", "learning-curves", "low-shot-curve"),
    *("table1", "table2", "table3", "table4", "table5"),
)
#: The methods that the paper made these with; all others with both.
_PUBLISHED_WITH = {"attack-grid": "dcluster", "beta-study": "dcluster"}
#: Equal in what they do: one step moves every pixel by min(ε, η) grey levels (REFERENCE §5.2).
GRID = (1, 2, 3)
GRID_NOTE = (
    "With one step every pixel moves by min(ε, η) grey levels: cells of the same minimum are the same algorithm, and "
    "the same runs stand in them. Published were ε and η of 1 and 3, with three of four cells alike: what they "
    "differed by was seed noise."
)


def study(name: str, *, method: str | None = None, scale: str = "small", data: str = "cifar10") -> Study:
    """The experiment `name`. Raises UserError for one that is not there, or a method or scale it doesn't have."""
    for given, known, what in (
        (name, EXPERIMENTS, "experiment"),
        (method or METHODS[0], METHODS, "method"),
        (scale, ("small", "full"), "scale"),
    ):
        if given not in known:
            raise UserError(f"unknown {what} '{given}'; {nearest(given, known)}")
    method = method or _PUBLISHED_WITH.get(name, METHODS[0])
    if scale == "full":
        return _full(name, method)
    return _small(name, method, "digits" if data.partition("#")[0] == "digits" else "cifar")


# -- the arms of each experiment ------------------------------------------------------------------------------------


def scheme_arms(recipe: str, names: tuple[str, ...] = tuple(SCHEME_NAMES), changes: Fields | None = None) -> list[Arm]:
    """Schemes i–vi (REFERENCE §5.9) of one recipe."""
    return [
        Arm(number, SCHEME_NAMES[number], recipe, number, {**(changes or {}), "hard_examples": _fields(number)})
        for number in names
    ]


def _fields(scheme: str, **changes: Fields) -> dict[str, Any]:
    """The hard examples of a scheme, with fields of some of them changed."""
    return {name: {**hard.model_dump(mode="json"), **changes.get(name, {})} for name, hard in SCHEMES[scheme].items()}


def _grid(recipe: str, changes: Fields) -> list[Arm]:
    arms = scheme_arms(recipe, ("i",), changes)
    for moved in GRID:
        hard = _fields("ii", adversarial={"epsilon": moved, "step_size": moved})
        arms.append(Arm(f"adv-{moved}", f"min(ε, η) = {moved}", recipe, "ii", {**changes, "hard_examples": hard}))
    return arms


def _betas(recipe: str, changes: Fields) -> list[Arm]:
    arms = scheme_arms(recipe, ("i",), changes)
    for alpha, beta in BETAS:
        hard = _fields("iii", cutmix={"alpha": alpha, "beta": beta})
        arms.append(
            Arm(f"beta-{alpha}-{beta}", f"Beta({alpha}, {beta})", recipe, "iii", {**changes, "hard_examples": hard})
        )
    return arms


def _small(name: str, method: str, data: str) -> Study:
    """On CIFAR-10 with the narrow network, or on the digits; the terms are averaged, so that no arm steps further."""
    mean = {"objective.reduction": "mean"}
    recipe = _SMALL[method, data]
    # the paper's ablation and its study of Beta have six crops
    six = _SMALL.get((method, f"{data}-6crop"), recipe)
    base: dict[str, Any] = {"name": name, "method": method, "scale": "small"}
    if name == "ablation":
        return Study(**base, question=_ABLATION, arms=tuple(scheme_arms(six, changes=mean)), measures=(KNN, PROBE))
    if name == "attack-grid":
        arms = tuple(_grid(recipe, mean))
        return Study(**base, question=_GRID, arms=arms, measures=(KNN, PROBE), notes=(GRID_NOTE,))
    if name == "beta-study":
        return Study(**base, question=_BETA, arms=tuple(_betas(six, mean)), measures=(KNN, PROBE))
    arms = tuple(_rows(method, recipe, six, mean))
    if name == "learning-curves":
        lengths = (0.25, 0.5, 0.75, 1.0)
        two = tuple(replace(arm, published=None) for arm in arms[:2])
        return Study(
            **base,
            question=_CURVES,
            arms=two,
            measures=(KNN, PROBE, Measure(WHILE_TRAINING, "linear", {"preset": _PRESETS[method], "epochs": 10})),
            lengths=lengths,
            equal_time=False,
        )
    return Study(**base, question=_TABLES[name], arms=arms, measures=_measures(name, "small", method))


def _rows(method: str, recipe: str, six: str, changes: Fields) -> list[Arm]:
    """The rows of the published tables at the small scale; six crops stand for the published eight."""
    plain, adversarial = scheme_arms(recipe, ("i", "ii"), changes)
    if method == METHODS[0]:
        named = [(plain, "MoCo-v2", "MoCo-v2"), (adversarial, "HEXA-MoCo", "HEXA-MoCo")]
    else:
        named = [(plain, "DeepCluster-v2", "DeepCluster-v2"), (adversarial, "HEXA-D", "HEXA-D")]
        more, suffix, mark = (six, "-6crop", " (6-crop)") if six != recipe else (recipe, "", "")
        wanted = ("i", "ii", "iv") if suffix else ("iv",)
        for arm in scheme_arms(more, wanted, changes):
            short = {"i": "DeepCluster-v2", "ii": "HEXA-D", "iv": "HEXA-D+"}[arm.scheme]
            row = Arm(arm.key + suffix, "", more, arm.scheme, arm.changes)
            # the plain one was published with 800 epochs alone
            named.append((row, short + mark, f"{short} (8-crop)" if suffix and arm.scheme != "i" else ""))
    return [
        Arm(arm.key, name, arm.recipe, arm.scheme, arm.changes, published=(beside, 200) if beside else None)
        for arm, name, beside in named
    ]


def _full(name: str, method: str) -> Study:
    """The published settings, as the ImageNet recipes have them."""
    base: dict[str, Any] = {"name": name, "method": method, "scale": "full", "search": False, "equal_time": False}
    one_epoch = (Measure("linear top-1, 1 epoch", "linear", {"preset": f"{_PRESETS[method]}-ablation"}),)
    linear = (Measure("linear top-1", "linear", {"preset": _PRESETS[method]}),)
    if name == "ablation":
        arms = [Arm(n, SCHEME_NAMES[n], f"ablate-{method}-{n}", n) for n in SCHEME_NAMES]
        return Study(**base, question=_ABLATION, arms=tuple(arms), measures=one_epoch)
    if name == "attack-grid":
        arms = _grid("grid-attack" if method != METHODS[0] else "imagenet-hexa-moco-200", {"epochs": 40})
        return Study(**base, question=_GRID, arms=tuple(arms), measures=linear, notes=(GRID_NOTE,))
    if name == "beta-study":
        return Study(**base, question=_BETA, arms=tuple(_betas(f"ablate-{method}-iii", {})), measures=one_epoch)
    arms = list(_full_rows(method))
    if name == "learning-curves":
        longest = [arm for arm in arms if arm.epochs == 800]
        return Study(**base, question=_CURVES, arms=tuple(longest[:2]), measures=linear, lengths=(0.25, 0.5, 0.75, 1.0))
    return Study(**base, question=_TABLES[name], arms=tuple(arms), measures=_measures(name, "full", method))


def _full_rows(method: str) -> list[Arm]:
    """The authors' rows of the published tables."""
    none = {"hard_examples.adversarial": None}
    rows: list[tuple[str, Fields, str, int, str]]
    if method == METHODS[0]:
        rows = [
            (f"imagenet-{recipe}-{epochs}", {}, scheme, epochs, row)
            for epochs in (200, 800)
            for recipe, scheme, row in (("moco-v2", "i", "MoCo-v2"), ("hexa-moco", "ii", "HEXA-MoCo"))
        ]
    else:
        rows = [
            ("imagenet-deepcluster-v2-200", {}, "i", 200, "DeepCluster-v2"),
            ("imagenet-hexa-dcluster-200", {}, "ii", 200, "HEXA-D"),
            ("imagenet-hexa-dcluster-8crop-200", {}, "ii", 200, "HEXA-D (8-crop)"),
            ("imagenet-hexa-dcluster-plus-8crop-200", {}, "iv", 200, "HEXA-D+ (8-crop)"),
            ("imagenet-hexa-dcluster-8crop-800", none, "i", 800, "DeepCluster-v2 (8-crop)"),
            ("imagenet-hexa-dcluster-8crop-800", {}, "ii", 800, "HEXA-D (8-crop)"),
            ("imagenet-hexa-dcluster-plus-8crop-800", {}, "iv", 800, "HEXA-D+ (8-crop)"),
        ]
    return [
        Arm(f"{recipe}{'-plain' if changes else ''}", f"{row}, {epochs} epochs", recipe, scheme, changes, epochs,
            (row, epochs))
        for recipe, changes, scheme, epochs, row in rows
    ]  # fmt: skip


_PRESETS = dict(zip(METHODS, ("moco", "swav"), strict=True))


def _measures(name: str, scale: Scale, method: str) -> tuple[Measure, ...]:
    """What each table is measured by."""
    if name == "table1":
        return (KNN, LINEAR) if scale == "small" else (Measure("linear top-1", "linear", {"preset": _PRESETS[method]}),)
    if name in ("table2", "low-shot-curve"):
        return (LOW_SHOT,)
    if name == "table3":
        shares = (1, 10, 100)
        return tuple(
            Measure(f"{share} % of the labels", "semi-supervised", {"percent": share}, ("top1", "top5"))
            for share in shares
        )
    if name == "table4":
        return (Measure("detection", "detect", metrics=("AP", "AP50", "AP75")),)
    return (Measure("fine-tuned top-1", "fine-tune"),)


_ABLATION = "Which hard examples help, alone and together? Schemes i–vi of the ablation"
_GRID = "How far may an attack move the pixels? Radius ε and step η in grey levels"
_BETA = "From which Beta distribution is the share drawn that a mixed view keeps?"
_CURVES = "Does the gain last as training grows longer?"
_TABLES = {
    "low-shot-curve": "Few labels: SVMs on frozen features from k images of each class",
    "table1": "Linear classification on frozen features",
    "table2": "Few labels: SVMs on frozen features from k images of each class",
    "table3": "Semi-supervised: the whole network trained on 1 %, 10 % and all labels",
    "table4": "Detection",
    "table5": "Fine-tuning of the whole network",
}
