"""Is it learning? Statistics of the embedding, and warnings of collapse in plain words (F30)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hexa.config import Config

#: Below this the embedding hardly varies: 1 is a batch spread evenly over the sphere, 0 a single point. A short MoCo
#: run on the digits passes 0.04, its directions many, with a k-NN of 90 %.
LOW_FEATURE_STD = 0.02
#: An effective rank below this share of the embedding's width, or below 2, is a collapse to few directions.
LOW_RANK_SHARE = 0.03
#: Rows of the embedding that the effective rank is taken of.
_RANK_ROWS = 512
#: A loss within this of ln(1 + K) has learned nothing.
CHANCE_MARGIN = 0.02
#: … for this number of lines of metrics.
STUCK_LINES = 10
#: A share of non-empty clusters below this is a clustering that says little.
FEW_CLUSTERS = 0.5
#: A contrastive accuracy above this with a k-NN hardly above chance: the task is solved by other means than content.
HIGH_ACCURACY = 0.97
#: Overfitting: many attack steps raise the loss to this multiple of their lowest, while one step raises it less.
OVERFITTED = 1.5


class MonitorConfig(Config):
    """The monitor: k-NN accuracy of the frozen features while training, where there are labels (F22)."""

    data: str | None = None
    """Other images to score on, SOURCE or SOURCE#split; none for those of the run."""
    holdout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the images, drawn from the seed, that is not trained on, so that the monitor scores on it."""
    keep_best: Literal["knn"] | None = None
    """knn: the backbone of the run is that of the epoch with the highest score; none for the last epoch's."""
    patience: PositiveInt | None = None
    """Scores in a row without a rise after which the run ends, with keep_best; none never ends it early."""
    until: float | None = pydantic.Field(default=None, gt=0, le=100)
    """Percent of k-NN at which the run ends: arms are then compared by the time it took. Schedules go by `epochs`."""

    knn_every: NonNegativeInt = 10
    """Epochs between two; the last epoch always has one. 0 turns it off."""
    k: PositiveInt = 200
    """Neighbours that vote, at most; capped by the number of images."""
    temperature: PositiveFloat = 0.07
    """T of the votes exp(similarity / T)."""
    max_images: PositiveInt = 20000
    """Images of each of the two splits, at most, drawn once."""

    @pydantic.model_validator(mode="after")
    def _keeps_what_it_measures(self) -> MonitorConfig:
        if self.patience is not None and self.keep_best is None:
            raise ValueError("patience needs a score that is waited for: give keep_best knn")
        if not self.knn_every and (self.keep_best or self.until):
            name = "keep_best" if self.keep_best else "until"
            raise ValueError(f"{name} needs scores: give knn_every, the epochs between two")
        return self


def feature_std(embedding: Tensor) -> Tensor:
    """√D · mean over dimensions of the std over images of unit embeddings [B, D]; 0-d, near 1 healthy, 0 dead."""
    flat = embedding.flatten(0, -2).float()
    return flat.std(0, correction=0).mean() * math.sqrt(flat.shape[1])


def effective_rank(embedding: Tensor) -> Tensor:
    """exp(−Σ p log p) of the normalised singular values p of the centred embeddings [B, D]; 0-d, 1 … min(B − 1, D)."""
    # enough rows to see a collapse, and wide embeddings would take seconds
    flat = embedding.flatten(0, -2)[:_RANK_ROWS].float()
    values = torch.linalg.svdvals(flat - flat.mean(0))
    share = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return cast(Tensor, torch.special.entr(share).sum().exp())


