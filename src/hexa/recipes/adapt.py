"""To begin from weights, on your own images: what `hexa adapt` plans with."""

from __future__ import annotations

from hexa.data.views.making import ViewsConfig
from hexa.methods.simclr import SimCLRConfig
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
    longer than such a run takes: MoCo-v2 first loses what the start knew (decision 0013).

    Command: hexa pretrain adapt --start BACKBONE --data folder:photos, or hexa adapt, which chooses size and length

    Expected: docs/your-own-images.md.

    Cost: what `hexa adapt` is given.
    """
    return Experiment(
        recipe="adapt",
        data="folder:photos",
        epochs=10,
        batch_size=128,
        network=NetworkConfig(name="resnet50"),
        views=ViewsConfig(),
        method=SimCLRConfig(temperature=0.2),
        objective=ObjectiveConfig(reduction="mean"),
        optimizer=OptimizerConfig(learning_rate=0.005, weight_decay=1e-4),
        schedule=ScheduleConfig(kind="cosine", per="step"),
        monitor=MonitorConfig(k=15, label_free=True),
    )
