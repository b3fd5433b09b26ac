"""Cut-mixed views: a box of another image pasted in, and both pseudo-labels by area (F15)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat

from hexa.core import Example, HardExample
from hexa.ops import draws
from hexa.ops.boxes import cut_boxes, draw_beta, kept_share, paste
from hexa.runtime import processes
from hexa.runtime.random import Stream


class CutMix(HardExample):
    """x_cmx = M∘x + (1 − M)∘x[perm], with λ·L(x_cmx, y) + (1 − λ)·L(x_cmx, y[perm]); λ is the exact area kept.

    One permutation for all crops of a step, drawn over the images of this process (D14); a box and a λ for each crop.
    Costs one full pass.
    One box for the whole batch and crop, its size by λ0 ~ Beta(5, 3), clipped at the borders, as published.
    """

    mixes: ClassVar = True
    is_static: ClassVar = True

    kind: Literal["cutmix"] = "cutmix"
    alpha: PositiveFloat = 5.0
    """α of Beta(α, β), from which the share that is kept is drawn."""
    beta: PositiveFloat = 3.0
    """β of Beta(α, β)."""
    per_sample: bool = False
    """A box for each image instead of one for all (D12)."""
    inside: bool = False
    """Boxes that lie inside the image, so that the realised λ is the drawn one; else they are clipped (D12)."""
    branch: Literal["source", "main", "aux", "mixed"] = "source"
    """The batch-norms of the mixed views: the source's (D6: main for clean, D7: aux for adversarial views), or a set of
    their own (mixed)."""
    update_statistics: bool = True
    """Let mixed views move the running statistics of their batch-norms (D33)."""

    def branches(self) -> tuple[str, ...]:
        return () if self.branch == "source" else (self.branch,)

    def __call__(self, source: Example, stream: Stream) -> Example:
        device = source.crops[0].device
        count = len(source)
        permutation = draws.drawn(partial(draws.partners, count), stream, device)
        views = []
        shares = []
        for number, crop in enumerate(source.crops):
            size = crop.shape[-1]
            draw = partial(self.boxes, count, size)
            boxes = draws.drawn(draw, stream.child("box", number), device)
            views.append(paste(crop.detach(), permutation, boxes))
            shares.append(kept_share(boxes, size).expand(count))
        kept = torch.stack(shares)  # [V, B]
        return source.mixed(tuple(views), permutation, kept, self.branch, self.update_statistics)

    def boxes(self, count: int, size: int, stream: Stream) -> torch.Tensor:
        """One box [1, 4], the same on every process, or one a sample [count, 4]."""
        if self.per_sample:
            stream = stream.child(processes.rank())
        else:
            count = 1
        generator = stream.generator()
        shares = draw_beta(self.alpha, self.beta, count, generator)
        return cut_boxes(shares, size, self.inside, generator)
