"""A self-supervised method: a classifier of pseudo-labels (REFERENCE §1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from hexa.config import Config, ConfigError
from hexa.core.batch import Batch, Branch, PseudoLabels
from hexa.runtime.random import Stream


@dataclass(frozen=True)
class Setting:
    """What a method must know of its surroundings to reserve everything it will remember.

    batch_size is global; num_crops counts the views of an image; branches are the names of all batch-norm sets that
    some pass will use; epochs is how long the run is to be, for schedules of the method's own. keep_statistics: the
    backbone's batch-norms normalise by the running statistics they begin with, which stay as they are.
    """

    data_size: int
    batch_size: int
    epochs: int = 1
    world_size: int = 1
    num_crops: int = 2
    branches: tuple[str, ...] = ("main",)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    seed: int = 0
    keep_statistics: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; images that do not fill one are left out."""
        return self.data_size // self.batch_size

    def check_crops(self, least: int, most: int | None, why: str) -> None:
        """Raise ConfigError unless the number of views of an image is in these bounds."""
        if self.num_crops < least or (most is not None and self.num_crops > most):
            use = f"{least} in all" if most == least else f"at least {least}"
            raise ConfigError([("views.num_views", f"{self.num_crops} views of an image do not fit: {why}; use {use}")])


class Passes(Protocol):
    """What a method may ask of the data between epochs.

    labels: classes of all images, int64 [N] on the CPU, or None; for measuring only. stream: names the randomness of
    this epoch's start, the same on every process.
    """

    labels: Tensor | None
    stream: Stream

    def views(self) -> Iterator[Batch]:
        """This process's share of one pass over the images in views of their own, as an epoch has them."""

    def images(self) -> Iterator[Batch]:
        """This process's share of all images once, as evaluation sees them: a single crop each."""


class MethodConfig(Config):
    """The fields of a method. A sub-class gives `name` a default, which is how recipes and the command line find it."""

    name: str

    #: Why parts of two images can't be mixed into an example of this method; empty where they can.
    unmixable: ClassVar[str] = ""

    def check(self, setting: Setting) -> None:
        """Raise ConfigError if the method can't run in this setting, before anything is built or written."""

    def build(self, backbone: nn.Module, setting: Setting) -> Method:
        """The method around `backbone`, a network of normalised images [B, 3, S, S] -> features [B, num_features]."""
        raise NotImplementedError


class Method(nn.Module, ABC):
    """The contract between a method and the engine.

    Everything it remembers exists once it is constructed and is a parameter or a buffer. `embed`, `pseudo_labels` and
    `loss` change nothing but the batch-norm statistics of the passes that count; `commit` is the only mutation.
    """

    #: Pseudo-labels are made of the clean embedding of the same images (SwAV's codes, SimCLR's dictionary).
    labels_from_embedding: bool = False

    @property
    @abstractmethod
    def backbone(self) -> nn.Module:
        """The network that evaluation and export receive: normalised images -> features [B, num_features]."""

    @abstractmethod
    def anchors(self, batch: Batch) -> tuple[Tensor, ...]:
        """The crops that carry gradient: V tensors [B, 3, S_v, S_v]. MoCo: the query; SimCLR, DeepCluster: all."""

    @abstractmethod
    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Crops in [0, 1] -> embedding [V, B, D], through the batch-norms of `branch`."""

    @abstractmethod
    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> PseudoLabels:
        """The pseudo-labels of all images of the batch, from clean views, without gradient.

        `embedding` is the detached clean embedding; None where not all images have one (`labels_from_embedding`).
        """

    @abstractmethod
    def loss(self, embedding: Tensor, labels: PseudoLabels) -> Tensor:
        """The loss [V, B] per anchor and image; its mean is the published reduction. Pure."""

    def clean_loss(self, embedding: Tensor, labels: PseudoLabels) -> Tensor:
        """The loss [V, B] of the clean views, where it differs (SimCLR back-propagates through both views)."""
        return self.loss(embedding, labels)

    def correct(self, embedding: Tensor, labels: PseudoLabels) -> Tensor:
        """Whether the pseudo-label is the most likely one, bool [V, B]: contrastive accuracy."""
        raise NotImplementedError

    def directions(self, embedding: Tensor) -> Tensor | None:
        """What of an embedding should fill its space, [V, B, D], for the logs; None where it is a score for each class.

        One point or few directions there are a collapse.
        """
        return embedding

    @property
    def chance_loss(self) -> float | None:
        """The loss of a network that tells nothing apart, to recognise a run that does not learn; None if unknown."""
        return None

    def unscheduled(self) -> Iterable[nn.Parameter]:
        """Parameters whose learning rate stays at its largest value, whatever the schedule (SimSiam's predictor)."""
        return ()

    def notes(self) -> list[str]:
        """What a user should know before the run starts, a line each: the memory it will take …"""
        return []

    @torch.no_grad()
    def commit(self, batch: Batch, embedding: Tensor | None, labels: PseudoLabels) -> None:
        """Remember the step: momentum twin, queue, bank … Called once, after the optimizer's step, on clean data only.

        `embedding` is the detached clean embedding of the first images of the batch (all, unless a `fraction` is set).
        """

    @torch.no_grad()
    def start_epoch(self, epoch: int, data: Passes) -> dict[str, float]:
        """Called before the first step of every epoch (DeepCluster-v2 and PCL cluster here); returns facts to log.

        A function of the state, the epoch and the data alone: a resumed run calls it again where it stopped between
        two epochs.
        """
        return {}

    def checkpoint(self) -> dict[str, Any]:
        """All it remembers, whole on the main process, for one file. Every process calls it.

        A method that keeps a part of something in each process overrides this and `restore` (nn.MemoryBank).
        """
        return self.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, on every process, in whatever number of processes it was written."""
        self.load_state_dict(state)
