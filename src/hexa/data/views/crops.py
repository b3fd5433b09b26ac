"""Decodes a photograph once and cuts all of its crops."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hexa.data.sources.decode import decode, unit
from hexa.data.sources.pil import jpeg_size
from hexa.data.sources.source import Source
from hexa.data.views.making import Views

#: A photograph is decoded at 1/2, 1/4 or 1/8 of its size if every crop still has this many pixels per view pixel. The
#: error of the small size then stays below the error of the resizing.
REDUCING_GAP = 2.0
#: Minimum file size in bytes for which reading the header first saves time.
_LARGE = 200_000


class Cut(NamedTuple):
    """The crop of one view in pixels of the whole image, with flips and transposition (0 or 1)."""

    top: int
    left: int
    height: int
    width: int
    flip: int
    upside_down: int
    transposed: int
    side: int
    """Side of the view in pixels."""

    @property
    def scale(self) -> float:
        """Image pixels per view pixel."""
        return min(self.height, self.width) / self.side


def cut_crops(source: Source, position: int, views: Views, numbers: Tensor) -> list[Tensor]:
    """Decode image `position` once and cut its V views, tensors [C, S_v, S_v], uint8 or float in [0, 1].

    numbers: [V, P], drawn by `views.draw` for this image. Except for large JPEGs (see REDUCING_GAP), the views equal
    torchvision's `resized_crop` with antialiasing, then flips and turns. Raises DecodeError.
    """
    data = source.encoded(position) if source.channels == 3 else None
    size = jpeg_size(data) if data is not None and len(data) >= _LARGE else None
    if data is None or size is None:
        image = source.decode(position)
        size = (image.shape[1], image.shape[2])
        cuts = _cuts(views, numbers, *size)
    else:
        cuts = _cuts(views, numbers, *size)
        least = min(cut.scale for cut in cuts)
        fitting = (shrink for shrink in (8, 4, 2) if least >= REDUCING_GAP * shrink)
        image = decode(data, source.max_image_pixels, shrink=next(fitting, 1))
    down = image.shape[1] / size[0]
    across = image.shape[2] / size[1]
    return [_cut(image, cut, down, across) for cut in cuts]


def _cut(image: Tensor, cut: Cut, down: float, across: float) -> Tensor:
    """Return a view [C, S, S] of an image that was decoded at the shares `down` and `across` of height and width."""
    rows = _span(cut.top, cut.height, down)
    columns = _span(cut.left, cut.width, across)
    part = image[None, :, rows, columns]
    if part.dtype != torch.uint8:
        part = unit(part)
    size = (cut.side, cut.side)
    crop = functional.interpolate(part, size, mode="bilinear", antialias=True)[0]
    if cut.flip:
        crop = crop.flip(2)
    if cut.upside_down:
        crop = crop.flip(1)
    return crop.transpose(1, 2) if cut.transposed else crop


def _span(start: int, length: int, share: float) -> slice:
    """Return a slice of at least one row or column."""
    begin = round(start * share)
    return slice(begin, max(round((start + length) * share), begin + 1))


def _cuts(views: Views, numbers: Tensor, height: int, width: int) -> list[Cut]:
    """Return the crops of all views of an image of size height × width."""
    cuts: list[Cut] = []
    for group, share in views.by_group(numbers):
        boxes, turns = views.boxes(share, height, width, group)
        columns = (*boxes, *(turn.long() for turn in turns))
        cuts += [Cut._make((*row, group.size)) for row in torch.stack(columns, 1).tolist()]
    return cuts
