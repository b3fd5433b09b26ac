"""Opens sources of images by name: `digits`, `folder:PATH`, `parquet:PATH`, `hf:NAME`, `cifar10` and others."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from hexa.config import UserError, nearest
from hexa.data.sources.folder import FolderSource
from hexa.data.sources.source import ArraySource, Source
from hexa.data.sources.splits import choose_split
from hexa.runtime import parsing, paths


def digits(argument: str, split: str | None, spec: str) -> Source:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels; a fixed stratified quarter is the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if argument:
        raise UserError(
            f"data '{spec}': digits come with scikit-learn and take no path; write digits"
        )
    splits = ("train", "test")
    split = choose_split(spec, split, splits)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(np.arange(len(labels)), test_size=450, stratify=labels, random_state=0)
    chosen = parts[splits.index(split)]
    levels = (images[chosen] * (255 / 16)).round().astype(np.uint8)
    grey = torch.from_numpy(levels).view(-1, 1, 8, 8)
    colour = grey.expand(-1, 3, -1, -1).contiguous()
    names = [str(digit) for digit in range(10)]
    numbers = labels[chosen].astype(np.int64)
    return ArraySource(colour, numbers, names, name=spec, split=split, splits=splits)


_SETS = parsing.read_resource("hexa.data.sources", "torchvision_sets.yaml")
#: Source names and what builds them from (what follows the colon, the split or None, the whole name for messages).
#: MODULE:CLASS is imported when the first source of its kind is opened: a folder of images needs no pyarrow.
SOURCES: dict[str, Callable[[str, str | None, str], Source] | str] = {
    "digits": digits,
    "folder": FolderSource,
    "parquet": "hexa.data.sources.parquet:ParquetSource",
    "hf": "hexa.data.sources.huggingface:HuggingFaceSource",
    "voc": "hexa.data.sources.voc:VOCSource",
    "webdataset": "hexa.data.sources.webdataset:WebDatasetSource",
    **dict.fromkeys(chain(*_SETS.values()), "hexa.data.sources.torchvision_sets:opened"),
}

#: Source names that open nothing without an argument.
_NEED_AN_ARGUMENT = {"folder", "parquet", "hf", "voc", "webdataset"}


def open_source(
    spec: str, split: str | None = None, max_image_pixels: int | None = None, channels: int = 3
) -> Source:
    """Open a source of images.

    spec: NAME, NAME:ARGUMENT or the path of a folder, optionally followed by ,max_value=N (see `Source.max_value`),
    ,links=follow (see `paths.Inside`) and #SPLIT, which overrides `split`. max_image_pixels: images with more pixels
    count as unreadable (default: `decode.MAX_IMAGE_PIXELS`). channels: number of channels, 3 for RGB; images with
    another number count as unreadable. Raises UserError for an unknown name, a missing, empty or unreadable folder, an
    unknown split, and labels that are not class numbers.
    """
    if "\0" in spec:
        raise UserError(f"data {spec!r}: a name cannot contain a zero byte")
    name, body, max_value, named, _ = paths.parts(spec)
    if named == "":
        remedy = f"write, for example, {name}#train"
        raise UserError(f"data '{spec}': a split is missing after '#'; {remedy}")
    kind, _, argument = body.partition(":")
    is_path = os.path.sep in body and ":" not in body
    if kind not in SOURCES and (is_path or os.path.exists(paths.location(body))):
        kind = "folder"
        argument = body
        name = f"folder:{name}"
    if body in _NEED_AN_ARGUMENT and os.path.isdir(body):
        raise UserError(f"data '{spec}': for the folder of this name write ./{body}")
    if kind not in SOURCES:
        near = nearest(kind, {*SOURCES, *(folder.name for folder in Path().glob("*/"))})
        raise UserError(f"data '{spec}': no such folder, and not a known source; {near}")
    # the command line may pass any type for options of an evaluation
    most = max_image_pixels
    if most is not None and not (isinstance(most, int) and most > 0):
        raise UserError(f"max_image_pixels must be an integer > 0, got {most}")
    found = SOURCES[kind]
    build = pkgutil.resolve_name(found) if isinstance(found, str) else found
    try:
        source: Source = build(argument, named or split, name)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(
            f"data '{spec}': cannot be read: {where}{error.strerror or error}"
        ) from None
    if isinstance(source, ArraySource) and channels != source.channels:
        remedy = "set network.channels, or give other images"
        raise UserError(
            f"data '{spec}': its images have {source.channels} channels, but the network takes "
            f"{channels}; {remedy}"
        )
    source.max_value = max_value
    source.max_image_pixels = most or source.max_image_pixels
    source.channels = channels
    return source
