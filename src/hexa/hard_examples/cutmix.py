"""Cut-mixed views: a box from another image is pasted in; both pseudo-labels count by area
(F15)."""

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
    """x_cmx = M∘x + (1 − M)∘x[perm], trained with λ·L(x_cmx, y) + (1 − λ)·L(x_cmx, y[perm]); λ is
    the exact area kept.

    One permutation, over the images of this process, serves all crops of a step (D14); each crop
    has its own box and λ. By default one box serves the whole batch; its size comes from λ0 ~
    Beta(5, 3) and it is clipped at the borders, as published. Costs one full pass.
    """

    mixes: ClassVar = True
    is_static: ClassVar = True

    kind: Literal["cutmix"] = "cutmix"
    alpha: PositiveFloat = 5.0
    """α of Beta(α, β), the distribution of the kept share λ0."""
    beta: PositiveFloat = 3.0
    """β of Beta(α, β)."""
    per_sample: bool = False
    """Draw a box for each image instead of one for the batch (D12)."""
    inside: bool = False
    """Draw boxes inside the image, so that the actual λ equals the drawn one; otherwise boxes are
    clipped at the borders (D12)."""
    branch: Literal["source", "main", "aux", "mixed"] = "source"
    """Batch-norms of the mixed views. source: the source's, which is main for clean views (D6) and
    aux for adversarial views (D7); mixed: a separate set."""
    update_statistics: bool = True
    """Let mixed views update the running statistics of their batch-norms (D33)."""

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
        """Return one box [1, 4], the same on every process, or with `per_sample` one per image
        [count, 4]."""
        if self.per_sample:
            stream = stream.child(processes.rank())
        else:
            count = 1
        generator = stream.generator()
        shares = draw_beta(self.alpha, self.beta, count, generator)
        return cut_boxes(shares, size, self.inside, generator)
