"""CIFAR-10 with the methods that the paper compares with.

InstDisc has its paper's softmax and temperature, but not its schedule. For the other methods nothing official exists at
this size (F8): their own fields are shrunk with the network, and their optimizer and schedule are MoCo's.
"""

from __future__ import annotations

from hexa.methods.moco import MoCoConfig
from hexa.recipes.cifar10 import (
    SMALLER,
    WARM,
    Fields,
    offer,
    views_at_32,
    wide,
)
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig
from hexa_paper.methods.cmc import CMCConfig
from hexa_paper.methods.cpc import CPCConfig
from hexa_paper.methods.instdisc import InstDiscConfig
from hexa_paper.methods.jigsaw import JigsawConfig, PuzzleConfig
from hexa_paper.methods.pirl import PIRLConfig


def _cpc(hidden: int) -> CPCConfig:
    """Two rows below is the next patch without a common pixel."""
    return CPCConfig(patch=16, stride=8, ahead=(2,), layers=2, hidden=hidden)


_PUZZLE = PuzzleConfig(grid=2)
_RESNET: Fields = {"name": "resnet18", "small_stem": True}
#: Views that are cut into patches and into tiles; those of small versions have 32 pixels too.
_PATCHES = views_at_32(num_views=1, scale=(0.3, 1.0))
_TILES = views_at_32(num_views=1, scale=(0.5, 1.0))
#: The colour jitter of MoCo-v2, milder than InfoMin's.
_MILD_COLOURS: Fields = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}

#: Name -> fields, as cifar10.yaml of `hexa.recipes` has them.
RECIPES: dict[str, Fields] = {
    # With all that InfoMin does to colours a narrow network learns next to nothing in a few epochs, and below nothing
    # with attacks: it keeps one operation of RandAugment, and MoCo's jitter.
    "infomin": {
        "title": "MoCo-v2 with the views of InfoMin",
        "views": views_at_32("infomin", blur_probability=0.0),
        "small": {
            "method": MoCoConfig(
                queue_size=4096, momentum=0.99, temperature=0.1, head="linear", bn_groups=4
            ),
            "views": views_at_32(
                "infomin", blur_probability=0.0, randaugment_ops=1, **_MILD_COLOURS, **SMALLER
            ),
        },
    },
    "instdisc": {
        "title": "Instance discrimination",
        "method": InstDiscConfig(objective="softmax", temperature=0.1),
        "views": views_at_32(num_views=1, scale=(0.2, 1.0)),
    },
    "cmc": {
        "title": "CMC, L against ab,",
        "method": CMCConfig(objective="softmax", temperature=0.1),
        "network": {**_RESNET, "streams": "lab"},
        "views": views_at_32("crop-flip", scale=(0.2, 1.0)),
        "small": {"network": wide((16, 32, 64), streams="lab")},
    },
    # Published with layer-norm, because the statistics of a batch tell a patch of others; the network of the small
    # version has batch-norm, over all patches of all images.
    "cpc": {
        "title": "CPC-v2, 3 × 3 patches of 16 pixels,",
        "batch_size": 256,
        "network": {**_RESNET, "options": {"norm_layer": "groupnorm1"}},
        "method": _cpc(256),
        "views": _PATCHES,
        "optimizer": OptimizerConfig(name="adamw", learning_rate=4e-4, weight_decay=1e-5),
        "schedule": ScheduleConfig(**WARM),
        "small": {"method": _cpc(64), "views": _PATCHES},
    },
    "pirl": {
        "title": "PIRL",
        "method": PIRLConfig(
            puzzle=_PUZZLE, objective="softmax", num_negatives=4096, temperature=0.1
        ),
    },
    "jigsaw": {
        "title": "Jigsaw puzzles of 2 × 2 tiles",
        "method": JigsawConfig(puzzle=_PUZZLE, num_permutations=24, hidden=512),
        "views": _TILES,
        "optimizer": OptimizerConfig(learning_rate=0.1, base_batch_size=256, weight_decay=5e-4),
        "small": {
            "method": JigsawConfig(puzzle=_PUZZLE, num_permutations=24, hidden=128),
            "views": _TILES,
        },
    },
}

offer(RECIPES)
