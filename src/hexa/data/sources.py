"""Sources of images by name: `digits`, `folder:PATH`, `parquet:PATH`, `hf:NAME`, `cifar10` and others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hexa.config import UserError, nearest
from hexa.data import torchvision_sets
from hexa.data.folder import FolderSource
from hexa.data.huggingface import HuggingFaceSource
from hexa.data.named import CIFAR_SPLITS, STL10_SPLITS, digits, torchvision_set
from hexa.data.parquet import ParquetSource
from hexa.data.source import ArraySource, Source
from hexa.data.voc import VOCSource
from hexa.data.webdataset import WebDatasetSource

__all__ = ["SOURCES", "ArraySource", "Source", "open_source"]

#: What a source is made by: (what stands after the colon, the split or None, the whole name for messages).
SOURCES: dict[str, Callable[[str, str | None, str], Source]] = {
    "digits": digits,
    "folder": FolderSource,
    "parquet": ParquetSource,
    "hf": HuggingFaceSource,
    "voc": VOCSource,
    "webdataset": WebDatasetSource,
    "cifar10": torchvision_set("CIFAR10", CIFAR_SPLITS),
    "cifar100": torchvision_set("CIFAR100", CIFAR_SPLITS),
    "stl10": torchvision_set("STL10", STL10_SPLITS),
    **{name: torchvision_sets.builder(kind) for name, kind in torchvision_sets.SETS.items()},
}


def open_source(spec: str, split: str | None = None, max_image_pixels: int | None = None, channels: int = 3) -> Source:
    """The source that `spec` names as NAME, NAME:ARGUMENT or either with #split; `split` is for a spec without one.

    max_image_pixels: images of more cannot be read; None for `hexa.data.decode.MAX_IMAGE_PIXELS`. channels: of the
    images, 3 for RGB; of others, which are kept as files, those of another number cannot be read.
    Raises UserError, one line with a remedy: an unknown name, a folder that is missing, empty or may not be read, a
    split that is not there, labels that are not class numbers.
    """
    if "\0" in spec:
        raise UserError(f"data {spec!r}: no name holds a zero byte")
    body, mark, named = spec.partition("#")
    if mark and not named:
        raise UserError(f"data '{spec}': a split is missing after '#', as in {body}#train")
    kind, _, argument = body.partition(":")
    if kind not in SOURCES:
        looks_like_path = os.path.sep in spec or Path(spec).exists()
        remedy = f"for a folder of images write folder:{spec}" if looks_like_path else nearest(kind, SOURCES)
        raise UserError(f"data '{spec}': no source of this name; {remedy}")
    # an evaluation's options may come from a command line as any type
    if max_image_pixels is not None and not (isinstance(max_image_pixels, int) and max_image_pixels > 0):
        raise UserError(f"max_image_pixels must be a whole number > 0, got {max_image_pixels}")
    try:
        source = SOURCES[kind](argument, named or split, body)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(f"data '{spec}': cannot be read: {where}{error.strerror or error}") from None
    if max_image_pixels is not None:
        source.max_image_pixels = max_image_pixels
    if channels != source.channels:
        if isinstance(source, ArraySource):
            message = f"has images of {source.channels} channels, and the network takes {channels}"
            raise UserError(f"data '{spec}': {message}; set network.channels, or give other images")
        source.channels = channels
    return source
