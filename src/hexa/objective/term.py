"""A term of the objective, and its parts as the logs see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hexa.core.example import Example, sum_weighted
from hexa.core.method import Method


@dataclass(frozen=True, eq=False)
class Part:
    """One term as the logs see it: everything detached, nothing computed unless asked for."""

    loss: Tensor  # 0-d, unweighted mean
    embedding: Tensor  # [V, b, D]
    example: Example
    method: Method

    @torch.no_grad()
    def accuracy(self) -> Tensor | None:
        """The share of anchors whose pseudo-label is the most likely, counted by mixture weight; 0-d, None if unknown.

        Ask before `commit`, which moves what the embedding is compared with.
        """
        hits = [
            (self.method.correct(self.embedding, labels), weight)
            for labels, weight in self.example.mixture
        ]
        known = [(correct.float(), weight) for correct, weight in hits if correct is not None]
        return sum_weighted(known).mean() if known else None


@dataclass(frozen=True, eq=False)
class Term:
    """A weighted loss to back-propagate, and the parts it is the sum of (several where passes were merged).

    Of a pass in micro-batches, one of its terms has the parts, of all images. last: no term of this step follows, as far as is known.
    """

    loss: Tensor
    parts: dict[str, Part]
    last: bool = False
