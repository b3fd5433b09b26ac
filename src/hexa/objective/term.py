"""Terms of the objective, and their parts for the logs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hexa.core.example import Example, sum_weighted
from hexa.core.method import Method


@dataclass(frozen=True, eq=False)
class Part:
    """One term as the logs see it: all tensors are detached, and statistics are computed on
    demand."""

    loss: Tensor  # 0-d, unweighted mean
    embedding: Tensor  # [V, b, D]
    example: Example
    method: Method

    @torch.no_grad()
    def accuracy(self) -> Tensor | None:
        """Return the share of anchors whose pseudo-label is the most likely, weighted by the
        mixture; 0-d, None if unknown.

        Call before `commit`, which changes the keys or prototypes that the embedding is compared
        with.
        """
        hits = [
            (self.method.correct(self.embedding, labels), weight)
            for labels, weight in self.example.mixture
        ]
        known = [(correct.float(), weight) for correct, weight in hits if correct is not None]
        return sum_weighted(known).mean() if known else None


@dataclass(frozen=True, eq=False)
class Term:
    """A weighted loss to back-propagate, and its summands (several if passes were merged).

    Of the terms of a pass in micro-batches, one has the summands, of all images. last: no other
    term of this step follows; False if that is unknown.
    """

    loss: Tensor
    parts: dict[str, Part]
    last: bool = False
