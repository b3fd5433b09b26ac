"""Recipes of `hexa adapt` and `hexa harden`, which train from initial weights on your own images."""

from __future__ import annotations

from hexa.data.views.making import ViewsConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.methods.simclr import SimCLRConfig
from hexa.methods.teacher import TeacherConfig
from hexa.nn.backbones import NetworkConfig
from hexa.objective import ObjectiveConfig
from hexa.recipes import recipe
from hexa.recipes.experiment import Experiment
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig


@recipe
def adapt() -> Experiment:
    """SimCLR from pre-trained weights, on a few thousand images.

    A queue or a momentum encoder would hold embeddings of an untrained head for longer than such a run takes: MoCo-v2
    first forgets what the initial weights know (docs/decisions/adapt-and-harden.md).

    Command: hexa pretrain adapt --start BACKBONE --data folder:photos, or hexa adapt, which chooses size and length

    Expected: docs/results.md.

    Cost: the time limit of `hexa adapt`.
    """
    return Experiment(
        recipe="adapt",
        data="folder:photos",
        epochs=10,
        batch_size=128,
        network=NetworkConfig(name="resnet50"),
        views=ViewsConfig(),
        method=SimCLRConfig(temperature=0.1),
        objective=ObjectiveConfig(reduction="mean"),
        # docs/decisions/speed.md
        optimizer=OptimizerConfig(
            name="muon", learning_rate=0.012, other_rate=0.01, weight_decay=1e-4
        ),
        schedule=ScheduleConfig(kind="cosine", per="step"),
        monitor=MonitorConfig(k=15),
    )


@recipe
def teacher() -> Experiment:
    """A robust copy of pre-trained weights: adversarial views learn the features of the clean views.

    The attack takes one step of 4/255 from a random point within ε = 4/255. There is one set of batch-norms, with frozen
    statistics. Views are the whole images, mirrored or not, half of them with changed contrast; teacher and student see
    the same views. One image in each batch of 32 is not attacked. A training of more than about 700 steps overfits to a
    one-step attack; use two steps of ¾ ε: `--hard_examples.adversarial.steps 2 --hard_examples.adversarial.step_size 3`.

    Command: hexa pretrain teacher --start BACKBONE --data folder:photos, or hexa harden, which chooses size and length

    Expected: docs/results.md.

    Cost: 20 seconds of a fast core per epoch of 2,000 images at 64 pixels with EfficientNet-Lite0.
    """
    # noise of 2 ε and a step of 1.25 ε were worse on held-out images (benchmarks/tables.md)
    attack = {"epsilon": 4.0, "step_size": 4.0, "random_start": 1.0, "branch": "main"}
    views = {"recipe": "crop-flip", "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    # without contrast changes, the copy fails on images of low contrast (docs/decisions/adapt-and-harden.md)
    colours = {
        "jitter_probability": 0.5,
        "brightness": 0.0,
        "contrast": 0.8,
        "saturation": 0.0,
        "hue": 0.0,
    }
    return adapt().model_copy(
        update={
            "recipe": "teacher",
            "views": ViewsConfig.model_validate({**views, **colours}),
            "method": TeacherConfig(
                distance="cosine"
            ),  # more robust than l2 at equal training time (benchmarks/speedrun/README.md)
            "hard_examples": {
                "adversarial": Adversarial.model_validate({**attack, "fraction": 31 / 32})
            },
            # with equal weight on clean views, almost no robustness is left
            "objective": ObjectiveConfig(split=True, clean_fraction=1 / 32),
            # without a warm-up, the student first forgets what it knows
            "batch_size": 32,
            "optimizer": OptimizerConfig(
                name="muon", learning_rate=0.002, other_rate=0.01, weight_decay=1e-4
            ),
            "schedule": ScheduleConfig(
                kind="cosine", per="step", warmup_epochs=1, warmup_at_most=0.1
            ),
        }
    )
