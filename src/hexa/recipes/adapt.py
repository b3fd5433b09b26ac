"""To begin from weights, on your own images: what `hexa adapt` plans with, and what makes weights robust."""

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
    """SimCLR from weights that are good already, on some thousand images.

    A queue or a momentum twin would begin with the embeddings of a head that knows nothing, and learn from them for
    longer than such a run takes: MoCo-v2 first loses what the start knew (docs/decisions/adapt-and-harden.md).

    Command: hexa pretrain adapt --start BACKBONE --data folder:photos, or hexa adapt, which chooses size and length

    Expected: docs/results.md.

    Cost: what `hexa adapt` is given.
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
    """A robust copy of weights that are good already: adversarial views are to have the features of the clean ones.

    One step of 4 grey levels from a random point within 4, through the only batch-norms, whose statistics are kept;
    views are the images, mirrored or not, half of them in another contrast, which teacher and student see alike. One
    image of each batch of 32 is not attacked. More than some 700 steps overfit to a single step: give two of ¾ ε,
    `--hard_examples.adversarial.steps 2 --hard_examples.adversarial.step_size 3`.

    Command: hexa pretrain teacher --start BACKBONE --data folder:photos, or hexa harden, which chooses size and length

    Expected: docs/results.md.

    Cost: a third of a minute of a fast core for each epoch of 2,000 images of 64 pixels with EfficientNet-Lite0.
    """
    # not noise of 2 ε or a step of 1.25 ε, which did worse on held-out images (benchmarks/tables.md)
    attack = {"epsilon": 4.0, "step_size": 4.0, "random_start": 1.0, "branch": "main"}
    views = {"recipe": "crop-flip", "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    # without it the copy fails on images of low contrast (docs/decisions/adapt-and-harden.md)
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
            ),  # more robust than by l2 in the same time (benchmarks/speedrun/README.md)
            "hard_examples": {
                "adversarial": Adversarial.model_validate({**attack, "fraction": 31 / 32})
            },
            # with an equal weight on clean views next to nothing of the robustness is left
            "objective": ObjectiveConfig(split=True, clean_fraction=1 / 32),
            # without a warm-up the student begins by forgetting what it knew
            "batch_size": 32,
            "optimizer": OptimizerConfig(
                name="muon", learning_rate=0.002, other_rate=0.01, weight_decay=1e-4
            ),
            "schedule": ScheduleConfig(
                kind="cosine", per="step", warmup_epochs=1, warmup_at_most=0.1
            ),
        }
    )
