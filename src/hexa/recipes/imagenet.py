"""ImageNet: the published MoCo rows (REFERENCE §5.13). Written down exactly; not run here."""

from __future__ import annotations

from typing import Any

from hexa import published
from hexa.core.schemes import SCHEMES
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.methods.moco import MoCoConfig
from hexa.nn.backbones import NetworkConfig
from hexa.recipes import recipe, register
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

DATA = "folder:imagenet"


def moco(name: str, epochs: int, hard_examples: dict[str, Any]) -> Experiment:
    """ResNet-50, 2×224 of scale 0.2–1, batch 256, lr 0.03, cosine per epoch (REFERENCE §2.1, §2.2)."""
    return Experiment(
        recipe=name,
        data=DATA,
        epochs=epochs,
        batch_size=256,
        network=NetworkConfig(name="resnet50"),
        views=ViewsConfig(size=224, scale=(0.2, 1.0)),
        method=MoCoConfig(bn_groups=8),
        hard_examples=hard_examples,
        optimizer=OptimizerConfig(learning_rate=0.03, base_batch_size=256, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine", per="epoch"),
    )


@recipe
def imagenet_moco_v1_200() -> Experiment:
    """MoCo v1: ImageNet, ResNet-50, 200 epochs; a linear head, τ 0.07, the views of v1, falls at epochs 120 and 160.

    Command: torchrun --nproc-per-node 8 -m hexa pretrain imagenet-moco-v1-200 --data folder:imagenet

    Expected: published linear top-1 60.6 (REFERENCE §2.1). Not run here.

    Cost: 200 epochs of 5,004 steps of 256 images at 224², eight GPUs for days.
    """
    return moco("imagenet-moco-v1-200", 200, {}).model_copy(
        update={
            "views": ViewsConfig.model_validate({"recipe": "moco-v1", "size": 224}),
            "method": MoCoConfig(bn_groups=8, head="linear", temperature=0.07),
            "schedule": ScheduleConfig(kind="steps", milestones=(120, 160), gamma=0.1),
        }
    )


for _family, _scheme, _what in (
    ("moco-v2", "i", "MoCo-v2, the baseline"),
    ("hexa-moco", "ii", "HEXA-MoCo, adversarial queries beside the clean ones"),
):
    for _epochs in (200, 800):
        _name = f"imagenet-{_family}-{_epochs}"
        register(
            _name,
            lambda name=_name, epochs=_epochs, scheme=_scheme: moco(name, epochs, SCHEMES[scheme].hard_examples),  # type: ignore[misc]
            f"""{_what}: ImageNet, ResNet-50, {_epochs} epochs.

            Command: torchrun --nproc-per-node 8 -m hexa pretrain {_name} --data folder:imagenet

            Expected: published linear top-1 {published.linear_top1(_name)} (REFERENCE §8.1). Not run here.

            Cost: {_epochs} epochs of 5,004 steps of 256 images at 224², eight GPUs for days.
            """,
        )

for _made in SCHEMES.values():
    _title = f"Scheme {_made.number} of the ablation, {_made.title.replace('+', ' + ')}"
    _name = f"ablate-moco-{_made.number}"
    register(
        _name,
        lambda name=_name, made=_made: moco(name, 20, made.hard_examples),  # type: ignore[misc]
        f"""{_title}: MoCo-v2 on ImageNet, 20 epochs, then a 1-epoch linear probe.

        Command: torchrun --nproc-per-node 8 -m hexa pretrain {_name} --data folder:imagenet

        Expected: published as a bar without a number; every scheme above Std, Cmx above CmxA. Not run here.

        Cost: {1 + 0.75 * len(_made.terms):g} times 20 epochs of MoCo-v2, by counting passes.
        """,
    )
