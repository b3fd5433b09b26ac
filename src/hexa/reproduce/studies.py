"""The paper's experiments as data: which arms are compared, by what they are measured, what was published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hexa.config import UserError, nearest
from hexa.core.schemes import SCHEMES
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
from hexa.reproduce.methods import METHODS, TableRow

EXPERIMENTS = (
    *("ablation", "attack-grid", "beta-study", "learning-curves", "low-shot-curve"),
    *("table1", "table2", "table3", "table4", "table5"),
)
_FIRST = next(iter(METHODS))
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
        (method or _FIRST, METHODS, "method"),
        (scale, ("small", "full"), "scale"),
    ):
        if given not in known:
            raise UserError(f"unknown {what} '{given}'; {nearest(given, known)}")
    method = method or _PUBLISHED_WITH.get(name, _FIRST)
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
    return {name: {**hard, **changes.get(name, {})} for name, hard in SCHEMES[scheme].hard_examples.items()}


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
    made = METHODS[method]
    rows, six = made.small[data], made.ablation[data]
    base: dict[str, Any] = {"name": name, "method": method, "scale": "small"}
    if name == "ablation":
        return Study(**base, question=_ABLATION, arms=tuple(scheme_arms(six, changes=mean)), measures=(KNN, PROBE))
    if name == "attack-grid":
        arms = tuple(_grid(rows[0].recipe, mean))
        return Study(**base, question=_GRID, arms=arms, measures=(KNN, PROBE), notes=(GRID_NOTE,))
    if name == "beta-study":
        return Study(**base, question=_BETA, arms=tuple(_betas(six, mean)), measures=(KNN, PROBE))
    arms = _table_arms(rows, mean)
    if name == "learning-curves":
        lengths = (0.25, 0.5, 0.75, 1.0)
        two = tuple(replace(arm, published=None) for arm in arms[:2])
        return Study(
            **base,
            question=_CURVES,
            arms=two,
            measures=(KNN, PROBE, Measure(WHILE_TRAINING, "linear", {"preset": made.preset, "epochs": 10})),
            lengths=lengths,
            equal_time=False,
        )
    return Study(**base, question=_TABLES[name], arms=arms, measures=_measures(name, "small", method))


def _table_arms(rows: Iterable[TableRow], changes: Fields) -> tuple[Arm, ...]:
    """The rows of the published tables at the small scale."""
    plain = [(row, scheme_arms(row.recipe, (row.scheme,), changes)[0]) for row in rows]
    return tuple(replace(arm, key=row.key, name=row.name, published=row.published) for row, arm in plain)


def _full(name: str, method: str) -> Study:
    """The published settings, as the ImageNet recipes have them."""
    base: dict[str, Any] = {"name": name, "method": method, "scale": "full", "search": False, "equal_time": False}
    made = METHODS[method]
    one_epoch = (Measure("linear top-1, 1 epoch", "linear", {"preset": f"{made.preset}-ablation"}),)
    linear = (Measure("linear top-1", "linear", {"preset": made.preset}),)
    if name == "ablation":
        arms = [Arm(n, SCHEME_NAMES[n], f"{made.full_ablation}-{n}", n) for n in SCHEME_NAMES]
        return Study(**base, question=_ABLATION, arms=tuple(arms), measures=one_epoch)
    if name == "attack-grid":
        arms = _grid(made.full_grid, {"epochs": 40})
        return Study(**base, question=_GRID, arms=tuple(arms), measures=linear, notes=(GRID_NOTE,))
    if name == "beta-study":
        return Study(**base, question=_BETA, arms=tuple(_betas(f"{made.full_ablation}-iii", {})), measures=one_epoch)
    arms = [Arm(row.key, row.name, row.recipe, row.scheme, row.changes, row.epochs, row.published) for row in made.full]
    if name == "learning-curves":
        longest = [arm for arm in arms if arm.epochs == 800]
        return Study(**base, question=_CURVES, arms=tuple(longest[:2]), measures=linear, lengths=(0.25, 0.5, 0.75, 1.0))
    return Study(**base, question=_TABLES[name], arms=tuple(arms), measures=_measures(name, "full", method))


def _measures(name: str, scale: Scale, method: str) -> tuple[Measure, ...]:
    """What each table is measured by."""
    if name == "table1":
        return (
            (KNN, LINEAR)
            if scale == "small"
            else (Measure("linear top-1", "linear", {"preset": METHODS[method].preset}),)
        )
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
