"""CIFAR-10 with every method, on ResNet-18; `+small` trains a small network in minutes on two cores.

MoCo-v2 has the settings of MoCo's own demo (F4), but for `+small`, SimCLR its authors' at this size (F6), SimSiam
too; rotation has its paper's batch, momentum and decay, but not its schedule. Elsewhere nothing official exists (F8): a method's own fields are shrunk with the network, its
optimizer and schedule are MoCo's, or those published for batches of 256 with prototypes. There are a few hundred
prototypes a head, because 3000 clusters of 50,000 images are poor pseudo-labels. `+small` has a network, views and an
optimizer of its own (`_small`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from hexa.data.views.making import ViewsConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.byol import BYOLConfig
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.methods.dino import DINOConfig
from hexa.methods.moco import MoCoConfig
from hexa.methods.pcl import PCLConfig
from hexa.methods.rotation import RotationConfig
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.simsiam import SimSiamConfig
from hexa.methods.swav import SwAVConfig
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import CIFAR_MEAN, CIFAR_STD
from hexa.objective import ObjectiveConfig
from hexa.recipes import register
from hexa.recipes.experiment import Experiment
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

Fields = dict[str, Any]

_STATISTICS: Fields = {"mean": CIFAR_MEAN, "std": CIFAR_STD}


def views_at_32(recipe: str = "moco-cifar", **fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate({"recipe": recipe, "size": 32, **fields})


def moco(bn_groups: int, head: Literal["linear", "mlp"] = "linear") -> MoCoConfig:
    return MoCoConfig(
        queue_size=4096, momentum=0.99, temperature=0.1, head=head, bn_groups=bn_groups
    )


def resnet(**fields: Any) -> NetworkConfig:
    return NetworkConfig(name="resnet18", small_stem=True, **_STATISTICS, **fields)


def wide(widths: tuple[int, ...], **fields: Any) -> NetworkConfig:
    return NetworkConfig(
        name="small-resnet", widths=widths, stem_stride=2, stem="cosine", **_STATISTICS, **fields
    )


def _vit(**options: bool | int | float | str) -> NetworkConfig:
    """Its positions are resampled for small crops."""
    options = {"img_size": 32, "patch_size": 4, "dynamic_img_size": True, **options}
    return NetworkConfig(name="vit_tiny_patch16_224", options=options, **_STATISTICS)


def _prototypes(views: str) -> Fields:
    """LARC: 0.6 → 0.0006 (D16), a tenth of warm-up."""
    warmup: Fields = {"warmup_epochs": 10, "warmup_at_most": 0.1, "warmup_start_share": 0.0625}
    return {
        "batch_size": 256,
        "views": ViewsConfig.model_validate({"recipe": views}),
        "optimizer": OptimizerConfig(name="larc", learning_rate=0.6, weight_decay=1e-6),
        "schedule": ScheduleConfig(kind="cosine", per="step", final_share=0.001, **warmup),
    }


def _deepcluster(hidden: int) -> DeepClusterConfig:
    return DeepClusterConfig(hidden=hidden, num_prototypes=(300, 300, 300))


def _swav(hidden: int) -> SwAVConfig:
    """Prototypes start to learn after an epoch of 195 steps; balancing 300 codes over 512 rows needs no queue."""
    return SwAVConfig(hidden=hidden, num_prototypes=300, freeze_prototypes_steps=195)


def _pcl(contrast: MoCoConfig, warmup_epochs: int) -> PCLConfig:
    return PCLConfig(contrast=contrast, num_clusters=(250, 500, 1000), warmup_epochs=warmup_epochs)


SMALLER: Fields = {"size": 24, "test_scale": 1.333}
DECAY: Fields = {"base_batch_size": 256, "weight_decay": 5e-4}
_MUON = OptimizerConfig(name="muon", learning_rate=0.03, other_rate=0.08, **DECAY)
WARM: Fields = {"kind": "cosine", "per": "step", "warmup_epochs": 10, "warmup_at_most": 0.1}
#: Fewer, newer keys and a faster key encoder.
_SMALL_MOCO: Fields = {"method": moco(4).model_copy(update={"queue_size": 1024, "momentum": 0.98})}
_DEEPCLUSTER = {
    "method": _deepcluster(2048),
    "small": {"method": _deepcluster(512), "objective": ObjectiveConfig()},
}
_SWAV = {"method": _swav(2048), "small": {"method": _swav(512), "objective": ObjectiveConfig()}}
_SHORT_DINO: Fields = {"momentum": 0.99, "warmup_epochs": 0, "teacher_temperature": 0.04}
_DINO: Fields = {
    "views": views_at_32("swav-cifar-6crop"),
    "optimizer": OptimizerConfig(
        name="adamw", learning_rate=1e-3, base_batch_size=256, weight_decay=1e-4
    ),
    "schedule": ScheduleConfig(**WARM, final_share=0.001),
}

#: Name -> the fields that differ from MoCo-v2's. Besides them `title`: what the recipe is; `expected`: the published
#: value at this size; `cost`; `small`: the fields that the small version changes besides those of `_small`.
RECIPES: dict[str, Fields] = {
    "moco-v2": {
        "title": "MoCo-v2 as in MoCo's own demo",
        "expected": "published k-NN 82.6 (200 epochs), 86.3 (400), 88.7 (800)",
        "small": _SMALL_MOCO,
    },
    "hexa-moco": {
        "title": "HEXA-MoCo, MoCo-v2 with adversarial queries,",
        "hard_examples": {"adversarial": Adversarial()},
        "cost": "1.75 times that of MoCo-v2",
        "small": _SMALL_MOCO,
    },
    "simclr": {
        "title": "SimCLR",
        "method": SimCLRConfig(temperature=0.5),
        "optimizer": OptimizerConfig(
            name="lars", learning_rate=1.0, base_batch_size=256, weight_decay=1e-4
        ),
        "schedule": ScheduleConfig(**WARM),
    },
    "byol": {
        "title": "BYOL",
        "method": BYOLConfig(hidden=1024, momentum=0.99),
        "small": {"method": BYOLConfig(hidden=512, dim=128, momentum=0.99)},
    },
    "simsiam": {
        "title": "SimSiam",
        "method": SimSiamConfig(projector_layers=2),
        "schedule": ScheduleConfig(kind="cosine", per="step"),
        "small": {"method": SimSiamConfig(projector_layers=2, dim=512, predictor_hidden=128)},
    },
    "rotation": {
        "title": "Rotation prediction",
        "batch_size": 128,
        "method": RotationConfig(),
        "views": views_at_32("crop-flip", scale=(0.5, 1.0)),
        "optimizer": OptimizerConfig(
            learning_rate=0.1, base_batch_size=128, weight_decay=5e-4, nesterov=True
        ),
    },
    "dino": {
        "title": "DINO, 2×32 + 4×16 pixels,",
        "method": DINOConfig(num_prototypes=4096, head_norm=True, **_SHORT_DINO),
        **_DINO,
        "small": {
            "method": DINOConfig(hidden=512, num_prototypes=1024, head_norm=True, **_SHORT_DINO)
        },
    },
    # No batch-norm in the head either. In a few epochs a narrow ViT (on patches of 8 × 8 pixels) learns nothing from
    # crops of four patches, collapses to uniform classes once the prototypes learn, and forgets colours before it knows
    # shapes: two large crops, fixed prototypes, mild views.
    "dino-vit": {
        "title": "DINO with a ViT",
        "network": _vit(),
        "method": DINOConfig(num_prototypes=4096, head_norm=False, **_SHORT_DINO),
        **_DINO,
        "small": {
            "network": _vit(
                patch_size=8,
                embed_dim=96,
                depth=4,
                num_heads=3,
                class_token=False,
                global_pool="avg",
            ),
            "method": DINOConfig(
                hidden=512,
                num_prototypes=256,
                head_norm=True,
                freeze_prototypes_epochs=1000,
                **_SHORT_DINO,
            ),
            "optimizer": _DINO["optimizer"],
            "views": views_at_32(
                scale=(0.4, 1.0), brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05
            ),
        },
    },
    "deepcluster-v2": {
        "title": "DeepCluster-v2, 2×32 pixels,",
        **_DEEPCLUSTER,
        **_prototypes("swav-cifar"),
    },
    "hexa-dcluster": {
        "title": "HEXA-DCluster, DeepCluster-v2 with adversarial crops, 2×32 pixels,",
        "hard_examples": {"adversarial": Adversarial()},
        "cost": "twice that of DeepCluster-v2",
        **_DEEPCLUSTER,
        **_prototypes("swav-cifar"),
    },
    "deepcluster-v2-6crop": {
        "title": "DeepCluster-v2, 2×32 + 4×16 pixels,",
        **_DEEPCLUSTER,
        **_prototypes("swav-cifar-6crop"),
    },
    "swav": {"title": "SwAV, 2×32 pixels,", **_SWAV, **_prototypes("swav-cifar")},
    "swav-6crop": {
        "title": "SwAV, 2×32 + 4×16 pixels,",
        **_SWAV,
        **_prototypes("swav-cifar-6crop"),
    },
    "pcl-v2": {
        "title": "PCL-v2",
        "method": _pcl(moco(8, "mlp"), 20),
        "small": {"method": _pcl(moco(4, "mlp"), 2)},
    },
}
#: What an entry says besides fields.
_NOT_FIELDS = {"title", "expected", "cost", "small"}


def small(views: ViewsConfig) -> Fields:
    """Network, optimizer and views of small versions; a view has three quarters of the features' size."""
    return {
        "network": wide((32, 64, 128)),
        "optimizer": _MUON,
        "views": views.model_copy(update=SMALLER),
    }


