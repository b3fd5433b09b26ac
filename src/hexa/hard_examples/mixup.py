"""Mixup (Zhang et al., ICLR 2018): the weighted mean of two images, with both pseudo-labels by
weight."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat

from hexa.core import Example, HardExample
from hexa.ops import draws
from hexa.ops.boxes import draw_beta
from hexa.runtime import processes
from hexa.runtime.random import Stream


class Mixup(HardExample):
    """x_mix = λ·x + (1 − λ)·x[perm], trained with λ·L(x_mix, y) + (1 − λ)·L(x_mix, y[perm]).

    Mixup is suited to pseudo-labels that are instances or clusters, and to long training: it
    smooths the space between images, whereas cut-mix keeps local texture real. Mixed images do not
    look like photographs, so a separate batch-norm set may be better. By default one λ ~ Beta(1, 1)
    serves the whole batch and crop. Costs one full pass.
    """

    mixes: ClassVar = True
    is_static: ClassVar = True

    kind: Literal["mixup"] = "mixup"
    alpha: PositiveFloat = 1.0
    """α of Beta(α, α), the distribution of λ; 0.2 mixes most images only slightly."""
    per_sample: bool = False
    """Draw a λ for each image instead of one for the batch."""
    branch: Literal["source", "main", "aux", "mixed"] = "source"
    """Batch-norms of the mixed views: the source's, or a separate set (mixed)."""

    def branches(self) -> tuple[str, ...]:
        return () if self.branch == "source" else (self.branch,)

    def __call__(
        self,
        source: Example,
        stream: Stream,
    ) -> Example:
        device = source.crops[0].device
        count = len(source)
        permutation = draws.drawn(partial(draws.partners, count), stream, device)
        views = []
        shares = []
        for number, crop in enumerate(source.crops):
            draw = partial(self._shares, count)
            share = draws.drawn(draw, stream.child("share", number), device)
            shares.append(share)
            image = crop.detach()
            weight = share.to(crop.dtype).view(-1, 1, 1, 1)
            # the mean of valid pixels is valid, up to rounding
            views.append(torch.lerp(image[permutation], image, weight).clamp_(0, 1))
        return source.mixed(tuple(views), permutation, torch.stack(shares), self.branch)

    def _shares(
        self,
        count: int,
        stream: Stream,
    ) -> torch.Tensor:
        """Return λ of each image of this process, [count], by its position in the global batch."""
        if not self.per_sample:
            return draw_beta(self.alpha, self.alpha, 1, stream.generator()).float().expand(count)
        first = processes.rank() * count
        every = draw_beta(self.alpha, self.alpha, first + count, stream.generator())
        return every[first:].float()
