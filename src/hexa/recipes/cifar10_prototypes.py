"""CIFAR-10 with prototypes: DeepCluster-v2, SwAV and PCL-v2, on ResNet-18 and on a narrow network for two cores.

Nothing official exists at this size (REFERENCE §4.10): optimizer and schedule are those of the published recipes for
batches of 256, prototypes are a few hundred a head because 3000 clusters of 50,000 images are poor pseudo-labels.
"""

from __future__ import annotations

from typing import Any

from hexa.core import MethodConfig, ObjectiveConfig
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.methods.moco import MoCoConfig
from hexa.methods.pcl import PCLConfig
from hexa.methods.swav import SwAVConfig
from hexa.recipes import cifar10
from hexa.recipes.cifar10 import ADV, PLUS, Hard, Make, offer
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig


def _larc(name: str, hard: Hard, small: bool, method: MethodConfig, views: str) -> Experiment:
    """The CIFAR-10 recipe of MoCo with another method, its views, and LARC: 0.6 → 0.0006 (D16), a tenth warm-up."""
    base = cifar10.small(name, hard, ObjectiveConfig()) if small else cifar10.resnet18(name, hard)
    schedule: dict[str, Any] = {
        "warmup_epochs": 10,
        "warmup_at_most": 0.1,
        "warmup_start_share": 0.0625,
        "final_share": 0.001,
    }
    return base.model_copy(
        update={
            "batch_size": 256,
            "method": method,
            "views": ViewsConfig.model_validate({"recipe": views}),
            "optimizer": OptimizerConfig(name="larc", learning_rate=0.6, weight_decay=1e-6),
            "schedule": ScheduleConfig(kind="cosine", per="step", **schedule),
        }
    )


def _deepcluster(views: str) -> Make:
    def make(name: str, hard: Hard, small: bool) -> Experiment:
        method = DeepClusterConfig(hidden=512 if small else 2048, num_prototypes=(300, 300, 300))
        return _larc(name, hard, small, method, views)

    return make


def _swav(views: str) -> Make:
    def make(name: str, hard: Hard, small: bool) -> Experiment:
        # prototypes start to learn after an epoch of 195 steps; balancing 300 codes over 512 rows needs no queue
        method = SwAVConfig(hidden=512 if small else 2048, num_prototypes=300, freeze_prototypes_steps=195)
        return _larc(name, hard, small, method, views)

    return make


def _pcl(name: str, hard: Hard, small: bool) -> Experiment:
    base = cifar10.small(name, hard) if small else cifar10.resnet18(name, hard)
    assert isinstance(base.method, MoCoConfig)
    contrast = base.method.model_copy(update={"head": "mlp"})
    method = PCLConfig(contrast=contrast, num_clusters=(250, 500, 1000), warmup_epochs=2 if small else 20)
    return base.model_copy(update={"method": method})


for _crops, _views, _sizes in (("", "swav-cifar", "2×32"), ("-6crop", "swav-cifar-6crop", "2×32 + 4×16")):
    offer(f"deepcluster-v2{_crops}", f"DeepCluster-v2, {_sizes} pixels,", _deepcluster(_views), {})
    offer(f"hexa-dcluster{_crops}", f"HEXA-DCluster, adversarial crops, {_sizes} pixels,", _deepcluster(_views), ADV)
    offer(
        f"hexa-dcluster-plus{_crops}",
        f"HEXA⁺-DCluster, adversarial and cut-mixed crops, {_sizes} pixels,",
        _deepcluster(_views),
        PLUS,
    )
    offer(f"swav{_crops}", f"SwAV, {_sizes} pixels,", _swav(_views), {})
    offer(f"hexa-swav{_crops}", f"SwAV with adversarial crops, {_sizes} pixels,", _swav(_views), ADV)
offer("pcl-v2", "PCL-v2", _pcl, {})
offer("hexa-pcl", "PCL-v2 with adversarial queries", _pcl, ADV)
