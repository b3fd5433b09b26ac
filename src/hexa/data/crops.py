"""Cutting all crops of one photograph that is decoded once."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from hexa.data import decode as decoding
from hexa.data.source import Source
from hexa.data.views import Views

#: A photograph is decoded at a half, quarter or eighth of its size where every crop still has this many pixels for each
#: pixel of the view, so that the difference to decoding it whole stays below what resizing leaves.
REDUCING_GAP = 2.0
#: Bytes from which on a look at the header pays.
_LARGE = 200_000


def cut_crops(source: Source, position: int, views: Views, numbers: Tensor) -> list[Tensor]:
    """Decode image `position` once and cut its views: V tensors uint8 [3, S, S]. Raises DecodeError.

    numbers: [V, P], what `views.draw` drew for this image. Equals torchvision's `resized_crop` with antialiasing and
    `hflip` of the decoded image, but for large JPEGs, see REDUCING_GAP.
    """
    data, size = source.encoded(position), views.config.size
    full = decoding.jpeg_size(data) if data is not None and len(data) >= _LARGE else None
    if data is not None and full is not None:
        boxes, flips = views.boxes(numbers, *full)
        shrink = _shrink(min(int(boxes.height.min()), int(boxes.width.min())), size)
        image = decoding.decode(data) if shrink == 1 else decoding.decode_with_pil(data, shrink)
    else:
        image = source.decode(position)
        full = (int(image.shape[1]), int(image.shape[2]))
        boxes, flips = views.boxes(numbers, *full)
    scale_h, scale_w = image.shape[1] / full[0], image.shape[2] / full[1]
    crops = []
    for top, left, high, wide, flip in zip(*(values.tolist() for values in (*boxes, flips)), strict=True):
        rows = slice(round(top * scale_h), max(round((top + high) * scale_h), round(top * scale_h) + 1))
        columns = slice(round(left * scale_w), max(round((left + wide) * scale_w), round(left * scale_w) + 1))
        crop = functional.interpolate(image[None, :, rows, columns], (size, size), mode="bilinear", antialias=True)[0]
        crops.append(crop.flip(2) if flip else crop)
    return crops


def _shrink(smallest_side: int, size: int) -> int:
    """The largest of 8, 4, 2, 1 at which the smallest crop keeps REDUCING_GAP pixels for each pixel of the view."""
    return next((shrink for shrink in (8, 4, 2) if smallest_side >= REDUCING_GAP * size * shrink), 1)