def _small(given: Fields) -> Fields:
    """The fields of the small version of a recipe.

    Three wide stages on a fixed stem learn more in a given time than four narrow ones, by Muon, with smaller views of
    larger crops (docs/results.md), unless `small` has views.
    """
    views = given.get("views", views_at_32())
    larger = views.model_copy(update={"scale": (max(0.2, views.scale[0]), 1.0)})
    return {**small(larger), **given.get("small", {})}


def make(name: str, given: Fields) -> Experiment:
    """The recipe cifar10-NAME: MoCo-v2 with these fields."""
    base = Experiment(
        recipe=f"cifar10-{name}",
        data="cifar10",
        epochs=200,
        batch_size=512,
        network=resnet(),
        views=views_at_32(),
        method=moco(8),
        optimizer=OptimizerConfig(learning_rate=0.03, **DECAY),
        schedule=ScheduleConfig(kind="cosine", per="epoch"),
        monitor=MonitorConfig(knn_every=10, temperature=0.1),
    )
    return base.model_copy(
        update={field: value for field, value in given.items() if field not in _NOT_FIELDS}
    )


def offer(recipes: dict[str, Fields]) -> None:
    """Register cifar10-NAME for each entry, as RECIPES has them."""
    for name, given in recipes.items():
        register(
            f"cifar10-{name}",
            partial(make, name, given),
            f"""{given["title"]} on CIFAR-10, {"a ViT of 12 layers" if "vit" in name else "ResNet-18"}.

            Command: hexa pretrain cifar10-{name}

            Expected: {given.get("expected", "no published value at this size. Not yet run here")}. `+small`:
            docs/results.md.

            Cost: {given.get("cost", "that of the method")}, 200 epochs of 50,000 images; for a GPU. `+small`: minutes on two cores.
            """,
            **_small(given),
        )


offer(RECIPES)
