"""Modifiers of recipe names, such as `cifar10-simclr+small+adversarial`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hexa.config import UserError, nearest
from hexa.nn.backbones import NetworkConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes.experiment import Experiment, validate
from hexa.runtime import parsing

_FILE: dict[str, dict[str, Any]] = parsing.read_resource("hexa.recipes", "recipes.yaml")[
    "modifiers"
]
#: Every modifier, in the order they are written in the name that a run records, and what it does.
MODIFIERS = {name: str(entry["does"]) for name, entry in _FILE.items()}


def apply(experiment: Experiment, given: Iterable[str], small: dict[str, Any]) -> Experiment:
    """Return the modified experiment. small: fields of the recipe's own small version. Raises UserError."""
    asked = set(given)
    for name in asked - set(MODIFIERS):
        known = [f"+{modifier}" for modifier in MODIFIERS]
        raise UserError(
            f"{experiment.recipe}: unknown modifier '+{name}'; {nearest(f'+{name}', known)}"
        )
    if "cutmix-adversarial" in asked and not {"adversarial", "robust"} & {
        *experiment.hard_examples,
        *asked,
    }:
        raise UserError(
            f"{experiment.recipe}+cutmix-adversarial mixes adversarial views; add +adversarial"
        )
    adding = [name for name in MODIFIERS if name in asked and "hard_examples" in _FILE[name]]
    if "split" in asked and (len(adding) > 1 or experiment.hard_examples):
        raise UserError(
            f"{experiment.recipe}: +split mixes half of the batch; leave out other hard examples"
        )
    if {"adversarial", "robust"} <= asked:
        raise UserError(f"{experiment.recipe}: +robust replaces +adversarial; give one of them")
    if "small" in asked:
        experiment = experiment.model_copy(update=_narrow(experiment) | small)
    if "split" in asked:
        half = {"split": True, "clean_fraction": 0.5}
        experiment = experiment.model_copy(
            update={"objective": experiment.objective.model_copy(update=half)}
        )
    every: dict[str, Any] = dict(experiment.hard_examples)
    for name in adding:
        every |= _FILE[name]["hard_examples"]
    if "late" in asked and not every:
        raise UserError(
            f"{experiment.recipe}: +late delays hard examples, but the recipe has none; add +adversarial"
        )
    name = "+".join([experiment.recipe, *(name for name in MODIFIERS if name in asked)])
    made = validate({**dict(experiment), "recipe": name, "hard_examples": every})
    if "late" not in asked:
        return made
    late = {kind: example.but(start=0.5) for kind, example in made.hard_examples.items()}
    return made.model_copy(update={"hard_examples": late})


def _narrow(experiment: Experiment) -> dict[str, Any]:
    """Return the fields of small versions. Terms are averaged, so that hard examples do not increase the step size."""
    kept = experiment.network.model_dump(include={"streams", "mean", "std"})
    widths = (16, 32, 64, 128) if kept["streams"] == "one" else (8, 16, 32, 64)
    network = NetworkConfig(name="small-resnet", widths=widths, stem_stride=2, **kept)
    return {
        "epochs": 20,
        "batch_size": 256,
        "network": network,
        "objective": ObjectiveConfig(reduction="mean"),
    }
