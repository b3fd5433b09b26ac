"""Hard views (after Ferreira et al., ICLR 2025, "Beyond Random Augmentations: Pretraining with Hard Views")."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pydantic
import torch
from torch import Tensor

from hexa.core import Example, HardExample, MethodConfig
from hexa.ops import draws
from hexa.ops.geometry import UNIFORMS_PER_BOX, Boxes, crop_resize, random_boxes
from hexa.runtime.random import Stream


class HardViews(HardExample):
    """x_hard = x_n with the largest Σ_v L(x_n, y) of N candidates of an image: its views, and random crops of them.

    The views of an image are chosen together, since their losses may depend on each other (SimCLR's pairs), so the
    chosen ones are the hardest pair. Candidates are scored without gradient, smaller than they are trained on, through
    the batch-norms of their source, whose statistics they leave alone. The publication draws its candidates anew from
    the image and trains on nothing else; here they come from the view that a hard example is given, and their term is
    one beside others, or has its own part of the batch (`split`).
    Costs N forward passes at `scored_at`² of the work each, and one full pass.
    Four candidates, scored at half resolution, crops of half of a view's area or more.
    """

    kind: Literal["hard_views"] = "hard_views"
    candidates: int = pydantic.Field(default=4, ge=2)
    """N, including the unchanged view."""
    scale: float = pydantic.Field(default=0.5, gt=0, le=1)
    """The least share of a view's area that a candidate shows."""
    scored_at: float = pydantic.Field(default=0.5, gt=0, le=1)
    """The side at which candidates are scored, as a share of the view's."""

    def refusal(self, method: MethodConfig) -> str:
        return method.uncroppable

    @torch.no_grad()
    def __call__(self, source: Example, stream: Stream) -> Example:
        clean = tuple(crop.detach() for crop in source.crops)
        boxes = [
            self._boxes(crop, stream.child("crop", number)) for number, crop in enumerate(clean)
        ]  # V × [N, B] × 4
        scores = torch.stack(
            [self._score(source, clean, boxes, n) for n in range(self.candidates)]
        )  # [N, B]
        hardest = scores.argmax(0, keepdim=True)
        chosen = [Boxes(*(side.gather(0, hardest)[0] for side in of_crop)) for of_crop in boxes]
        views = tuple(_cut(crop, box) for crop, box in zip(clean, chosen, strict=True))
        facts = {
            "moved": (hardest != 0).float().mean(),
            "rise": (scores.amax(0) - scores[0]).mean() / len(clean),
        }
        return replace(source.at(views), facts=facts)

    def _boxes(self, crop: Tensor, stream: Stream) -> Boxes:
        """Of every candidate of a view, [N, B] each; the first is the whole view."""
        size = crop.shape[-1]
        made = [Boxes(*(torch.full((len(crop),), side) for side in (0, 0, size, size)))]
        for number in range(1, self.candidates):
            uniforms = draws.uniforms(len(crop), UNIFORMS_PER_BOX, stream.child(number))
            made.append(random_boxes(uniforms, size, size, (self.scale, 1.0)))
        return Boxes(
            *(
                torch.stack(sides).to(crop.device, non_blocking=True)
                for sides in zip(*made, strict=True)
            )
        )

    def _score(
        self, source: Example, clean: tuple[Tensor, ...], boxes: list[Boxes], number: int
    ) -> Tensor:
        """How hard one candidate of each image is, [B]: the sum over its views."""
        tried = [Boxes(*(side[number] for side in of_crop)) for of_crop in boxes]
        small = tuple(
            _cut(crop, box, self.scored_at) for crop, box in zip(clean, tried, strict=True)
        )
        return torch.nan_to_num(source.score_at(small).sum(0), nan=float("-inf"))


def _cut(images: Tensor, boxes: Boxes, share: float = 1.0) -> Tensor:
    """The boxes of images [B, C, S, S] as crops of side `share` · S, valid pixels in the images' layout and type."""
    cut = crop_resize(images, boxes, max(1, round(share * images.shape[-1]))).clamp_(0, 1)
    layout = (
        torch.channels_last
        if images.is_contiguous(memory_format=torch.channels_last)
        else torch.contiguous_format
    )
    return cut.to(images.dtype, memory_format=layout)
