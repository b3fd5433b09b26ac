"""ImageNet: the published DeepCluster-v2 rows (REFERENCE §5.13). Written down exactly; not run here."""

from __future__ import annotations

from typing import Any

from hexa import published
from hexa.core.schemes import SCHEMES
from hexa.data.views import ViewsConfig
from hexa.experiment import Experiment
from hexa.hard_examples.adversarial import AdversarialConfig
from hexa.hard_examples.cutmix import CutMixConfig
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.nn.backbones import NetworkConfig
from hexa.recipes import register
from hexa.recipes.imagenet import DATA
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

#: The pairs (α, β) worth trying in the study of Beta (REFERENCE §8.7); the published ones are not listed.
BETAS = ((1, 1), (3, 5), (5, 3), (3, 3), (5, 1), (5, 5))


def dcluster(name: str, epochs: int, hard: dict[str, Any], views: str, large_batch: bool) -> Experiment:
    """ResNet-50, three heads of 3000 always-frozen prototypes, LARC, cosine per step (REFERENCE §4.6).

    Batch 256: lr 0.6 → 0.0006, no warm-up (D16). Batch 4096: 4.8 → 0.0048, warm-up from 0.3 over 10 epochs or a tenth
    of a short run, SyncBN in 8 groups (64 GPUs in groups of 8).
    """
    warmup: dict[str, Any] = {"warmup_epochs": 10, "warmup_at_most": 0.1, "warmup_start_share": 0.0625}
    return Experiment(
        recipe=name,
        data=DATA,
        epochs=epochs,
        batch_size=4096 if large_batch else 256,
        network=NetworkConfig(name="resnet50", std=(0.228, 0.224, 0.225)),  # D22
        views=ViewsConfig.model_validate({"recipe": views}),
        method=DeepClusterConfig(bn_groups=8 if large_batch else 1),
        hard_examples=hard,
        optimizer=OptimizerConfig(name="larc", learning_rate=4.8 if large_batch else 0.6, weight_decay=1e-6),
        schedule=ScheduleConfig(kind="cosine", per="step", final_share=0.001, **(warmup if large_batch else {})),
    )


def _offer(
    name: str, title: str, expected: str, epochs: int, hard: dict[str, Any], views: str, large_batch: bool
) -> None:
    steps, batch = (312, 4096) if large_batch else (5004, 256)
    register(
        name,
        lambda: dcluster(name, epochs, hard, views, large_batch),
        f"""{title}.

        Command: torchrun --nproc-per-node 8 -m hexa pretrain {name} --data folder:imagenet

        Expected: {expected}. Not run here.

        Cost: {1 + len(hard)} times {epochs} epochs of {steps} steps of {batch} images, many GPUs for days.
        """,
    )


for _short in (
    "deepcluster-v2-200",
    "hexa-dcluster-200",
    "hexa-dcluster-8crop-200",
    "hexa-dcluster-plus-8crop-200",
    "hexa-dcluster-8crop-800",
    "hexa-dcluster-plus-8crop-800",
):
    _crops = "8-crop" if "8crop" in _short else "2-crop"
    _scheme = "iv" if "plus" in _short else "ii" if "hexa" in _short else "i"
    _what = {"i": "DeepCluster-v2", "ii": "HEXA-DCluster", "iv": "HEXA⁺-DCluster"}[_scheme]
    _epochs = int(_short.rpartition("-")[2])
    _offer(
        f"imagenet-{_short}",
        f"{_what}, {_crops}: ImageNet, ResNet-50, {_epochs} epochs",
        f"published linear top-1 {published.linear_top1(f'imagenet-{_short}')} (REFERENCE §8.1)",
        _epochs,
        SCHEMES[_scheme].hard_examples,
        "swav-8crop" if "8crop" in _short else "swav",
        "8crop" in _short,
    )

for _made in SCHEMES.values():
    _offer(
        f"ablate-dcluster-{_made.number}",
        f"Scheme {_made.number} of the ablation: DeepCluster-v2 on ImageNet, 2×160 + 4×96, 5 epochs, "
        "then a 1-epoch probe",
        "published as a bar without a number; every scheme above Std, Cmx above CmxA",
        5,
        _made.hard_examples,
        "swav-6crop",
        True,
    )


def _attack(epsilon: int, step_size: int) -> dict[str, Any]:
    return {"adversarial": AdversarialConfig(epsilon=epsilon, step_size=step_size)}


def _beta(alpha: int, beta: int) -> dict[str, Any]:
    return {"cutmix": CutMixConfig(alpha=alpha, beta=beta)}


_GRID = "HEXA-DCluster on ImageNet, 2×224, 40 epochs, attacked with"
_STUDY = "DeepCluster-v2 with cut-mixed crops on ImageNet, 2×160 + 4×96, 5 epochs,"
for _epsilon, _size in ((1, 1), (1, 3), (3, 1), (3, 3)):
    _offer(
        "grid-attack" if (_epsilon, _size) == (1, 1) else f"grid-attack-{_epsilon}-{_size}",
        f"{_GRID} ε = {_epsilon}, η = {_size}",
        "published without numbers; only (3, 3) is worse, the others are one algorithm (REFERENCE §5.2)",
        40,
        _attack(_epsilon, _size),
        "swav",
        False,
    )
for _alpha, _second in BETAS:
    _offer(
        "grid-beta" if (_alpha, _second) == (5, 3) else f"grid-beta-{_alpha}-{_second}",
        f"{_STUDY} λ0 ~ Beta({_alpha}, {_second})",
        "published without numbers; every setting above no cut-mix (ablate-dcluster-i)",
        5,
        _beta(_alpha, _second),
        "swav-6crop",
        True,
    )
