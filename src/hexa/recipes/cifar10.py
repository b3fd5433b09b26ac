"""CIFAR-10 with every method, on ResNet-18; `+small` trains a small network in minutes on two cores.

MoCo-v2 has the settings of the MoCo demo (F4); SimCLR (F6) and SimSiam have published optimizer settings.
Rotation has the published batch size, momentum and weight decay, but another schedule. For the other methods, no
official settings exist (F8): fields of the method are scaled down with the network, and optimizer and schedule are those
of MoCo or, for methods with prototypes, those published for batches of 256. A head has a few hundred prototypes, because
3000 clusters of 50,000 images are poor pseudo-labels. `+small` changes network, views and optimizer (`_small`). The
fields of the recipes are in `cifar10.yaml`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hexa.data.views.making import ViewsConfig
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import CIFAR_MEAN, CIFAR_STD
from hexa.recipes import register
from hexa.recipes.experiment import Experiment, validate
from hexa.runtime import parsing
from hexa.training.optimizers import OptimizerConfig

Fields = dict[str, Any]

_STATISTICS: Fields = {"mean": CIFAR_MEAN, "std": CIFAR_STD}


def views_at_32(recipe: str = "moco-cifar", **fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate({"recipe": recipe, "size": 32, **fields})


def wide(widths: tuple[int, ...], **fields: Any) -> NetworkConfig:
    return NetworkConfig(
        name="small-resnet", widths=widths, stem_stride=2, stem="cosine", **_STATISTICS, **fields
    )


SMALLER: Fields = {"size": 24, "test_scale": 1.333}
_MUON = OptimizerConfig(
    name="muon", learning_rate=0.03, other_rate=0.08, base_batch_size=256, weight_decay=5e-4
)
WARM: Fields = {"kind": "cosine", "per": "step", "warmup_epochs": 10, "warmup_at_most": 0.1}
_FILE: dict[str, Any] = parsing.read_resource("hexa.recipes", "cifar10.yaml")
#: Keys of an entry that are not fields.
_NOT_FIELDS = {"title", "expected", "cost", "small"}


def _small(given: Fields) -> Fields:
    """Return the fields of the small version of a recipe.

    At equal training time, three wide stages on a fixed stem learn more than four narrow stages; so do Muon, and smaller
    views of larger crops (benchmarks/tables.md). Fields in `small` take precedence.
    """
    views = make("", given).views
    larger = views.model_copy(update={"scale": (max(0.2, views.scale[0]), 1.0)})
    own = given.get("small", {})
    made = make("", {**given, **own})
    return {
        "network": wide((32, 64, 128)),
        "optimizer": _MUON,
        "views": larger.model_copy(update=SMALLER),
        **{name: getattr(made, name) for name in own},
    }


def make(name: str, given: Fields) -> Experiment:
    """Return the recipe cifar10-NAME: MoCo-v2 with these fields."""
    own = {name: value for name, value in given.items() if name not in _NOT_FIELDS}
    fields = {"recipe": f"cifar10-{name}", **_FILE["base"], **own}
    if isinstance(fields["network"], dict):
        fields["network"] = {**_STATISTICS, **fields["network"]}
    return validate(fields)


def offer(recipes: dict[str, Fields]) -> None:
    """Register cifar10-NAME for each entry; entries have the form of cifar10.yaml."""
    for name, given in recipes.items():
        register(
            f"cifar10-{name}",
            partial(make, name, given),
            f"""{given["title"]} on CIFAR-10, {"a ViT of 12 layers" if "vit" in name else "ResNet-18"}.

            Command: hexa pretrain cifar10-{name}

            Expected: {given.get("expected", "no published value at this size. Not yet run here")}. `+small`:
            benchmarks/tables.md.

            Cost: {given.get("cost", "that of the method")}, 200 epochs of 50,000 images; for a GPU. `+small`: minutes on two cores.
            """,
            **_small(given),
        )


offer(_FILE["recipes"])
