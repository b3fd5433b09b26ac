"""Recipes on the embedded digits, which need no download and run in minutes on two cores."""

from __future__ import annotations

from typing import Any

from hexa.data.views.making import ViewsConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.methods.moco import MoCoConfig
from hexa.nn.backbones import NetworkConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes import recipe
from hexa.recipes.experiment import Experiment
from hexa.training.config import TrainingConfig
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig


def _digits(name: str) -> Experiment:
    # digits have no colour and must not be mirrored, so that views of MoCo-v2 are reduced to crops and contrast
    unused = ("flip_probability", "saturation", "hue", "grayscale_probability", "blur_probability")
    views = {
        "size": 16,
        "scale": (0.3, 1.0),
        "brightness": 0.4,
        "contrast": 0.4,
        **dict.fromkeys(unused, 0.0),
    }
    return Experiment(
        recipe=name,
        data="digits",
        epochs=12,
        batch_size=128,
        network=NetworkConfig(
            name="small-resnet", widths=(32, 64, 128, 256), mean=(0.3,) * 3, std=(0.37,) * 3
        ),
        views=ViewsConfig.model_validate(views),
        method=MoCoConfig(queue_size=512, momentum=0.99, temperature=0.1, bn_groups=4),
        optimizer=OptimizerConfig(
            name="muon", learning_rate=0.04, other_rate=0.08, weight_decay=5e-4
        ),
        # without a warm-up, the first steps collapse the network to a point, and adversarial views keep it there
        schedule=ScheduleConfig(kind="cosine", per="epoch", warmup_epochs=8, warmup_at_most=0.2),
        training=TrainingConfig(log_every=10, checkpoint_every=5),
        monitor=MonitorConfig(knn_every=10),
    )


@recipe
def digits_moco_v2() -> Experiment:
    """MoCo-v2 on the 8×8 digits of scikit-learn: the baseline of the demo.

    Command: hexa pretrain digits-moco-v2

    Expected: k-NN 95.7 ± 0.6 %; linear probe of all labels 98.6 ± 0.2 %, under PGD (450 images) 86.8 ± 1.9 % at
    ε = 8/255 and 46.0 ± 5.1 % at 16/255 (five seeds; k-NN untrained: 83.3 %, raw pixels: 95.3 %).

    Cost: a minute on a core without AVX-512.
    """
    return _digits("digits-moco-v2")


@recipe
def digits_hexa_moco() -> Experiment:
    """HEXA-MoCo on the digits: MoCo-v2 with adversarial queries in the second half of training, for the demo.

    Command: hexa pretrain digits-hexa-moco

    Expected: k-NN 95.6 ± 0.4 %; linear probe of all labels 98.4 ± 0.3 %, under PGD (450 images) 89.3 ± 1.0 % at
    ε = 8/255 and 57.8 ± 5.4 % at 16/255 (five seeds; MoCo-v2: 86.8 and 46.0 %).

    Cost: a minute and a half on a core without AVX-512.
    """
    experiment = _digits("digits-hexa-moco")
    # in 12 epochs, attacks from the first epoch on reduce k-NN accuracy
    hard = {"adversarial": Adversarial(start=0.5)}
    # the mean of the terms keeps the learning rate comparable with that of MoCo-v2
    return experiment.model_copy(
        update={"hard_examples": hard, "objective": ObjectiveConfig(reduction="mean")}
    )


def _clusters(name: str) -> Experiment:
    """Return a recipe with clusters as pseudo-labels: ten times as many clusters as classes, and LARC."""
    warmup: dict[str, Any] = {
        "warmup_epochs": 4,
        "warmup_at_most": 0.1,
        "warmup_start_share": 0.0625,
    }
    return _digits(name).model_copy(
        update={
            "epochs": 40,
            "method": DeepClusterConfig(hidden=256, num_prototypes=(100, 100, 100)),
            "optimizer": OptimizerConfig(name="larc", learning_rate=1.2, weight_decay=1e-6),
            "schedule": ScheduleConfig(kind="cosine", per="step", final_share=0.001, **warmup),
        }
    )


@recipe
def digits_deepcluster_v2() -> Experiment:
    """DeepCluster-v2 on the digits: three clusterings of 100 clusters.

    Command: hexa pretrain digits-deepcluster-v2

    Expected: k-NN 97.8 %, linear probe of all labels 98.9 % (one seed; k-NN untrained: 82.9 %, raw pixels: 95.3 %).

    Cost: a minute on two cores.
    """
    return _clusters("digits-deepcluster-v2")


@recipe
def digits_hexa_dcluster() -> Experiment:
    """HEXA-DCluster on the digits: DeepCluster-v2 with adversarial crops.

    Command: hexa pretrain digits-hexa-dcluster

    Expected: k-NN 96.9 %, linear probe of all labels 98.7 % (one seed).

    Cost: two minutes on two cores.
    """
    return _clusters("digits-hexa-dcluster").model_copy(
        update={"hard_examples": {"adversarial": Adversarial()}}
    )
