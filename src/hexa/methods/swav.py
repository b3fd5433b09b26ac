"""SwAV (Caron et al., 2020; F9): predict the code of one crop from other crops; codes use all
prototypes equally."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import field_error
from hexa.core import Batch, EncoderConfig, Method, PseudoLabels, Setting
from hexa.core.batch import Index
from hexa.core.method import check_queue
from hexa.nn.backbones import num_features
from hexa.nn.encoder import Encoder, normalized_head
from hexa.ops.draws import of_step
from hexa.ops.sinkhorn import sinkhorn
from hexa.ops.swapped import swapped_prediction, targets_of_others
from hexa.runtime import processes


class SwAVConfig(EncoderConfig):
    """SwAV as published for large batches: without a queue (F9)."""

    name: Literal["swav"] = "swav"
    num_views: ClassVar = (2, None, "a crop predicts the code of another")
    dim: PositiveInt = 128
    """Width of the embedding, D."""
    hidden: PositiveInt = 2048
    """Width of the head's hidden layer."""
    num_prototypes: PositiveInt = 3000
    """Number of prototypes, K."""
    temperature: PositiveFloat = 0.1
    """Temperature τ of the predictions."""
    epsilon: PositiveFloat = 0.05
    """Entropy weight ε of Sinkhorn–Knopp for the codes; use 0.03 if the loss stays at ln K."""
    sinkhorn_iterations: PositiveInt = 3
    """Number of normalisations of rows and columns."""
    crops_for_assign: tuple[pydantic.NonNegativeInt, ...] = pydantic.Field(
        default=(0, 1), min_length=1
    )
    """Crops for which codes are computed."""
    freeze_prototypes_steps: NonNegativeInt = 313
    """Number of initial steps with frozen prototypes; about an epoch (5005 at batch 256)."""
    queue_size: NonNegativeInt = 0
    """Number of embeddings of previous batches, per crop, that help to balance the codes; rounded
    down to whole batches. 3840 for batches of 256; 0 means no queue."""
    queue_start_epoch: NonNegativeInt = 15
    """First epoch in which the queue is filled; it is used once it is full."""

    def views_needed(self) -> tuple[int, int | None, str]:
        least, most, why = self.num_views
        return max(least, max(self.crops_for_assign) + 1), most, why

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if 0 < self.queue_size < setting.batch_size:
            raise field_error(
                "method.queue_size",
                f"{self.queue_size} is less than a batch; use {15 * setting.batch_size} or 0",
            )


@dataclass(frozen=True, eq=False)
class Codes(PseudoLabels):
    """The codes [A, B, K] of the A crops that have one; rows sum to one.

    frozen: no gradient reaches the prototypes.
    """

    codes: Tensor
    frozen: bool

    def __getitem__(self, index: Index) -> Codes:
        return replace(self, codes=self.codes[:, index])


class SwAV(Method[Codes], config=SwAVConfig):
    """L = mean over codes c, crops v ≠ c and images of −Σ_k q_ck · log softmax_k(z_v·c_k / τ) (F9).

    Sinkhorn–Knopp computes the codes from the clean cosines of all processes, and of the queue if
    there is one. The target of a hard example is the codes of its clean image; mixed views have
    mixed codes, which equals mixing the losses (F16). Prototypes are unit vectors before every
    step.
    """

    labels_from_embedding = True
    is_static = True

    def __init__(self, config: SwAVConfig, backbone: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.config = config
        # all prototypes equally likely
        self.chance_loss = math.log(config.num_prototypes)
        head = normalized_head(num_features(backbone), config.hidden, config.dim)
        self.encoder = Encoder.branched(backbone, head, setting, config.bn_groups)
        self.prototypes = nn.Linear(config.dim, config.num_prototypes, bias=False)
        self._normalize_prototypes()
        length = config.queue_size // setting.batch_size * setting.batch_size
        shape = (len(config.crops_for_assign), length, config.dim)
        self.queue = nn.Buffer(torch.zeros(shape))  # [A, L, D]
        self.queue_start = config.queue_start_epoch * setting.steps_per_epoch
        self.queue_full = self.queue_start + length // setting.batch_size

    def pseudo_labels(self, batch: Batch, embedding: Tensor | None) -> Codes:
        assert embedding is not None, "codes are made of the clean embedding"
        config = self.config
        frozen, _, uses_queue = self.phase(batch.step)
        codes = []
        for place, crop in enumerate(config.crops_for_assign):
            # every process balances the codes of all: one collective instead of one per sum
            rows = processes.all_gather(embedding[crop])
            if self.queue.shape[1] and uses_queue:
                rows = torch.cat([rows, self.queue[place].to(rows.dtype)])
            with torch.autocast(rows.device.type, enabled=False):
                scores = rows @ self.prototypes.weight.detach().T
            found = sinkhorn(scores, config.epsilon, config.sinkhorn_iterations)
            codes.append(found[batch.rows])
        return Codes(torch.stack(codes), frozen)

    def phase(self, step: int) -> tuple[bool, bool, bool]:
        """Return whether the prototypes are frozen, the queue is filled, and the queue is used."""
        frozen = step < self.config.freeze_prototypes_steps
        return frozen, step >= self.queue_start, step >= self.queue_full

    def loss(self, embedding: Tensor, labels: Codes) -> Tensor:
        scores = self._cosines(embedding, labels) / self.config.temperature
        return swapped_prediction(scores, labels.codes, self.config.crops_for_assign)

    def correct(self, embedding: Tensor, labels: Codes) -> Tensor:
        targets = targets_of_others(labels.codes, self.config.crops_for_assign, len(embedding))
        return self._cosines(embedding, labels).argmax(-1) == targets.argmax(-1)

    def _cosines(self, embedding: Tensor, labels: Codes) -> Tensor:
        """Return the cosines [V, B, K] to the prototypes."""
        weight = self.prototypes.weight.detach() if labels.frozen else self.prototypes.weight
        with torch.autocast(embedding.device.type, enabled=False):
            return embedding @ weight.T

    def commit(self, batch: Batch, embedding: Tensor, labels: Codes) -> None:
        self._normalize_prototypes()
        length = self.queue.shape[1]
        if length and self.phase(batch.step)[1]:
            crops = self.config.crops_for_assign
            rows = torch.stack([processes.all_gather(embedding[crop]) for crop in crops])
            count = rows.shape[1]
            check_queue(length, count)

            def begin(step: int) -> int:
                return (step - self.queue_start) * count % length

            # overwrite the oldest rows; their order does not matter
            device = rows.device
            first = of_step(begin, batch.step, device, torch.long)
            places = first + torch.arange(count, device=device)
            self.queue.index_copy_(1, places, rows.to(self.queue.dtype))

    @torch.no_grad()
    def _normalize_prototypes(self) -> None:
        weight = self.prototypes.weight
        weight.copy_(F.normalize(weight, dim=1))
