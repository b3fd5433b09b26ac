"""ImageNet: the published rows of MoCo, PCL-v2, DeepCluster-v2 and SwAV (REFERENCE §5.13, §4.6). Not run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hexa import published
from hexa.core.schemes import SCHEMES
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.methods.moco import MoCoConfig
from hexa.methods.pcl import PCLConfig
from hexa.methods.swav import SwAVConfig
from hexa.nn.backbones import NetworkConfig
from hexa.recipes import register
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

DATA = "folder:imagenet"
Hard = dict[str, Any]


def moco(epochs: int, hard: Hard) -> Experiment:
    """ResNet-50, 2×224 of scale 0.2–1, batch 256, lr 0.03, cosine per epoch (REFERENCE §2.1, §2.2)."""
    return Experiment(
        recipe="",
        data=DATA,
        epochs=epochs,
        batch_size=256,
        network=NetworkConfig(name="resnet50"),
        views=ViewsConfig(size=224, scale=(0.2, 1.0)),
        method=MoCoConfig(bn_groups=8),
        hard_examples=hard,
        optimizer=OptimizerConfig(learning_rate=0.03, base_batch_size=256, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine", per="epoch"),
    )


def moco_v1() -> Experiment:
    """A linear head, τ 0.07, the views of v1, falls at epochs 120 and 160 (REFERENCE §2.1)."""
    changes = {
        "views": ViewsConfig.model_validate({"recipe": "moco-v1", "size": 224}),
        "method": MoCoConfig(bn_groups=8, head="linear", temperature=0.07),
        "schedule": ScheduleConfig(kind="steps", milestones=(120, 160), gamma=0.1),
    }
    return moco(200, {}).model_copy(update=changes)


def dcluster(epochs: int, hard: Hard, views: str) -> Experiment:
    """ResNet-50, three heads of 3000 always-frozen prototypes, LARC, cosine per step (REFERENCE §4.6).

    Two crops, batch 256: lr 0.6 → 0.0006, no warm-up (D16). More crops, batch 4096: 4.8 → 0.0048, warm-up from 0.3 over
    10 epochs or a tenth of a short run, SyncBN in 8 groups (64 GPUs in groups of 8).
    """
    large = views != "swav"
    warmup: dict[str, Any] = {"warmup_epochs": 10, "warmup_at_most": 0.1, "warmup_start_share": 0.0625}
    return Experiment(
        recipe="",
        data=DATA,
        epochs=epochs,
        batch_size=4096 if large else 256,
        network=NetworkConfig(name="resnet50", std=(0.228, 0.224, 0.225)),  # D22
        views=ViewsConfig.model_validate({"recipe": views}),
        method=DeepClusterConfig(bn_groups=8 if large else 1),
        hard_examples=hard,
        optimizer=OptimizerConfig(name="larc", learning_rate=4.8 if large else 0.6, weight_decay=1e-6),
        schedule=ScheduleConfig(kind="cosine", per="step", final_share=0.001, **(warmup if large else {})),
    )


def pcl() -> Experiment:
    """The network, views and optimizer of MoCo-v2, a queue of 16,384, three clusterings after 20 epochs."""
    contrast = MoCoConfig(bn_groups=8, queue_size=16384)
    return moco(200, {}).model_copy(update={"method": PCLConfig(contrast=contrast)})


def swav(epochs: int, *, large: bool) -> Experiment:
    """Eight crops; the optimizer of DeepCluster-v2 at this batch. Prototypes start to learn after about an epoch.

    Batch 256 has a queue of 3,840 embeddings from epoch 15 on (REFERENCE §4.9).
    """
    method = SwAVConfig(bn_groups=8) if large else SwAVConfig(queue_size=3840, freeze_prototypes_steps=5005)
    views = ViewsConfig.model_validate({"recipe": "swav-8crop"})
    like = dcluster(epochs, {}, "swav-8crop" if large else "swav")
    return like.model_copy(update={"views": views, "method": method})


_HEXA = "HEXA-MoCo, adversarial queries beside the clean ones"
_HEXA_PLUS = "HEXA⁺-DCluster, 8-crop"
_ABLATION = "published as a bar without a number; every scheme above the plain one, cutmix above cutmix-adversarial"
_ATTACKS = "published without numbers for ε and η of 1 and 3; only (3, 3) is worse (REFERENCE §5.2)"
_MIXING = "published without numbers; every Beta(α, β) above no cut-mix (ablate-dcluster)"
_SHORT = "MoCo-v2, 20 epochs, then a 1-epoch linear probe; the ablation's schemes are modifiers"
_SHORTER = "DeepCluster-v2, 2×160 + 4×96, 5 epochs, then a 1-epoch probe; the ablation's schemes are modifiers"
_ADV, _PLUS = SCHEMES["ii"].hard_examples, SCHEMES["iv"].hard_examples

#: Name -> title, experiment, and what was published if it is not the linear top-1 of a table.
ROWS: dict[str, tuple[str, Callable[[], Experiment], str]] = {
    "imagenet-moco-v1-200": ("MoCo v1", moco_v1, ""),
    "imagenet-moco-v2-200": ("MoCo-v2, the baseline", lambda: moco(200, {}), ""),
    "imagenet-moco-v2-800": ("MoCo-v2, the baseline", lambda: moco(800, {}), ""),
    "imagenet-hexa-moco-200": (_HEXA, lambda: moco(200, _ADV), ""),
    "imagenet-hexa-moco-800": (_HEXA, lambda: moco(800, _ADV), ""),
    "imagenet-pcl-v2-200": ("PCL-v2", pcl, ""),
    "imagenet-swav-b256-200": ("SwAV, 8-crop, batch 256", lambda: swav(200, large=False), ""),
    "imagenet-swav-200": ("SwAV, 8-crop", lambda: swav(200, large=True), ""),
    "imagenet-swav-800": ("SwAV, 8-crop", lambda: swav(800, large=True), ""),
    "imagenet-deepcluster-v2-200": ("DeepCluster-v2, 2-crop", lambda: dcluster(200, {}, "swav"), ""),
    "imagenet-deepcluster-v2-8crop-200": ("DeepCluster-v2, 8-crop", lambda: dcluster(200, {}, "swav-8crop"), ""),
    "imagenet-deepcluster-v2-8crop-800": ("DeepCluster-v2, 8-crop", lambda: dcluster(800, {}, "swav-8crop"), ""),
    "imagenet-hexa-dcluster-200": ("HEXA-DCluster, 2-crop", lambda: dcluster(200, _ADV, "swav"), ""),
    "imagenet-hexa-dcluster-8crop-200": ("HEXA-DCluster, 8-crop", lambda: dcluster(200, _ADV, "swav-8crop"), ""),
    "imagenet-hexa-dcluster-8crop-800": ("HEXA-DCluster, 8-crop", lambda: dcluster(800, _ADV, "swav-8crop"), ""),
    "imagenet-hexa-dcluster-plus-8crop-200": (_HEXA_PLUS, lambda: dcluster(200, _PLUS, "swav-8crop"), ""),
    "imagenet-hexa-dcluster-plus-8crop-800": (_HEXA_PLUS, lambda: dcluster(800, _PLUS, "swav-8crop"), ""),
    "ablate-moco": (_SHORT, lambda: moco(20, {}), _ABLATION),
    "ablate-dcluster": (_SHORTER, lambda: dcluster(5, {}, "swav-6crop"), _ABLATION),
    "grid-attack": (
        "HEXA-DCluster, 2×224, attacked with ε = η = 1",
        lambda: dcluster(40, {"adversarial": Adversarial(epsilon=1, step_size=1)}, "swav"),
        _ATTACKS,
    ),
    "grid-beta": (
        "DeepCluster-v2 with cut-mixed crops, 2×160 + 4×96, λ0 ~ Beta(5, 3)",
        lambda: dcluster(5, {"cutmix": CutMix(alpha=5, beta=3)}, "swav-6crop"),
        _MIXING,
    ),
}


def _make(name: str) -> Experiment:
    return ROWS[name][1]().model_copy(update={"recipe": name})


def _doc(name: str, experiment: Experiment) -> str:
    title, _, expected = ROWS[name]
    times = 1 + (0.75 if "moco" in name else 1) * len(experiment.hard_examples)
    return f"""{title}: ImageNet, ResNet-50, {experiment.epochs} epochs.

    Command: torchrun --nproc-per-node 8 -m hexa pretrain {name} --data folder:imagenet

    Expected: {expected or published.expected(name)}. Not run here.

    Cost: {times:g} times that of the plain method; batches of {experiment.batch_size}, many GPUs for days.
    """


for _name in ROWS:
    register(_name, partial(_make, _name), partial(_doc, _name))
