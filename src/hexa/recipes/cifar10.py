"""CIFAR-10: MoCo's own demo settings on ResNet-18, and a narrow network that two cores train in minutes."""

from __future__ import annotations

from collections.abc import Callable

from hexa.core import HardExampleConfig, ObjectiveConfig
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.hard_examples.adversarial import AdversarialConfig
from hexa.hard_examples.cutmix import CutMixConfig
from hexa.methods.moco import MoCoConfig
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import CIFAR_MEAN, CIFAR_STD
from hexa.recipes import recipe, register
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

Hard = dict[str, HardExampleConfig]
Make = Callable[[str, Hard, bool], Experiment]
"""(name, hard examples, whether small) -> experiment."""

ADV: Hard = {"adversarial": AdversarialConfig()}
PLUS: Hard = {**ADV, "cutmix": CutMixConfig()}


def offer(
    name: str, title: str, make: Make, hard: Hard, networks: tuple[str, str] = ("ResNet-18", "a narrow ResNet")
) -> None:
    """Register two recipes, `cifar10-NAME` and its small twin, `cifar10-small-NAME`."""
    for small in (False, True):
        full = f"cifar10-small-{name}" if small else f"cifar10-{name}"
        expected = "see benchmarks/README.md" if small else "no published value at this size. Not yet run here"
        length = f"{20 if small else 200} epochs of 50,000 images; {'minutes on two cores' if small else 'for a GPU'}"
        more = f" and {len(hard)} pass{'es' if len(hard) > 1 else ''} of the views more a step" if hard else ""
        register(
            full,
            lambda full=full, small=small: make(full, hard, small),  # type: ignore[misc]
            f"""{title} on CIFAR-10, {networks[small]}.

            Command: hexa pretrain {full} --data cifar10

            Expected: {expected}.

            Cost: that of the method{more}, {length}.
            """,
        )


def resnet18(name: str, hard_examples: Hard | None = None) -> Experiment:
    """REFERENCE §2.6: the CIFAR settings of MoCo's own demo."""
    return Experiment(
        recipe=name,
        data="cifar10",
        epochs=200,
        batch_size=512,
        network=NetworkConfig(name="resnet18", small_stem=True, mean=CIFAR_MEAN, std=CIFAR_STD),
        views=ViewsConfig.model_validate({"recipe": "moco-cifar", "size": 32}),
        method=MoCoConfig(head="linear", queue_size=4096, momentum=0.99, temperature=0.1, bn_groups=8),
        hard_examples=hard_examples or {},
        optimizer=OptimizerConfig(learning_rate=0.03, base_batch_size=256, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", per="epoch"),
        monitor=MonitorConfig(knn_every=10, temperature=0.1),
    )


@recipe
def cifar10_moco_v2() -> Experiment:
    """MoCo-v2 on CIFAR-10, ResNet-18: the settings of MoCo's own demo.

    Command: hexa pretrain cifar10-moco-v2

    Expected: published k-NN 82.6 after 200 epochs, 86.3 after 400, 88.7 after 800. Not yet repeated here.

    Cost: 200 epochs of 97 steps of 512 images; for a GPU.
    """
    return resnet18("cifar10-moco-v2")


@recipe
def cifar10_hexa_moco() -> Experiment:
    """HEXA-MoCo on CIFAR-10, ResNet-18: adversarial queries beside the clean ones.

    Command: hexa pretrain cifar10-hexa-moco

    Expected: no published value at this size. Not yet run here.

    Cost: 1.75 times cifar10-moco-v2 by counting passes.
    """
    return resnet18("cifar10-hexa-moco", {"adversarial": AdversarialConfig()})


@recipe
def cifar10_hexa_moco_plus() -> Experiment:
    """HEXA⁺-MoCo on CIFAR-10, ResNet-18: adversarial and cut-mixed queries.

    Command: hexa pretrain cifar10-hexa-moco-plus

    Expected: no published value at this size. Not yet run here.

    Cost: 2.5 times cifar10-moco-v2 by counting passes.
    """
    return resnet18("cifar10-hexa-moco-plus", {"adversarial": AdversarialConfig(), "cutmix": CutMixConfig()})


def small(name: str, hard_examples: Hard | None = None, objective: ObjectiveConfig | None = None) -> Experiment:
    """A nine-layer ResNet that halves the resolution at once, 20 epochs."""
    return resnet18(name, hard_examples).model_copy(
        update={
            "epochs": 20,
            "batch_size": 256,
            "method": MoCoConfig(head="linear", queue_size=4096, momentum=0.99, temperature=0.1, bn_groups=4),
            "network": NetworkConfig(
                name="small-resnet", widths=(16, 32, 64, 128), stem_stride=2, mean=CIFAR_MEAN, std=CIFAR_STD
            ),
            "objective": objective or ObjectiveConfig(reduction="mean"),
        }
    )


@recipe
def cifar10_small_moco_v2() -> Experiment:
    """MoCo-v2 on CIFAR-10 with a narrow ResNet: a real run for two cores.

    Command: hexa pretrain cifar10-small-moco-v2 --data cifar10

    Expected: see benchmarks/README.md.

    Cost: 20 epochs of 195 steps of 256 images, minutes on two cores.
    """
    return small("cifar10-small-moco-v2")


@recipe
def cifar10_small_hexa_moco() -> Experiment:
    """HEXA-MoCo on CIFAR-10 with a narrow ResNet: adversarial queries beside the clean ones.

    Command: hexa pretrain cifar10-small-hexa-moco --data cifar10

    Expected: see benchmarks/README.md.

    Cost: about 1.8 times cifar10-small-moco-v2.
    """
    return small("cifar10-small-hexa-moco", {"adversarial": AdversarialConfig()})


@recipe
def cifar10_small_hexa_moco_cutmix() -> Experiment:
    """MoCo-v2 with cut-mixed queries on CIFAR-10 with a narrow ResNet.

    Command: hexa pretrain cifar10-small-hexa-moco-cutmix --data cifar10

    Expected: see benchmarks/README.md.

    Cost: about 1.8 times cifar10-small-moco-v2.
    """
    return small("cifar10-small-hexa-moco-cutmix", {"cutmix": CutMixConfig()})


@recipe
def cifar10_small_hexa_moco_plus() -> Experiment:
    """HEXA⁺-MoCo on CIFAR-10 with a narrow ResNet: adversarial and cut-mixed queries.

    Command: hexa pretrain cifar10-small-hexa-moco-plus --data cifar10

    Expected: see benchmarks/README.md.

    Cost: about 2.7 times cifar10-small-moco-v2.
    """
    return small("cifar10-small-hexa-moco-plus", {"adversarial": AdversarialConfig(), "cutmix": CutMixConfig()})


@recipe
def cifar10_small_hexa_moco_split() -> Experiment:
    """Half of each batch clean, half cut-mixed, one pass: hard examples at the price of the baseline.

    Command: hexa pretrain cifar10-small-hexa-moco-split --data cifar10

    Expected: see benchmarks/README.md.

    Cost: that of cifar10-small-moco-v2.
    """
    split = ObjectiveConfig(reduction="mean", split=True, clean_fraction=0.5)
    return small("cifar10-small-hexa-moco-split", {"cutmix": CutMixConfig(fraction=0.5)}, split)
