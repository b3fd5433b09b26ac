"""RandAugment as a hard example (Cubuk et al. 2020; used by FixMatch and UDA): strongly augmented
views."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pydantic
import torch
from torch import Tensor

from hexa.config import Share, UserError
from hexa.core import Example, HardExample
from hexa.ops import draws, randaugment
from hexa.ops.boxes import cut_out
from hexa.runtime.random import Stream


class RandAugment(HardExample):
    """x_ra = cutout(o_n(… o_1(x))), each o one of fifteen operations of colour or geometry;
    pseudo-labels stay.

    An operation is applied with probability ½, with a magnitude uniform in [0, 10] (FixMatch)
    unless `magnitude` is set. Then a grey square covers a random place. The defaults, two
    operations and a square of half the side, are FixMatch's; the fifteen operations are timm's. No
    gradient is needed. RGB images only. Costs one full pass.
    """

    kind: Literal["randaugment"] = "randaugment"
    operations: int = pydantic.Field(default=2, ge=0, le=100)
    """Number of operations; 0 for none."""
    magnitude: float | None = pydantic.Field(default=None, ge=0, le=randaugment.HIGHEST)
    """Magnitude of all operations, 0 to 10; none draws one for each, uniformly."""
    cutout: Share = 0.5
    """Side of the grey square, as a share of the image's side; 0 for no square."""
    update_statistics: bool = True
    """Let the augmented views update the running statistics of their batch-norms."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        crops = (
            self.changed(crop.detach(), stream.child(number))
            for number, crop in enumerate(source.crops)
        )
        update = source.branch.update and self.update_statistics
        return replace(source.at(tuple(crops)), branch=replace(source.branch, update=update))

    @torch.no_grad()
    def changed(self, crop: Tensor, stream: Stream) -> Tensor:
        """Return augmented crops [B, 3, S, S] in [0, 1]; a new tensor unless there is nothing to
        do. Raises UserError."""
        count, channels, size = crop.shape[:3]
        if self.operations:
            if channels != 3:
                raise UserError(
                    f"randaugment needs RGB images, but these have {channels} channels; "
                    "remove this hard example"
                )
            columns = self.operations * randaugment.UNIFORMS_PER_OPERATION
            numbers = draws.uniforms(count, columns, stream)
            changed = crop.to(torch.float32, copy=True)
            randaugment.augment_(changed, numbers, self.magnitude)
            crop = changed.to(crop.dtype)
        if self.cutout:
            centres = (size * draws.uniforms(count, 2, stream.child("cutout"))).long()
            crop = cut_out(crop, centres, round(self.cutout * size), randaugment.FILL)
        return crop
