"""Decodes images of any format, colour mode, depth and orientation; see `decode.decode`.

A new format needs its first bytes in kinds.yaml and its reader in `_READERS` of pil.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hexa.data.sources import bands, pil
from hexa.data.sources.decode import DecodeError, kind_of

Pixels = NDArray[Any]
#: Largest value of 16 bits.
_MOST = 65535


def decode(
    data: bytes, max_pixels: int, channels: int, max_value: int | None, shrink: int
) -> Tensor:
    """`hexa.data.sources.decode.decode` for all images except plain JPEGs; raises any error of a parser."""
    kind = kind_of(data)
    if kind == "NPY":
        values = bands.read_npy(data, max_pixels)
        return _tensor(_white(values, max_value), channels)
    if channels == 3:
        return _rgb(data, max_pixels, max_value, shrink)
    if channels > 1 and kind == "TIFF":
        values = bands.read_tiff(data, max_pixels, channels)
        return _tensor(_white(values, max_value), channels)
    image = pil.upright(data, max_pixels)
    if channels == 1 and image.mode not in ("L", "F") and not image.mode.startswith("I"):
        image = _to_rgb(image).convert("L")
    values = _white(np.asarray(image), max_value)
    return _tensor(_in_range(values), channels)


def _rgb(data: bytes, max_pixels: int, max_value: int | None, shrink: int) -> Tensor:
    """Return the image as uint8 RGB [3, H, W]."""
    deep = None if max_value is None else bands.deep(data, max_pixels)
    if deep is None:
        return _rgb_of(pil.upright(data, max_pixels, shrink))
    levels = _eight_bits(_white(deep, max_value))
    image = Image.fromarray(np.squeeze(levels))
    pil.turn(image, like=pil.opened(data, max_pixels))
    return _rgb_of(image)


def _rgb_of(image: Image.Image) -> Tensor:
    """Return a PIL image as uint8 [3, H, W]."""
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_eight_bits(np.asarray(image)))
    if image.mode == "L" and "transparency" not in image.info:
        grey = torch.from_numpy(np.array(image))
        return grey.expand(3, -1, -1).contiguous()
    pixels = np.array(_to_rgb(image))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return a PIL image with at most 8 bits per channel as RGB."""
    if image.mode == "RGB":
        return image
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: Pixels) -> Pixels:
    """Convert 16-bit, 32-bit or float values to uint8."""
    values = _in_range(values)
    most = 1.0 if values.dtype.kind == "f" else _MOST
    return (values / most * 255).round().astype(np.uint8)


def _in_range(values: Pixels) -> Pixels:
    """Convert values to uint8, uint16 or float32 in [0, 1]. Raises DecodeError for values out of range.

    The scale depends on the type alone, so that it is equal for all images of a data set. PIL reads some 16-bit files as
    int32.
    """
    is_float = values.dtype.kind == "f"
    if not is_float and values.dtype != np.int32:
        return values
    most = 1 if is_float else _MOST
    kind = "floats" if is_float else "32-bit integers"
    _check_range(values, most, kind, f"; give values from 0 to {most}, or SOURCE,max_value=N")
    return values.astype(np.float32 if is_float else np.uint16, copy=False)


def _white(values: Pixels, max_value: int | None) -> Pixels:
    """Scale values of more than 8 bits from [0, max_value] to uint16. Raises DecodeError for values out of range."""
    if max_value is None or values.dtype == np.uint8:
        return values
    _check_range(values, max_value, "values", f", beyond max_value={max_value}")
    return np.round(values.astype(np.float64) * (_MOST / max_value)).astype(np.uint16)


def _check_range(values: Pixels, most: int, kind: str, remedy: str) -> None:
    low = float(values.min())
    high = float(values.max())
    if not (low >= 0 and high <= most):  # also true of nan
        raise DecodeError(f"{kind} range from {low:g} to {high:g}{remedy}")


def _tensor(values: Pixels, channels: int) -> Tensor:
    """Return values [H, W] or [H, W, C] as a tensor [channels, H, W]. Raises DecodeError for other types or channels."""
    values = values[:, :, None] if values.ndim == 2 else values
    if values.shape[2] != 1 or channels != 3:  # grey is repeated
        hint = "; bands come last, [H, W, C]" if len(values) == channels else ""
        bands.check(values.shape[2], channels, hint)
    if values.dtype.kind == "f":
        values = _in_range(values)
    elif values.dtype.kind != "u" or values.dtype.itemsize > 2:
        raise DecodeError(
            f"pixels have type {values.dtype}; expected uint8, uint16, or floats between 0 and 1"
        )
    native = np.array(values.transpose(2, 0, 1), values.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(native).expand(channels, -1, -1).contiguous()


def largest(data: bytes, max_pixels: int) -> int:
    """`hexa.data.sources.decode.largest`; raises any error of a parser."""
    is_npy = kind_of(data) == "NPY"
    values = bands.read_npy(data, max_pixels) if is_npy else bands.deep(data, max_pixels)
    if values is not None and values.dtype.kind in "ui" and values.dtype.itemsize > 1:
        return int(values.max())
    return 0
