"""Published robust self-supervision on CIFAR-10, with ε = 8/255 and ResNet-18; docstrings name the differences.

Published numbers are accuracies of a linear layer on frozen features: under AutoAttack at ε = 8/255, on CIFAR-10-C, and
on clean images (`hexa evaluate robust`, presets autoattack and corruptions). `hexa reproduce robust` writes the table.
"""

from __future__ import annotations

from typing import Any

from hexa.data.views.making import ViewsConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.teacher import TeacherConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes import register
from hexa.recipes.cifar10 import RECIPES, make, small, views_at_32
from hexa.recipes.experiment import Experiment
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

#: Projected gradient ascent from a random point of the box, through batch-norms in evaluation mode.
_PGD: dict[str, Any] = {"epsilon": 8.0, "step_size": 2.0, "steps": 5, "random_start": 1.0}
_WARM = ScheduleConfig(kind="cosine", per="step", warmup_epochs=10, warmup_at_most=0.1)


def _experiment(name: str, **fields: Any) -> Experiment:
    return make("simclr", RECIPES["simclr"]).model_copy(
        update={"recipe": f"cifar10-{name}", "epochs": 1000, **fields}
    )


def _adversarial(**fields: Any) -> dict[str, Adversarial]:
    return {"adversarial": Adversarial.model_validate({**_PGD, **fields})}


def acl() -> Experiment:
    """SimCLR on clean and on adversarial views with separate batch-norms (ACL, Jiang et al., NeurIPS 2020).

    ResNet-18, dual stream: both terms have weight ½. Adversarial views are compared with each other. PGD-5 attacks that
    loss through the auxiliary batch-norms, which the evaluation also uses (--branch aux).

    Command: hexa pretrain cifar10-acl

    Expected: published 39.2 % under attack, 70.7 % corrupted, 78.2 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: seven times SimCLR (clean pass, five passes of the attack, adversarial pass), 1000 epochs of 50,000 images; for
    a GPU.
    """
    return _experiment(
        "acl",
        optimizer=OptimizerConfig(
            name="lars", learning_rate=5.0, base_batch_size=512, weight_decay=1e-6
        ),
        method=SimCLRConfig(temperature=0.5, adversarial_terms="joint"),
        hard_examples=_adversarial(generation="aux_eval"),
        objective=ObjectiveConfig(reduction="mean"),
    )


def deacl() -> Experiment:
    """A robust student of a plain run of your own, by cosine distance (DeACL, Zhang et al., ECCV 2022).

    ResNet-18. Train the teacher first, without attacks (cifar10-simclr --epochs 1000). The student has random weights,
    one set of batch-norms, and PGD-5 against the feature of the teacher; the adversarial term has twice the weight of
    the clean term. Two details differ from the publication. There, the adversarial term uses the student's own clean
    feature and crops are shifted by up to four pixels; here, it uses the teacher's feature, and crops show 80 % of the
    image or more.

    Command: hexa pretrain cifar10-deacl --method.teacher RUN

    Expected: published 43.3 % under attack, 73.1 % corrupted, 79.9 % clean (RobustSSL leaderboard); 46.1 % under attack
    and 80.8 % clean in the publication. Not yet run here.

    Cost: the training of the teacher, then eight passes per step (teacher, clean, five of the attack, adversarial), each
    on half as many views as the one pass of SimCLR, 100 epochs of 50,000 images; for a GPU. `+small` needs a teacher of
    `+small`.
    """
    return _experiment(
        "deacl",
        epochs=100,
        batch_size=256,
        method=TeacherConfig(distance="cosine"),
        views=_shifted(),
        hard_examples=_adversarial(weight=2.0, generation="main_eval", branch="main"),
        optimizer=OptimizerConfig(learning_rate=0.5, weight_decay=5e-4),
        schedule=_WARM,
    )


def _shifted() -> ViewsConfig:
    """Return views of nearly whole images, mirrored or not, which replace the published shifts by up to four pixels."""
    return views_at_32("crop-flip", scale=(0.8, 1.0))


def _small(experiment: Experiment, rate: float) -> dict[str, Any]:
    """Return the fields of a small version, as in cifar10.py, with another learning rate.

    rate: the best of four learning rates (benchmarks/robust_scratch.py).
    """
    made = small(experiment.views)
    made["optimizer"] = made["optimizer"].model_copy(update={"learning_rate": rate})
    return made


register("cifar10-acl", acl, **_small(acl(), rate=0.12))
register("cifar10-deacl", deacl, **_small(deacl(), rate=0.12))
