"""Robust self-supervision on CIFAR-10 as published, as far as the contract expresses it: ε = 8 grey levels, ResNet-18.

Published numbers are accuracies of a linear layer on frozen features: under AutoAttack within 8 grey levels, on
CIFAR-10-C, on clean images (`hexa evaluate robust`, presets autoattack and corruptions); `hexa reproduce robust` makes
the table.
"""

from __future__ import annotations

from typing import Any

from hexa.data.views.making import ViewsConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.advcl import AdvCLConfig
from hexa.methods.clusterfit import ClusterFitConfig
from hexa.methods.emp_ssl import EMPSSLConfig
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
    images; for a GPU.
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
    images; for a GPU.
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
    the loss, from 1/2 to 5/6 (published as 2 − w and w, w from 1 to 5/3; here at every step, there in 20). A moving
    average of the network is evaluated, as published; there it also encodes one of the two views in training.

    Command: hexa pretrain cifar10-dynacl

    Expected: published 45.1 % under attack, 68.7 % corrupted, 75.4 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: that of cifar10-acl.
    """
    weights = {name: hard.but(final_weight=5.0) for name, hard in acl().hard_examples.items()}
    averaged = SimCLRConfig(temperature=0.5, adversarial_terms="joint", average=0.99)
    fields = {
        "recipe": "cifar10-dynacl",
        "hard_examples": weights,
        "views": views_at_32(fade_steps=20),
    }
    return acl().model_copy(update={**fields, "method": averaged})


def dynacl_pp() -> Experiment:
    """A run of DynACL recognises its own ten clusters under attack (DynACL++, Luo et al., ICLR 2023).

    ResNet-18. The clusters are those of the run's features through its clean batch-norms. The network begins with its
    batch-norms of adversarial views: for ten epochs a linear layer learns the clusters alone, then everything does,
    under PGD-10. As published the attack and the adversarial term, of weight 6, are TRADES' (the divergence from the
    own clean prediction), here the cross-entropy with the cluster, of weight 1; and the linear layer begins at zero and
    learns at a rate of 0.01 while the batch-norms keep their statistics, here at 0.1 while they follow.

    Command: hexa pretrain cifar10-dynacl-pp --method.teacher RUN --start RUN --start.branch aux --start.batch_norm
    follow --start.freeze_backbone 10

    Expected: published 46.5 % under attack, 72.0 % corrupted, 79.8 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: ten epochs of a pass a step, then 25 of twelve (clean, ten of the attack, adversarial), of one view of 50,000
    images, and the run's; for a GPU.
    """
    return _experiment(
        "dynacl-pp",
        epochs=35,
        method=ClusterFitConfig(num_clusters=(10,)),
        views=_shifted(),
        hard_examples=_adversarial(
            steps=10, random_start=0.0, generation="main_eval", branch="main", start=10 / 35
        ),
        optimizer=OptimizerConfig(learning_rate=0.1, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="steps", milestones=(20, 30)),
    )


def advcl() -> Experiment:
    """SimCLR of crops and of high frequencies, and clusters of a good network, under attack (AdvCL, Fan et al., 2021).

    ResNet-18, dual stream, PGD-5. The good network, as published a SimCLR trained on ImageNet, is any that you have. As
    published one plain crop is attacked and gives the high frequencies; here all three views are attacked, and that of
    high frequencies has jittered colours. The published loss is 7.1 times this one (0.5 / 0.07), at a rate of 0.5 and
    a weight decay of 1e-4.

    Command: hexa pretrain cifar10-advcl --method.clusters.teacher BACKBONE

    Expected: published 43.2 % under attack, 73.1 % corrupted, 82.4 % clean (RobustSSL leaderboard). Not yet run here.

    Cost: seven passes a step of three views (clean, five of the attack, adversarial) against one of two of SimCLR, 1000
    epochs of 50,000 images; for a GPU.
    """
    of_high = {"count": 1, "scale": (0.8, 1.0), "high_frequencies": 8.0}
    return _experiment(
        "advcl",
        method=AdvCLConfig(),
        views=views_at_32(scale=(0.2, 1.0), extra_crops=[of_high]),
        hard_examples=_adversarial(generation="aux_train"),
        objective=ObjectiveConfig(reduction="mean"),
        optimizer=OptimizerConfig(learning_rate=3.6, weight_decay=1.4e-5),
        schedule=ScheduleConfig(
            kind="cosine", final_share=0.001, warmup_epochs=10, warmup_at_most=0.1
        ),
    )


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
        views=_shifted(),
        hard_examples=_adversarial(weight=2.0, generation="main_eval", branch="main"),
        optimizer=OptimizerConfig(learning_rate=0.5, weight_decay=5e-4),
        schedule=_WARM,
    )


def emp_ssl() -> Experiment:
    """Many crops of each image, which agree with their mean (EMP-SSL, Tong et al., 2023), without attacks.

    ResNet-18, 20 crops of a quarter of the image, LARS, batches of 100. The published ratio of LARS is at most 1, ours
    has no bound; their table is of features averaged over many crops.

    Command: hexa pretrain cifar10-emp-ssl

    Expected: no published value of a single crop's features is known here. Not yet run here.

    Cost: 20 crops a step against two of SimCLR, 30 epochs of 50,000 images: that of 300 epochs of SimCLR; for a GPU.
    `+small` has 8 crops.
    """
    return _experiment(
        "emp-ssl",
        epochs=30,
        batch_size=100,
        method=EMPSSLConfig(),
        views=_crops(20, scale=(0.25, 0.25), ratio=(1.0, 1.0)),
        optimizer=OptimizerConfig(
            name="lars", learning_rate=0.3, trust=0.005, weight_decay=1e-4, nesterov=True
        ),
        schedule=ScheduleConfig(kind="cosine", per="step"),
    )


def cf_amc() -> Experiment:
    """EMP-SSL of adversarial crops alone, by free replays (CF-AMC-SSL, Ghofrani and Jamshidi, 2025).

    ResNet-18, 16 crops of 8 % of the image and more, five updates on each batch, whose backward moves the pixels for
    the next, one set of batch-norms, no clean term. In the authors' code the first update has the perturbation of the
    batch before, other images, here a step from a random point; their rate falls and rises again, here it falls once;
    and their linear head is on the 4,096 features of the projector's first layer, here on those of the backbone.

    Command: hexa pretrain cifar10-cf-amc

    Expected: published 75.9 % clean, 56.0 % and 33.3 % under PGD within 4 and 8 grey levels, after 97 minutes on a GPU
    against 934 of SimCLR under PGD-5. Not yet run here.

    Cost: of 16 crops each batch six passes with a backward, and five without for the pseudo-labels, 10 epochs of 50,000
    images: that of about 600 epochs of SimCLR; for a GPU. `+small` has 8 crops.
    """
    return emp_ssl().model_copy(
        update={
            "recipe": "cifar10-cf-amc",
            "epochs": 10,
            "method": EMPSSLConfig(adversarial_terms="joint"),
            "views": _crops(16, scale=(0.08, 1.0)),
            "hard_examples": _adversarial(
                steps=1, step_size=2.55, replays=5, generation="main_train", branch="main"
            ),
            "objective": ObjectiveConfig(clean_weight=0.0),
        }
    )


def _shifted() -> ViewsConfig:
    """Nearly whole images, mirrored or not, in place of published shifts by up to four pixels."""
    return views_at_32("crop-flip", scale=(0.8, 1.0))


def _crops(count: int, **fields: Any) -> ViewsConfig:
    """Those of EMP-SSL's code: mild colours, one in ten blurred, one in ten solarised."""
    return views_at_32(
        num_views=count, hue=0.2, blur_probability=0.1, solarize_probability=0.1, **fields
    )


def _small(experiment: Experiment) -> dict[str, Any]:
    """The fields that a recipe's small version changes: those of cifar10.py, and a narrow head and fewer crops.

    Rates are the best of four where robust_scratch.py of benchmarks searched for them.
    """
    made = small(experiment.views)
    rate = {"cifar10-acl": 0.12, "cifar10-deacl": 0.12, "cifar10-cf-amc": 0.015}.get(
        experiment.recipe, 0.03
    )
    made["optimizer"] = made["optimizer"].model_copy(update={"learning_rate": rate})
    if isinstance(experiment.method, EMPSSLConfig):
        made["method"] = experiment.method.model_copy(update={"dim": 128, "hidden": 512})
        made["views"] = made["views"].model_copy(update={"num_views": 8})
        made |= {"epochs": 5, "batch_size": 100, "objective": experiment.objective}
    if isinstance(experiment.method, ClusterFitConfig):
        made |= {"epochs": 35, "schedule": _WARM}
    return made


for _function in (rocl, acl, dynacl, dynacl_pp, advcl, deacl, emp_ssl, cf_amc):
    register(f"cifar10-{_function.__name__.replace('_', '-')}", _function, **_small(_function()))
