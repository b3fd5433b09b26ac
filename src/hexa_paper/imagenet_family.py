"""ImageNet with every other method, as its paper has it. Not run here.

Weight decay is on all parameters where the optimizer is SGD, also where a paper spares batch-norms. Results are those
the papers print for a linear classifier on the frozen network. HEXA was never published on these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hexa import published
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.methods.byol import BYOLConfig
from hexa.methods.cmc import CMCConfig
from hexa.methods.cpc import CPCConfig
from hexa.methods.dino import DINOConfig
from hexa.methods.infomin import InfoMinConfig
from hexa.methods.instdisc import InstDiscConfig
from hexa.methods.jigsaw import JigsawConfig
from hexa.methods.moco import MoCoConfig
from hexa.methods.pirl import PIRLConfig
from hexa.methods.rotation import RotationConfig
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.simsiam import SimSiamConfig
from hexa.nn.backbones import NetworkConfig
from hexa.recipes import register
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig
from hexa_paper.imagenet import DATA


def _views(recipe: str, **fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate({"recipe": recipe, **fields})


def _cosine(**fields: Any) -> ScheduleConfig:
    return ScheduleConfig(kind="cosine", per="step", **fields)


def _falls(*epochs: int) -> ScheduleConfig:
    return ScheduleConfig(kind="steps", milestones=epochs, gamma=0.1)


def _sgd(rate: float, base: int, weight_decay: float = 1e-4) -> OptimizerConfig:
    return OptimizerConfig(learning_rate=rate, base_batch_size=base, weight_decay=weight_decay)


def _lars(rate: float, weight_decay: float) -> OptimizerConfig:
    return OptimizerConfig(name="lars", learning_rate=rate, base_batch_size=256, weight_decay=weight_decay)


_RESNET, _LONG = NetworkConfig(name="resnet50"), (30, 60, 90, 100)
_HANDCRAFTED = {"epochs": 105, "batch_size": 256, "optimizer": _sgd(0.1, 256), "schedule": _falls(*_LONG)}

#: What each recipe is, and the fields that it has beside `data` and `recipe`.
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "simclr": (
        "SimCLR v1",
        {
            "epochs": 1000,
            "batch_size": 4096,
            "views": _views("simclr"),
            "method": SimCLRConfig(),
            "optimizer": _lars(0.3, 1e-6),
            "schedule": _cosine(warmup_epochs=10),
        },
    ),
    "byol": (
        "BYOL",
        {
            "epochs": 1000,
            "batch_size": 4096,
            "views": _views("byol"),
            "method": BYOLConfig(),
            "optimizer": _lars(0.2, 1.5e-6),
            "schedule": _cosine(warmup_epochs=10),
        },
    ),
    "simsiam": (
        "SimSiam",
        {
            "epochs": 100,
            "batch_size": 512,
            "views": _views("moco-v2"),
            "method": SimSiamConfig(),
            "optimizer": _sgd(0.05, 256),
            "schedule": ScheduleConfig(kind="cosine", per="epoch"),
        },
    ),
    "instdisc": (
        "Instance discrimination",
        {
            "epochs": 200,
            "batch_size": 256,
            "views": _views("moco-v1", num_views=1),
            "method": InstDiscConfig(),
            "optimizer": _sgd(0.03, 256),
            "schedule": _falls(120, 160),
        },
    ),
    "cmc": (
        "CMC, L against ab, two ResNet-50",
        {
            "epochs": 200,
            "batch_size": 128,
            "network": NetworkConfig(name="resnet50", streams="lab"),
            "views": _views("crop-flip", scale=(0.08, 1.0)),
            "method": CMCConfig(),
            "optimizer": _sgd(0.03, 128),
            "schedule": _falls(120, 160),
        },
    ),
    "cpc": (
        "CPC-v2 with a ResNet-50",
        {
            "epochs": 200,
            "batch_size": 512,
            "network": NetworkConfig(name="resnet50", options={"norm_layer": "groupnorm1"}),
            "views": _views("moco-v1", num_views=1, size=260),
            "method": CPCConfig(),
            "optimizer": OptimizerConfig(name="adamw", learning_rate=4e-4, weight_decay=1e-5),
            "schedule": _cosine(),
        },
    ),
    "pirl": (
        "PIRL",
        {
            "epochs": 800,
            "batch_size": 1024,
            "views": _views(
                "moco-v1",
                num_views=1,
                scale=(0.08, 1.0),
                hue=0.2,
                extra_crops=[{"count": 1, "size": 255, "scale": (0.6, 1.0)}],
            ),
            "method": PIRLConfig(),
            "optimizer": _sgd(0.12, 1024),
            "schedule": _cosine(final_share=0.001),
        },
    ),
    "jigsaw": (
        "Jigsaw puzzles",
        {"views": _views("crop-flip", size=255, scale=(0.5, 1.0)), "method": JigsawConfig(), **_HANDCRAFTED},
    ),
    "rotation": (
        "Rotation prediction",
        {"views": _views("crop-flip"), "method": RotationConfig(), **_HANDCRAFTED},
    ),
    "infomin": (
        "InfoMin with its jigsaw branch",
        {
            "epochs": 800,
            "batch_size": 256,
            "views": _views("infomin", extra_crops=[{"count": 1, "size": 255, "scale": (0.6, 1.0)}]),
            "method": InfoMinConfig(contrast=MoCoConfig(bn_groups=8, temperature=0.15)),
            "optimizer": _sgd(0.03, 256),
            "schedule": ScheduleConfig(kind="cosine", per="epoch"),
        },
    ),
    "dino": (
        "DINO with ViT-S/16",
        {
            "epochs": 800,
            "batch_size": 1024,
            "network": NetworkConfig(
                name="vit_small_patch16_224", options={"dynamic_img_size": True, "drop_path_rate": 0.1}
            ),
            "views": _views("dino"),
            "method": DINOConfig(),
            "optimizer": OptimizerConfig(
                name="adamw",
                learning_rate=5e-4,
                base_batch_size=256,
                weight_decay=0.04,
                final_weight_decay=0.4,
                max_gradient_norm=3.0,
            ),
            "schedule": _cosine(warmup_epochs=10, final_share=5e-4),
        },
    ),
}


#: The lengths of the paper's rows where a method's own paper has another: the recipe above, and what differs. Jigsaw's
#: rate falls at the same shares of its epochs; SimCLR's row of 200 epochs is of batches of 256.
OTHER_LENGTHS: dict[str, tuple[str, dict[str, Any]]] = {
    "simclr-200": ("simclr", {"epochs": 200, "batch_size": 256}),
    "byol-800": ("byol", {"epochs": 800}),
    "infomin-200": ("infomin", {"epochs": 200}),
    "jigsaw-90": ("jigsaw", {"epochs": 90, "schedule": _falls(26, 51, 77, 86)}),
    "jigsaw-200": ("jigsaw", {"epochs": 200, "schedule": _falls(57, 114, 171, 190)}),
}
RECIPES |= {name: (RECIPES[of][0], {**RECIPES[of][1], **fields}) for name, (of, fields) in OTHER_LENGTHS.items()}


def _make(short: str) -> Experiment:
    return Experiment(recipe=f"imagenet-{short}", data=DATA, **{"network": _RESNET, **RECIPES[short][1]})


for _short, (_title, _fields) in RECIPES.items():
    register(
        f"imagenet-{_short}",
        partial(_make, _short),
        f"""{_title}: ImageNet, {_fields["epochs"]} epochs of batches of {_fields["batch_size"]}.

        Command: torchrun --nproc-per-node 8 -m hexa pretrain imagenet-{_short} --data folder:imagenet

        Expected: {published.expected(f"imagenet-{_short}")}. Not run here.

        Cost: that of the method, many GPUs for days.
        """,
    )
