"""A pass in micro-batches, so that only one of them keeps its activations (gradient accumulation)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hexa.core.batch import Branch, run_sizes

if TYPE_CHECKING:
    from hexa.core.example import Score


class MicroBatches:
    """Crops [B, …] that go through a network in parts of consecutive images, each with its own batch statistics.

    A loss that compares the images of a batch needs the embedding of all of them first: `embedding` computes it without
    activations, and once the loss has left its gradient there, `replays` carries it on through the network, part by
    part (gradient caching: Gao et al., 2021, "Scaling deep contrastive learning batch size", section 3). Exact for any
    loss, at the price of a further forward pass. Stochastic layers draw the same in both passes.

    Each part has two images or more, as a batch-norm needs; a pass of few images has fewer parts. If the images do not
    divide, the first parts have one more, like the first groups of a batch-norm with as many groups.
    """

    def __init__(self, score: Score, crops: tuple[Tensor, ...], branch: Branch) -> None:
        self.score = score
        self.crops = crops
        self.branch = branch
        total = len(crops[0])
        count = max(1, min(score.accumulate, total // 2))
        self.rows = []
        start = 0
        for size in run_sizes(total, count):
            self.rows.append(slice(start, start + size))
            start += size
        self.several = count > 1
        self.seeds: list[int] = []
        if self.several:
            self.seeds = torch.randint(2**62, (count,), device="cpu").tolist()

    def embed(self, number: int, update: bool = True) -> Tensor:
        """The embedding [V, b, D] of a micro-batch. update: let it move the running statistics if the branch does."""
        torch.manual_seed(self.seeds[number])
        rows = self.rows[number]
        crops = tuple(crop[rows] for crop in self.crops)
        through = replace(
            self.branch,
            update=update and self.branch.update,
            part=number,
            parts=len(self.rows),
        )
        return self.score.embed(crops, through)

    def embedding(self) -> Tensor:
        """The embedding [V, B, D] of all images; of several micro-batches it is a leaf that takes a gradient."""
        if not self.several:
            return self.score.embed(self.crops, self.branch)
        with torch.no_grad():
            parts = [self.embed(number, update=False) for number in range(len(self.rows))]
            return torch.cat(parts, 1).requires_grad_()

    def replays(self, embedding: Tensor) -> Iterator[Tensor]:
        """For each micro-batch a 0-d zero whose backward carries `embedding.grad` through the network."""
        assert embedding.grad is not None, "back-propagate the loss first"
        for number, rows in enumerate(self.rows):
            product = (self.embed(number) * embedding.grad[:, rows]).sum()
            yield product - product.detach()
