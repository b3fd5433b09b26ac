"""Monitoring: statistics of the embedding, and warnings about collapse and other failures (F30)."""

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

#: Warn if the standard deviation of the embedding is lower: 1 is a batch spread evenly over the
#: sphere, 0 a single point. A short, healthy MoCo run on the digits (k-NN 90 %) passes 0.04.
LOW_FEATURE_STD = 0.02
#: Warn if the effective rank is below this share of the embedding's width, or below 2.
LOW_RANK_SHARE = 0.03
#: Number of rows of the embedding for the effective rank.
_RANK_ROWS = 512
#: A loss this close to the chance loss, such as ln(1 + K), has learned nothing …
CHANCE_MARGIN = 0.02
#: … if it stays there for this number of log lines.
STUCK_LINES = 10
#: Warn if the share of non-empty clusters is lower.
FEW_CLUSTERS = 0.5
#: If k-NN is near chance, a higher contrastive accuracy means that views match without content.
HIGH_ACCURACY = 0.97
#: Overfitting to one step: many attack steps raise the loss to this multiple of its lowest value,
#: while one step raises it less.
OVERFITTED = 1.5


class MonitorConfig(Config):
    """The monitor: k-NN accuracy of the frozen features during training, if there are labels
    (F22)."""

    data: str | None = None
    """Other images for the score, SOURCE or SOURCE#split; none uses those of the run."""
    holdout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the images, drawn by the seed, to exclude from training and use for the score."""
    keep_best: Literal["knn"] | None = None
    """knn: keep the backbone of the epoch with the highest score; none keeps the last epoch's."""
    patience: PositiveInt | None = None
    """End the run after this number of scores without improvement (needs keep_best); none never
    ends it early."""
    until: float | None = pydantic.Field(default=None, gt=0, le=100)
    """End the run at this k-NN accuracy in percent, to compare runs by the time it takes; none
    never ends it early. Schedules still use `epochs`."""

    knn_every: NonNegativeInt = 10
    """Epochs between two scores; the last epoch always has one. 0 turns the monitor off."""
    k: PositiveInt = 200
    """Maximum number of neighbours that vote; limited by the number of images."""
    temperature: PositiveFloat = 0.07
    """Temperature T of the votes exp(similarity / T)."""
    max_images: PositiveInt = 20000
    """Maximum number of images in each of the two splits, drawn once."""

    @pydantic.model_validator(mode="after")
    def _keeps_what_it_measures(self) -> MonitorConfig:
        if self.patience is not None and self.keep_best is None:
            raise ValueError("patience needs keep_best knn")
        if not self.knn_every and (self.keep_best or self.until):
            name = "keep_best" if self.keep_best else "until"
            raise ValueError(f"{name} needs scores; use knn_every 1 or more")
        return self


def feature_std(embedding: Tensor) -> Tensor:
    """√D · mean over dimensions of the std over images of unit embeddings [B, D]; 0-d: near 1 if
    healthy, 0 if collapsed."""
    flat = embedding.flatten(0, -2).float()
    return flat.std(0, correction=0).mean() * math.sqrt(flat.shape[1])


def effective_rank(embedding: Tensor) -> Tensor:
    """exp(−Σ p log p) of the normalised singular values p of the centred embeddings [B, D]; 0-d, 1
    … min(B − 1, D)."""
    # these rows suffice to detect a collapse; more would take seconds for wide embeddings
    flat = embedding.flatten(0, -2)[:_RANK_ROWS].float()
    values = torch.linalg.svdvals(flat - flat.mean(0))
    share = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return cast(Tensor, torch.special.entr(share).sum().exp())


Monitor = Callable[[Callable[[str], object]], float]
"""Returns the k-NN accuracy of the frozen features in percent; its argument receives warnings."""


