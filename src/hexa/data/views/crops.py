"""Cuts all crops of a photograph after decoding it once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hexa.data.sources.decode import decode
from hexa.data.sources.pil import jpeg_size
from hexa.data.sources.source import Source
from hexa.data.views.making import Views
from hexa.ops.photometric import unit

#: A photograph is decoded at a half, quarter or eighth of its size if every crop still has this many pixels per pixel
#: of its view, so that the difference to decoding it at full size stays below that of the resizing.
REDUCING_GAP = 2.0
#: Reading the header pays off from this file size on, in bytes.
_LARGE = 200_000


def cut_crops(source: Source, position: int, views: Views, numbers: Tensor) -> list[Tensor]:
    """Decode image `position` once and cut its V views, tensors [C, S_v, S_v], uint8 or float in [0, 1].

    numbers: [V, P], what `views.draw` drew for this image. Equals torchvision's `resized_crop` with antialiasing plus
    flips and turns, except for large JPEGs (see REDUCING_GAP). Raises DecodeError.
    """
    data = source.encoded(position) if source.channels == 3 else None
    full = jpeg_size(data) if data is not None and len(data) >= _LARGE else None
    if data is not None and full is not None:
        cuts = _cuts(views, numbers, *full)
        least = min(min(high, wide) / size for _, _, high, wide, *_, size in cuts)
        shrink = next((shrink for shrink in (8, 4, 2) if least >= REDUCING_GAP * shrink), 1)
        image = decode(data, source.max_image_pixels, shrink=shrink)
    else:
        image = source.decode(position)
        full = (int(image.shape[1]), int(image.shape[2]))
        cuts = _cuts(views, numbers, *full)
    crops = []
    for top, left, high, wide, flip, upside_down, transposed, size in cuts:
        rows = _span(top, high, image.shape[1] / full[0])
        columns = _span(left, wide, image.shape[2] / full[1])
        part = image[None, :, rows, columns]
        part = part if part.dtype == torch.uint8 else unit(part)
        crop = functional.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
        crop = crop.flip(2) if flip else crop
        crop = crop.flip(1) if upside_down else crop
        crops.append(crop.transpose(1, 2) if transposed else crop)
    return crops


def _span(start: int, length: int, scale: float) -> slice:
    """Rows or columns of an image that was decoded at this share of its size: one or more."""
    begin = round(start * scale)
    return slice(begin, max(round((start + length) * scale), begin + 1))


def _cuts(views: Views, numbers: Tensor, height: int, width: int) -> list[tuple[int, ...]]:
    """The crop of each view in pixels of the whole image, its turns, and the side of the view in pixels.

    (top, left, height, width, flip, upside_down, transposed, size), the turns 0 or 1.
    """
    cuts: list[tuple[int, ...]] = []
    for group, share in views.by_group(numbers):
        boxes, turns = views.boxes(share, height, width, group)
        columns = torch.stack((*boxes, *(turn.long() for turn in turns)), 1)
        cuts += [(*cut, group.size) for cut in columns.tolist()]
    return cuts
