"""Robust self-supervision on CIFAR-10 as published, as far as the contract expresses it: ε = 8 grey levels, ResNet-18.

Published numbers are accuracies of a linear layer on frozen features: under AutoAttack within 8 grey levels, on
CIFAR-10-C, on clean images (`hexa evaluate robust`, presets autoattack and corruptions). Not here: AdvCL (Fan et al.,
NeurIPS 2021: a view of high frequencies, and a term that predicts clusters of an ImageNet network's features), CF-AMC
(Ghofrani and Jamshidi, 2025: the losses of EMP-SSL over 16 crops, total coding rate and similarity to their mean,
attacked by 5 free replays, without a clean term). The replays alone are `hard_examples.adversarial.replays`.
"""

from __future__ import annotations

from typing import Any

from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.teacher import TeacherConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes import register
from hexa.recipes.cifar10 import make, views_at_32
from hexa.recipes.experiment import Experiment
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig

#: Projected gradient ascent from a random point of the box, through batch-norms in evaluation mode.
_PGD: dict[str, Any] = {"epsilon": 8.0, "step_size": 2.0, "steps": 5, "random_start": 1.0}
_SMALL = {"optimizer": make("simclr").optimizer}


def _experiment(name: str, **fields: Any) -> Experiment:
    return make("simclr").model_copy(update={"recipe": f"cifar10-{name}", "epochs": 1000, **fields})


def _adversarial(**fields: Any) -> dict[str, Adversarial]:
    return {"adversarial": Adversarial.model_validate({**_PGD, **fields})}


def _lars(rate: float) -> OptimizerConfig:
    return OptimizerConfig(name="lars", learning_rate=rate, weight_decay=1e-6)


def rocl() -> Experiment:
    """SimCLR with adversarial views beside clean ones, in one set of batch-norms (RoCL, Kim et al., NeurIPS 2020).

    ResNet-18, PGD-7. As published the attack is on one of two views, which joins the clean ones as a third in one pass,
    and a further term of 1/256 compares it with the other alone; here both views are attacked, and each is a query
    against the clean batch.

    Command: hexa pretrain cifar10-rocl

    Expected: published 26.1 % under attack, 77.9 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: nine passes a step against one of SimCLR (clean, seven of the attack, adversarial), 1000 epochs of 50,000
    images; for a GPU. `+small` is as much slower than cifar10-simclr+small.
    """
    attack = _adversarial(steps=7, step_size=1.785, generation="main_eval", branch="main")
    return _experiment("rocl", batch_size=256, optimizer=_lars(1.5), hard_examples=attack)


def acl() -> Experiment:
    """SimCLR of clean and of adversarial views, each with their batch-norms (ACL, Jiang et al., NeurIPS 2020).

    ResNet-18, dual stream: both terms count half; adversarial views are compared with each other, and attacked by PGD-5
    on that loss, through their own batch-norms, with which they are evaluated (--branch aux).

    Command: hexa pretrain cifar10-acl

    Expected: published 39.2 % under attack, 70.7 % corrupted, 78.2 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: seven passes a step against one of SimCLR (clean, five of the attack, adversarial), 1000 epochs of 50,000
    images; for a GPU. `+small` is as much slower than cifar10-simclr+small.
    """
    return _experiment(
        "acl",
        optimizer=_lars(5.0),
        method=SimCLRConfig(temperature=0.5, adversarial_terms="joint"),
        hard_examples=_adversarial(generation="aux_eval"),
        objective=ObjectiveConfig(reduction="mean"),
    )


def dynacl() -> Experiment:
    """ACL whose views become plainer while the adversarial term gains weight (DynACL, Luo et al., ICLR 2023).

    ResNet-18. The strength of crops and colours falls from 1 to 0.05 in 20 steps, and the adversarial term gets more of
    the loss, from 1/2 to 5/6 (published as 2 − w and w, w from 1 to 5/3; here at every step, there in 20). Missing: a
    moving average of the weights, which the authors evaluate; and DynACL++, which goes on with its clusters as labels.

    Command: hexa pretrain cifar10-dynacl

    Expected: published 45.1 % under attack, 68.7 % corrupted, 75.4 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: that of cifar10-acl.
    """
    weights = {name: hard.but(final_weight=5.0) for name, hard in acl().hard_examples.items()}
    fields = {"recipe": "cifar10-dynacl", "hard_examples": weights, "views": views_at_32(fade_steps=20)}
    return acl().model_copy(update=fields)


def deacl() -> Experiment:
    """A robust student of your own plain run, by cosine (DeACL, Zhang et al., ECCV 2022).

    ResNet-18. First the teacher, without attacks (cifar10-simclr --epochs 1000), then a student with random weights:
    PGD-5 against the teacher's feature, one set of batch-norms, the adversarial term twice the clean one. As published
    that term compares with the student's own clean feature, in one pass with it, and crops are shifted by up to four
    pixels; here it compares with the teacher's, and crops show 80 % of the image or more.

    Command: hexa pretrain cifar10-deacl --method.teacher RUN

    Expected: published 43.3 % under attack, 73.1 % corrupted, 79.9 % clean (RobustSSL leaderboard), by its authors
    46.1 % and 80.8 % clean. Not yet run here.

    Cost: eight passes a step against one of SimCLR (teacher, clean, five of the attack, adversarial) of half as many
    views, 100 epochs of 50,000 images, and the teacher's; for a GPU. `+small` needs a teacher of `+small`.
    """
    return _experiment(
        "deacl",
        epochs=100,
        batch_size=256,
        method=TeacherConfig(distance="cosine"),
        views=views_at_32("crop-flip", scale=(0.8, 1.0)),
        hard_examples=_adversarial(weight=2.0, generation="main_eval", branch="main"),
        optimizer=OptimizerConfig(learning_rate=0.5, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="cosine", per="step", warmup_epochs=10, warmup_at_most=0.1),
    )


for _function in (rocl, acl, dynacl, deacl):
    _doc = _function.__doc__
    assert _doc is not None
    _changed = {"optimizer": OptimizerConfig(learning_rate=0.1, weight_decay=5e-4)} if _function is deacl else _SMALL
    register(f"cifar10-{_function.__name__}", _function, _doc, _changed)