@dataclass
class Scoring:
    """Scores, what depends on them, and the highest one so far. `state` survives a resume."""

    config: MonitorConfig = field(default_factory=MonitorConfig)
    """When to score, what to keep, and when to end the run."""
    monitor: Monitor | None = None
    """Measures the features; None if there are no images to score."""
    keep: Callable[[], object] = lambda: None
    """Called if the current weights are the best so far."""
    reached: float | None = field(default=None, init=False)
    """First score that was at least `until`."""
    value: float | None = field(default=None, init=False)
    """Highest score so far."""
    step: int = field(default=0, init=False)
    """Step of the highest score."""
    waited: int = field(default=0, init=False)
    """Number of scores since then."""
    judged: int = field(default=0, init=False)
    """Step of the last score."""

    @property
    def state(self) -> dict[str, object]:
        """State for a checkpoint."""
        names = ("value", "step", "waited", "reached", "judged")
        return {name: getattr(self, name) for name in names}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in self.state.keys() & state.keys():
            setattr(self, name, state[name])

    def judge(self, percent: float, step: int) -> bool:
        """Record an accuracy in percent; return True if it is the highest so far and its weights
        are to be kept.

        A second score of the same step changes nothing: a resumed run reads it from the log, and
        the checkpoint may include it."""
        if step == self.judged:
            return False
        self.judged = step
        until = self.config.until
        if until is not None and percent >= until:
            self.reached = percent
        if self.config.keep_best is None:
            return False
        if self.value is not None and percent <= self.value:
            self.waited += 1
            return False
        self.value = percent
        self.step = step
        self.waited = 0
        return True

    def ending(self, steps_per_epoch: int) -> str | None:
        """Return the reason why the run should end now; None if it should continue."""
        config = self.config
        if config.until is not None and self.reached is not None:
            return f"k-NN reached {self.reached:.2f} % (target {config.until:g} %)"
        if config.patience is not None and self.waited >= config.patience:
            return f"k-NN has not risen since epoch {round(self.step / steps_per_epoch, 2):g}"
        return None


class Watch:
    """Turns the metrics of log and monitor lines into warnings; each warning appears once, until
    the problem disappears.

    chance_loss: loss of a network with constant output; None if unknown.
    num_classes: for the k-NN accuracy of guessing.
    Only the last few lines are remembered; `state` keeps them over a resume.
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
        """State for a checkpoint."""
        return {**vars(self), "given": sorted(self.given)}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for name in ("accuracy", "stuck", "attacks"):
            setattr(self, name, state[name])
        self.given = set(state["given"])

    def train(self, line: Mapping[str, float], directions: int) -> list[str]:
        """Return warnings about a line of training metrics; `directions` is the largest possible
        effective rank.

        The first epoch is skipped, because an untrained network maps all images to nearly the same
        point.
        """
        if line.get("epoch", 1.0) < 1:
            return []
        # metrics that a method lacks cause no warning
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
                f"the embedding is collapsing to one point (std {spread:.3f}, healthy is near 1); "
                "lower optimizer.learning_rate, or raise the method's temperature",
            ),
            *self._once(
                "rank",
                rank < max(2.0, LOW_RANK_SHARE * directions),
                f"the embedding is collapsing: it uses only {rank:.1f} of {directions} directions; "
                "lower optimizer.learning_rate",
            ),
            *self._once(
                "chance",
                self.stuck >= STUCK_LINES,
                f"nothing is learned yet: the loss stays at {loss:.3f} (guessing: {chance:.3f}); "
                "change optimizer.learning_rate, or check the views with hexa visualize",
            ),
        ]

    def epoch(self, facts: Mapping[str, float]) -> list[str]:
        """Return warnings about the metrics of a method's epoch start."""
        full = facts.get("clusters/non_empty", 1.0)
        return self._once(
            "clusters",
            full < FEW_CLUSTERS,
            f"only {100 * full:.0f} % of the clusters have images: the embedding has collapsed, or "
            "there are too many clusters; lower method.num_prototypes (PCL: num_clusters) or "
            "optimizer.learning_rate",
        )

    def attacked(self, name: str, one: float, many: float) -> list[str]:
        """Return warnings about the loss after one step of a hard example, and after many steps in
        the same ball.

        Many steps always succeed against a network that is not robust yet, so losses are compared
        with the epoch in which many steps raised the loss least.
        """
        least_one, least = self.attacks.get(name, (one, many))
        if many <= least:
            self.attacks = self.attacks | {name: [one, many]}
        return self._once(
            f"overfitting {name}",
            many > OVERFITTED * least and one < least_one,
            f"catastrophic overfitting to {name}: an attack with many steps raises the loss to "
            f"{many:.3g} ({least:.3g} in an earlier epoch), the single training step only to "
            f"{one:.3g} ({least_one:.3g} then); give hard_examples.{name} more steps, "
            "random_start 2 with project false, or a smaller epsilon",
        )

    def knn(self, percent: float) -> list[str]:
        """Return warnings about a k-NN accuracy, given the contrastive accuracy of the last
        line."""
        if not self.num_classes:
            return []
        guess = 100 / self.num_classes
        return self._once(
            "shortcut",
            percent < min(2 * guess, guess + 0.2 * (100 - guess)) and self.accuracy > HIGH_ACCURACY,
            f"the pretext task is solved ({100 * self.accuracy:.0f} %), but k-NN is only "
            f"{percent:.1f} % (guessing: {guess:.1f} %): views match by something other than "
            "content, often by shared batch-norm statistics; raise method.bn_groups or make the "
            "views harder",
        )

    def _once(self, name: str, wrong: bool, message: str) -> list[str]:
        new = wrong and name not in self.given
        self.given = self.given | {name} if wrong else self.given - {name}
        return [message] if new else []
