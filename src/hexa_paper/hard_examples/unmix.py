"""Un-Mix (Shen et al., AAAI 2022): the batch mixed with itself in reverse, whole images or a box of them."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from pydantic import PositiveFloat

from hexa.core import Example, HardExample
from hexa.ops.boxes import cut_boxes, draw_beta, kept_share, paste
from hexa.runtime.random import Stream


class UnMix(HardExample):
    """x_mix = λ·x + (1 − λ)·x↓, x↓ the batch in reverse, with λ·L(x_mix, y) + (1 − λ)·L(x_mix, y↓).

    One λ for the step and all crops, and one choice between whole images and a box. As published, the mixed views are
    trained through the batch-norms of their source, in addition to the clean term. Helps where pseudo-labels compare images
    with each other (contrastive, regression): a soft distance between each pair instead of same or other.
    Costs one full pass.
    λ ~ Beta(1, 1), whole images and boxes half of the time each, as published.
    """

    mixes: ClassVar = True

    kind: Literal["unmix"] = "unmix"
    alpha: PositiveFloat = 1.0
    """α of Beta(α, α), from which λ is drawn."""
    box_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Share of the steps that paste a box instead of laying whole images over each other."""

    def __call__(
        self,
        source: Example,
        stream: Stream,
    ) -> Example:
        device = source.crops[0].device
        count = len(source)
        order = reversed_order(count).to(device, non_blocking=True)
        generator = stream.generator()
        boxed = bool(torch.rand((), generator=generator) < self.box_probability)
        drawn = draw_beta(self.alpha, self.alpha, 1, generator)
        views = []
        shares = []
        for given in source.crops:
            crop = given.detach()
            if boxed:
                # the same numbers for every crop: boxes of one place, in proportion to the crop's size
                boxes = cut_boxes(drawn, crop.shape[-1], False, stream.child("box").generator())
                views.append(paste(crop, order, boxes))
                shares.append(kept_share(boxes, crop.shape[-1]).expand(count))
            else:
                views.append(torch.lerp(crop[order], crop, float(drawn)).clamp_(0, 1))
                shares.append(drawn.expand(count))
        kept = torch.stack(shares).float().to(device, non_blocking=True)  # [V, B]
        return source.mixed(tuple(views), order, kept)


def reversed_order(count: int) -> torch.Tensor:
    """The images of this process in reverse order, on the CPU."""
    return torch.arange(count - 1, -1, -1)
