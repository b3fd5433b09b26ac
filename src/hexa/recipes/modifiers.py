"""Modifiers of recipe names, such as `cifar10-simclr+small+adversarial`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hexa.config import UserError, nearest
from hexa.core import HardExample
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.nn.backbones import NetworkConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes.experiment import Experiment

#: Modifiers with descriptions, in the order of the name that a run records.
MODIFIERS = {
    "small": "a small ResNet whose first layer halves the image, 20 epochs, batch size 256: minutes on two cores",
    "adversarial": "adversarial views in addition to the clean ones",
    "robust": "adversarial views at ε = 8/255, through the clean batch-norms: robust, but less accurate",
    "cutmix": "cut-mixed views in addition to the clean ones",
    "cutmix-adversarial": "cut-mixed views of the adversarial views; needs +adversarial or +robust",
    "split": "half of each batch clean, half cut-mixed, in one pass, at the cost of the plain recipe",
    "late": "hard examples start half-way; the first half equals the plain recipe, also in cost",
}
#: N-FGSM (docs/results.md#robust-features-from-random-weights).
_STRONG = Adversarial(epsilon=8.0, step_size=8.0, random_start=2.0, project=False, branch="main")
_HARD: dict[str, tuple[str, HardExample]] = {
    "adversarial": ("adversarial", Adversarial()),
    "robust": ("adversarial", _STRONG),
    "cutmix": ("cutmix", CutMix()),
    "cutmix-adversarial": ("cutmix_adversarial", CutMix(source="adversarial")),
    "split": ("cutmix", CutMix(fraction=0.5)),
}


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
    if "split" in asked and (asked & set(_HARD) != {"split"} or experiment.hard_examples):
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
    every = experiment.hard_examples | dict(
        _HARD[name] for name in MODIFIERS if name in asked and name in _HARD
    )
    if "late" in asked:
        if not every:
            raise UserError(
                f"{experiment.recipe}: +late delays hard examples, but the recipe has none; add +adversarial"
            )
        every = {kind: example.but(start=0.5) for kind, example in every.items()}
    name = "+".join([experiment.recipe, *(name for name in MODIFIERS if name in asked)])
    return experiment.model_copy(update={"recipe": name, "hard_examples": every})


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
