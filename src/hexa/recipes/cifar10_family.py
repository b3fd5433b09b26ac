"""CIFAR-10 with every other method, on ResNet-18 and on a narrow network for two cores, plain and with hard examples.

SimCLR is as its authors have it at this size (REFERENCE §3.2), SimSiam too; InstDisc and rotation have their papers'
fields (softmax and τ 0.1; batch, momentum and decay), but not their schedules. Elsewhere nothing official exists: the
method's own fields are shrunk with the network, and optimizer and schedule are those of the MoCo recipes.
"""

from __future__ import annotations

from typing import Any

from hexa.core import MethodConfig
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.methods.byol import BYOLConfig
from hexa.methods.dino import DINOConfig
from hexa.methods.instdisc import InstDiscConfig
from hexa.methods.jigsaw import JigsawConfig, PuzzleConfig
from hexa.methods.pirl import PIRLConfig
from hexa.methods.rotation import RotationConfig
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.simsiam import SimSiamConfig
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import CIFAR_MEAN, CIFAR_STD
from hexa.recipes import cifar10
from hexa.recipes.cifar10 import ADV, PLUS, Hard, Make, offer
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

PUZZLE = PuzzleConfig(grid=2)


def _views(recipe: str = "moco-cifar", **fields: Any) -> ViewsConfig:
    return ViewsConfig.model_validate({"recipe": recipe, "size": 32, **fields})


def _make(
    method: MethodConfig,
    small_method: MethodConfig,
    batch_size: int = 512,
    small_changes: dict[str, Any] | None = None,
    **changes: Any,
) -> Make:
    """The MoCo recipe of this size with another method and some other fields; small ones keep batches of 256."""

    def make(name: str, hard: Hard, small: bool) -> Experiment:
        if small:
            update = {"method": small_method, **changes, **(small_changes or {})}
            return cifar10.small(name, hard).model_copy(update=update)
        return cifar10.resnet18(name, hard).model_copy(update={"method": method, "batch_size": batch_size, **changes})

    return make


_SIMCLR = _make(
    SimCLRConfig(temperature=0.5),
    SimCLRConfig(temperature=0.5),
    optimizer=OptimizerConfig(name="lars", learning_rate=1.0, base_batch_size=256, weight_decay=1e-4),
    schedule=ScheduleConfig(kind="cosine", per="step", warmup_epochs=10, warmup_at_most=0.1),
)
_BYOL = _make(
    BYOLConfig(hidden=1024, momentum=0.99),
    BYOLConfig(hidden=512, dim=128, momentum=0.99),
)
_SIMSIAM = _make(
    SimSiamConfig(projector_layers=2),
    SimSiamConfig(projector_layers=2, dim=512, predictor_hidden=128),
    small_changes={"optimizer": OptimizerConfig(learning_rate=0.3, base_batch_size=256, weight_decay=5e-4)},
    schedule=ScheduleConfig(kind="cosine", per="step"),
)
_INSTDISC = _make(
    InstDiscConfig(objective="softmax", temperature=0.1),
    InstDiscConfig(objective="softmax", temperature=0.1),
    views=_views(num_views=1, scale=(0.2, 1.0)),
)
_PIRL = _make(
    PIRLConfig(puzzle=PUZZLE, objective="softmax", num_negatives=4096, temperature=0.1),
    PIRLConfig(puzzle=PUZZLE, objective="softmax", num_negatives=4096, temperature=0.1),
    views=_views(),
)
_ROTATION = _make(
    RotationConfig(),
    RotationConfig(),
    batch_size=128,
    views=_views("crop-flip", scale=(0.5, 1.0)),
    optimizer=OptimizerConfig(learning_rate=0.1, base_batch_size=128, weight_decay=5e-4, nesterov=True),
)
_JIGSAW = _make(
    JigsawConfig(puzzle=PUZZLE, num_permutations=24, hidden=512),
    JigsawConfig(puzzle=PUZZLE, num_permutations=24, hidden=128),
    views=_views(num_views=1, scale=(0.5, 1.0)),
    optimizer=OptimizerConfig(learning_rate=0.1, base_batch_size=256, weight_decay=5e-4),
)
# With all that InfoMin does to colours a narrow network learns next to nothing in a few epochs, and below nothing with
# attacks: it keeps one operation of RandAugment, and MoCo's jitter.
_INFOMIN = _make(
    cifar10.resnet18("").method,
    cifar10.small("").method,
    views=_views("infomin", blur_probability=0.0),
    small_changes={
        "views": _views(
            "infomin",
            blur_probability=0.0,
            randaugment_ops=1,
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.1,
        )
    },
)
_SHORT_DINO: dict[str, Any] = {"momentum": 0.99, "warmup_epochs": 0, "teacher_temperature": 0.04}
_DINO = _make(
    DINOConfig(num_prototypes=4096, head_norm=True, **_SHORT_DINO),
    DINOConfig(hidden=512, num_prototypes=1024, head_norm=True, **_SHORT_DINO),
    views=_views("swav-cifar-6crop"),
    optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, base_batch_size=256, weight_decay=1e-4),
    schedule=ScheduleConfig(kind="cosine", per="step", warmup_epochs=10, warmup_at_most=0.1, final_share=0.001),
)


