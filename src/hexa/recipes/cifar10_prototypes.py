"""CIFAR-10 with prototypes: DeepCluster-v2, SwAV and PCL-v2, on ResNet-18 and on a narrow network for two cores.

Nothing official exists at this size (REFERENCE §4.10): optimizer and schedule are those of the published recipes for
batches of 256, prototypes are a few hundred a head because 3000 clusters of 50,000 images are poor pseudo-labels.
"""

from __future__ import annotations

from hexa.core import HardExampleConfig, MethodConfig
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.hard_examples.adversarial import AdversarialConfig
from hexa.hard_examples.cutmix import CutMixConfig
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.methods.swav import SwAVConfig
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import CIFAR_MEAN, CIFAR_STD
from hexa.recipes import register
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

NETWORK = NetworkConfig(name="resnet18", small_stem=True, mean=CIFAR_MEAN, std=CIFAR_STD)
SMALL_NETWORK = NetworkConfig(
    name="small-resnet", widths=(16, 32, 64, 128), stem_stride=2, mean=CIFAR_MEAN, std=CIFAR_STD
)
ADV: dict[str, HardExampleConfig] = {"adversarial": AdversarialConfig()}
PLUS: dict[str, HardExampleConfig] = {**ADV, "cutmix": CutMixConfig()}


def _cifar10(
    name: str, method: MethodConfig, hard: dict[str, HardExampleConfig], views: str, small: bool
) -> Experiment:
    return Experiment(
        recipe=name,
        data="cifar10",
        epochs=20 if small else 200,
        batch_size=256,
        network=SMALL_NETWORK if small else NETWORK,
        views=ViewsConfig.model_validate({"recipe": views}),
        method=method,
        hard_examples=hard,
        optimizer=OptimizerConfig(name="larc", learning_rate=0.6, weight_decay=1e-6),
        schedule=ScheduleConfig(
            kind="cosine",
            per="step",
            final_share=0.001,
            warmup_epochs=10,
            warmup_at_most=0.1,
            warmup_start_share=0.0625,
        ),
        monitor=MonitorConfig(knn_every=10, temperature=0.1),
    )


def _deepcluster(small: bool) -> DeepClusterConfig:
    return DeepClusterConfig(hidden=512 if small else 2048, num_prototypes=(300, 300, 300))


def _swav(small: bool) -> SwAVConfig:
    # an epoch has 195 steps; balancing 300 codes over 256 images needs no queue
    return SwAVConfig(hidden=512 if small else 2048, num_prototypes=300, freeze_prototypes_steps=195)


def _offer(name: str, title: str, make: type[MethodConfig], hard: dict[str, HardExampleConfig], views: str) -> None:
    """One recipe, `cifar10-NAME`, and its small twin, `cifar10-small-NAME`."""
    for small in (False, True):
        full = f"cifar10-small-{name}" if small else f"cifar10-{name}"
        crops = "2×32 + 4×16 px crops" if "6crop" in views else "2×32 px crops"
        network, cost = ("a narrow ResNet", "minutes on two cores") if small else ("ResNet-18", "for a GPU")
        expected = "see benchmarks/README.md" if small else "no published value at this size. Not yet run here"
        passes = f"{1 + len(hard)} times the passes of the plain method" if hard else "the plain method"

        def experiment(full: str = full, small: bool = small) -> Experiment:
            return _cifar10(full, METHODS[make](small), hard, views, small)

        register(
            full,
            experiment,
            f"""{title} on CIFAR-10, {network}, {crops}.

            Command: hexa pretrain {full} --data cifar10

            Expected: {expected}.

            Cost: {passes}, {20 if small else 200} epochs of 195 steps of 256 images; {cost}.
            """,
        )


METHODS = {DeepClusterConfig: _deepcluster, SwAVConfig: _swav}

for _crops, _views in (("", "swav-cifar"), ("-6crop", "swav-cifar-6crop")):
    _offer(f"deepcluster-v2{_crops}", "DeepCluster-v2", DeepClusterConfig, {}, _views)
    _offer(f"hexa-dcluster{_crops}", "HEXA-DCluster, with adversarial crops,", DeepClusterConfig, ADV, _views)
    _offer(
        f"hexa-dcluster-plus{_crops}",
        "HEXA⁺-DCluster, with adversarial and cut-mixed crops,",
        DeepClusterConfig,
        PLUS,
        _views,
    )
    _offer(f"swav{_crops}", "SwAV", SwAVConfig, {}, _views)
    _offer(f"hexa-swav{_crops}", "SwAV with adversarial crops", SwAVConfig, ADV, _views)
