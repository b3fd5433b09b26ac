"""The appearance of an image for `hexa search`: digest, thumbnail, statistics and preview."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

#: Sides in pixels of thumbnails, which are compared, and longer sides of previews, which people look at.
THUMBNAIL = 32
PREVIEW = 96
#: Bytes of a digest.
DIGEST = 16
#: Numbers that describe a picture as a whole; see `_statistics`.
STATISTICS = 12
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Appearance:
    """The appearance of one image.

    digest: of the decoded pixels, so that equal files and equal pixels have equal ones. thumbnail: uint8 [32, 32], the
    grey levels of the whole image. statistics: float32 [12]. preview: a JPEG of at most 96 x 96 pixels.
    """

    digest: bytes
    thumbnail: Pixels
    statistics: NDArray[np.float32]
    preview: bytes


def appearance_of(pixels: NDArray[Any], shown: Pixels) -> Appearance:
    """The appearance of an image.

    pixels: as decoded, of any type and shape. shown: the same image as people see it, uint8 [H, W, 3].
    """
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=DIGEST)
    digest.update(f"{pixels.dtype} {pixels.shape}".encode())
    image = Image.fromarray(shown)
    thumbnail = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    image.thumbnail((PREVIEW, PREVIEW), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    preview = file.getvalue()
    grey = np.asarray(thumbnail, dtype=np.float32) @ _LUMA
    return Appearance(
        digest.digest(),
        grey.round().astype(np.uint8),
        _statistics(np.asarray(image, dtype=np.float32), len(preview)),
        preview,
    )


def _statistics(pixels: NDArray[np.float32], num_bytes: int) -> NDArray[np.float32]:
    """Twelve numbers of a picture [H, W, 3] with values from 0 to 255.

    Means of red, green and blue; deviation of the grey levels; logarithm of the mean step between neighbouring pixels,
    and of its ratio to that at half the size; mean and deviation of the saturation; entropy and largest bin of the
    histogram of 32 grey levels; share of pixels that nearly equal the next one; logarithm of the size as a JPEG.
    """
    grey = pixels @ _LUMA
    fine = _mean_step(grey)
    half = Image.fromarray(grey).reduce(2)
    coarse = _mean_step(np.asarray(half))
    saturation = pixels.max(2) - pixels.min(2)
    levels = np.minimum(grey / 8, 31).astype(np.int64)
    histogram = np.bincount(levels.ravel(), minlength=32) / grey.size
    filled = histogram[histogram > 0]
    flat = (np.abs(np.diff(grey, axis=1)) < 1).mean() if grey.shape[1] > 1 else 1.0
    numbers = [
        *pixels.mean((0, 1)),
        grey.std(),
        np.log(fine + 0.1),
        np.log((fine + 0.1) / (coarse + 0.1)),
        saturation.mean(),
        saturation.std(),
        -(filled * np.log(filled)).sum(),
        histogram.max(),
        flat,
        np.log(num_bytes),
    ]
    return np.array(numbers, dtype=np.float32)


def _mean_step(grey: NDArray[np.float32]) -> float:
    """The mean absolute difference of horizontal and of vertical neighbours, added; 0 along a side of one pixel."""
    steps = [np.abs(np.diff(grey, axis=axis)) for axis in (0, 1)]
    return float(sum(one.mean() for one in steps if one.size))