def _dino_vit(name: str, hard: Hard, small: bool) -> Experiment:
    """A ViT on patches of 4 × 4 pixels, the small one of 8 × 8; its positions are resampled for small crops."""
    options: dict[str, bool | int | float | str] = {"img_size": 32, "patch_size": 4, "dynamic_img_size": True}
    if small:
        options |= {"patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}
        options |= {"class_token": False, "global_pool": "avg"}
    network = NetworkConfig(name="vit_tiny_patch16_224", options=options, mean=CIFAR_MEAN, std=CIFAR_STD)
    made = _DINO(name, hard, small)
    if small:
        return made.model_copy(update={"network": network, **_SMALL_VIT})
    # no batch-norm in the head either
    return made.model_copy(update={"network": network, "method": made.method.model_copy(update={"head_norm": False})})


# In a few epochs a ViT this narrow learns nothing from crops of four patches, collapses to uniform classes once the
# prototypes learn, and forgets colours before it knows shapes: two large crops, fixed prototypes, mild views.
_SMALL_VIT: dict[str, Any] = {
    "method": DINOConfig(hidden=512, num_prototypes=256, head_norm=True, freeze_prototypes_epochs=1000, **_SHORT_DINO),
    "views": _views(scale=(0.4, 1.0), brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05),
}


for _name, _title, _recipe in (
    ("simclr", "SimCLR", _SIMCLR),
    ("byol", "BYOL", _BYOL),
    ("simsiam", "SimSiam", _SIMSIAM),
    ("instdisc", "Instance discrimination", _INSTDISC),
    ("pirl", "PIRL", _PIRL),
    ("rotation", "Rotation prediction", _ROTATION),
    ("jigsaw", "Jigsaw puzzles of 2 × 2 tiles", _JIGSAW),
    ("infomin", "MoCo-v2 with the views of InfoMin", _INFOMIN),
    ("dino", "DINO, 2×32 + 4×16 pixels,", _DINO),
):
    offer(_name, _title, _recipe, {})
    offer(f"hexa-{_name}", f"{_title} with adversarial views", _recipe, ADV)
    if _name in ("simclr", "byol"):
        offer(f"hexa-{_name}-plus", f"{_title} with adversarial and cut-mixed views", _recipe, PLUS)
for _name, _title, _hard in (
    ("dino-vit", "DINO with a ViT", {}),
    ("hexa-dino-vit", "DINO with a ViT and adversarial crops", ADV),
):
    offer(_name, _title, _dino_vit, _hard, networks=("a ViT of 12 layers", "a ViT of 4 narrow layers"))