@dataclass
class Best:
    """The highest k-NN accuracy so far, and for how many scores it has stood. `state` survives a resume."""

    keeps: bool = False
    """True: the weights with the highest accuracy are kept. False: accuracies are not compared."""
    patience: int | None = None
    """Scores in a row without a rise after which the run ends."""
    until: float | None = None
    """The k-NN accuracy in percent at which the run ends."""
    reached: float | None = field(default=None, init=False)
    """The first score that was not below `until`."""
    value: float | None = field(default=None, init=False)
    """The highest score so far."""
    step: int = field(default=0, init=False)
    """The step at which it was measured."""
    waited: int = field(default=0, init=False)
    """Number of scores measured since then."""

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint must hold."""
        return {name: getattr(self, name) for name in ("value", "step", "waited", "reached")}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in self.state:
            setattr(self, name, state[name])

    def judge(self, percent: float, step: int) -> bool:
        """Remember an accuracy in percent, and its step, if it is the highest; True if its weights are to be kept."""
        if self.until is not None and percent >= self.until:
            self.reached = percent
        if not self.keeps:
            return False
        if self.value is not None and percent <= self.value:
            self.waited += 1
            return False
        self.value = percent
        self.step = step
        self.waited = 0
        return True

    def ending(self, steps_per_epoch: int) -> str | None:
        """Why the run should end now, if it should."""
        if self.until is not None and self.reached is not None:
            return f"k-NN reached {self.reached:.2f} % (target {self.until:g} %)"
        if self.patience is not None and self.waited >= self.patience:
            return f"k-NN has not risen since epoch {self.step / steps_per_epoch:g}"
        return None


Monitor = Callable[[Callable[[str], object]], float]
"""The k-NN accuracy of the frozen features, in percent; it is given a function that takes warnings."""


@dataclass
class Scoring:
    """When the frozen features are scored, and what follows from it."""

    monitor: Monitor | None = None
    """Measures the features; None if there are no images to measure on."""
    every: int = 0
    """Epochs between two scores, the last epoch always has one; 0 for never."""
    best: Best = field(default_factory=Best)
    """The best score so far, and whether the run should end."""
    keep: Callable[[], object] = lambda: None
    """Called when the current weights are the best so far."""


class Watch:
    """Looks at the metrics of log and monitor lines and says what they mean; each warning once, until it has passed.

    chance_loss: the loss of a network that outputs a constant, if the method knows it. num_classes: for what k-NN
    would reach by guessing. Only the last few lines are remembered, and `state` makes that survive a resume.
    """

    def __init__(self, chance_loss: float | None, num_classes: int | None) -> None:
        self.chance_loss = chance_loss
        self.num_classes = num_classes
        self.given: set[str] = set()
        self.accuracy = 0.0
        self.stuck = 0
        self.attacks: dict[str, list[float]] = {}

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint must hold."""
        return {**vars(self), "given": sorted(self.given)}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in ("accuracy", "stuck", "attacks"):
            setattr(self, name, state[name])
        self.given = set(state["given"])

    def train(self, line: Mapping[str, float], directions: int) -> list[str]:
        """Warnings about a line of training metrics; an effective rank could be as high as `directions`.

        The first epoch is skipped: an untrained network maps all images to nearly the same point.
        """
        if line.get("epoch", 1.0) < 1:
            return []
        # what a method does not have is nothing to warn of
        spread = line.get("feature_std", math.inf)
        rank = line.get("effective_rank", math.inf)
        loss = line.get("loss/std", math.nan)
        chance = self.chance_loss or math.nan
        self.stuck = self.stuck + 1 if abs(loss - chance) < CHANCE_MARGIN * chance else 0
        self.accuracy = line.get("accuracy/std", self.accuracy)
        return [
            *self._once(
                "std",
                spread < LOW_FEATURE_STD,
                f"the embedding hardly varies (std {spread:.3f}, healthy is near 1): it is collapsing to one point; "
                "lower optimizer.learning_rate, or raise the temperature of a method that has one",
            ),
            *self._once(
                "rank",
                rank < max(2.0, LOW_RANK_SHARE * directions),
                f"the embedding uses {rank:.1f} of {directions} directions: it is collapsing to few; "
                "lower optimizer.learning_rate",
            ),
            *self._once(
                "chance",
                self.stuck >= STUCK_LINES,
                f"the loss stays at {loss:.3f}, that of guessing ({chance:.3f}): nothing is learned yet; "
                "change optimizer.learning_rate, or look at the views with hexa visualize",
            ),
        ]

    def epoch(self, facts: Mapping[str, float]) -> list[str]:
        """Warnings about what a method did between epochs."""
        full = facts.get("clusters/non_empty", 1.0)
        return self._once(
            "clusters",
            full < FEW_CLUSTERS,
            f"only {100 * full:.0f} % of the clusters have an image: the embedding has collapsed, or they are too "
            "many; lower method.num_prototypes (PCL: num_clusters) or optimizer.learning_rate",
        )

    def attacked(self, name: str, one: float, many: float) -> list[str]:
        """Warnings about the loss after one step of a hard example, and after many steps in the same ball.

        A network that is not robust yet falls to many steps as well; what is compared is the epoch they did the least.
        """
        least_one, least = self.attacks.get(name, (one, many))
        if many <= least:
            self.attacks = self.attacks | {name: [one, many]}
        return self._once(
            f"overfitting {name}",
            many > OVERFITTED * least and one < least_one,
            f"many steps of {name} raise the loss to {many:.3g}, after {least:.3g} in an earlier epoch, but the one "
            f"step that is trained on to {one:.3g}, after {least_one:.3g}: the network resists that step alone "
            f"(catastrophic overfitting); give hard_examples.{name} more steps, a random_start of 2 without project, "
            "or a smaller epsilon",
        )

    def knn(self, percent: float) -> list[str]:
        """Warnings about a k-NN accuracy, given the contrastive accuracy of the last line."""
        if not self.num_classes:
            return []
        guess = 100 / self.num_classes
        return self._once(
            "shortcut",
            percent < min(2 * guess, guess + 0.2 * (100 - guess)) and self.accuracy > HIGH_ACCURACY,
            f"the pretext task is solved ({100 * self.accuracy:.0f} %) but k-NN is {percent:.1f} %, guessing gives "
            f"{guess:.1f} %: the views betray each other by something other than content, often by shared batch-norm "
            "statistics; raise method.bn_groups or make the views harder",
        )

    def _once(self, name: str, wrong: bool, message: str) -> list[str]:
        new = wrong and name not in self.given
        self.given = self.given | {name} if wrong else self.given - {name}
        return [message] if new else []
