"""The appearance of an image for `hexa search`: thumbnail, statistics and preview."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

#: Side in pixels of thumbnails, which are compared.
THUMBNAIL = 32
#: Longer side in pixels of previews, which people look at.
PREVIEW = 96
#: Numbers that describe a picture as a whole; see `_statistics`.
STATISTICS = 12
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Appearance:
    """The appearance of one image."""

    thumbnail: Pixels
    """uint8 [32, 32], the luminance of the whole image."""
    statistics: NDArray[np.float32]
    """float32 [12]."""
    preview: bytes
    """A JPEG of at most 96 × 96 pixels."""


def appearance_of(pixels: Pixels) -> Appearance:
    """The appearance of an image as people see it, uint8 [H, W, 3]."""
    image = Image.fromarray(pixels)
    thumbnail = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    grey = np.asarray(thumbnail, dtype=np.float32) @ _LUMA
    image.thumbnail((PREVIEW, PREVIEW), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    preview = file.getvalue()
    statistics = _statistics(np.asarray(image, dtype=np.float32), len(preview))
    return Appearance(grey.round().astype(np.uint8), statistics, preview)


def _statistics(pixels: NDArray[np.float32], num_bytes: int) -> NDArray[np.float32]:
    """Twelve numbers of a picture [H, W, 3] with values from 0 to 255.

    Means of red, green and blue; deviation of the luminance; logarithm of the mean step between neighbouring pixels,
    and of its ratio to that at half the size; mean and deviation of the saturation; entropy and largest bin of the
    histogram of the luminance in 32 bins; share of pixels that nearly equal the next one; logarithm of the size as a JPEG.
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
