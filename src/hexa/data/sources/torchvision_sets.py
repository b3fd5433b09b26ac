"""Data sets of torchvision: small images as arrays, photographs as files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.config import UserError, reason
from hexa.data.sources.decode import read
from hexa.data.sources.source import ArraySource, Labels, Source, reported
from hexa.data.sources.splits import choose_split
from hexa.runtime.files import cache_folder
from hexa.runtime.parsing import read_resource
from hexa.runtime.paths import Inside, location

#: {split: arguments for the class of torchvision}.
Splits = Mapping[str, Mapping[str, Any]]


_SETS = read_resource("hexa.data.sources", "torchvision_sets.yaml")
#: Sets of small images: class of torchvision, and arguments of each split.
ARRAYS: dict[str, tuple[str, Splits]] = _SETS["arrays"]
#: Sets of photographs: class of torchvision, its attributes with files and labels, and arguments of each split.
SETS: dict[str, tuple[str, list[str], Splits]] = _SETS["photographs"]


def _listed(data: Any, listing: list[str]) -> tuple[list[Path], list[int]]:
    """Return files and labels of a data set. Caltech-101 has no list of files; its files are numbered by class."""
    if not listing:
        folder = Path(data.root) / "101_ObjectCategories"
        pairs = zip(data.y, data.index, strict=True)
        return [folder / data.categories[y] / f"image_{index:04d}.jpg" for y, index in pairs], list(
            data.y
        )
    lists = [getattr(data, name) for name in listing]
    files, labels = lists if len(lists) == 2 else zip(*lists[0], strict=True)
    return [Path(file) for file in files], list(labels)


class PhotographSource(Source):
    """A set of `SETS` in a given folder or the cache folder of the user; it is downloaded if it is missing."""

    def __init__(
        self,
        dataset: str,
        listing: list[str],
        splits: Splits,
        argument: str,
        split: str | None,
        spec: str,
    ) -> None:
        arguments = self._open_split(spec, split, splits)
        root = _root(argument)
        with reported(f"data '{spec}': the lists of {dataset} in {root} are damaged"):
            data = _download(dataset, root, arguments, spec)
            files, labels = _listed(data, listing)
        Inside(spec, root).check(map(str, files), f"a list of {dataset}")
        self._read_from = files
        self.paths = [
            str(file.relative_to(root)) if file.is_relative_to(root) else file.name
            for file in files
        ]
        names = getattr(data, "classes", getattr(data, "categories", None))
        self._take_labels(np.array(labels), [str(name) for name in names or ()])
        self._identify(b"" if self.labels is None else self.labels.tobytes())

    def encoded(self, index: int) -> bytes:
        return read(self._read_from[index])


def opened(argument: str, split: str | None, spec: str) -> Source:
    """Return the data set of torchvision that the source names, in its folder."""
    name = re.split(r"\W", spec)[0]
    if name in ARRAYS:
        return _array_source(*ARRAYS[name], argument, split, spec)
    return PhotographSource(*SETS[name], argument, split, spec)


def _array_source(
    dataset: str, splits: Splits, argument: str, split: str | None, spec: str
) -> Source:
    chosen = choose_split(spec, split, splits)
    data = _download(dataset, _root(argument), splits[chosen], spec)
    images = torch.from_numpy(np.ascontiguousarray(data.data))
    if images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2).contiguous()
        # STL-10 marks unlabelled images with −1
    numbers: Labels = np.asarray(
        data.labels if hasattr(data, "labels") else data.targets, dtype=np.int64
    )
    return ArraySource(
        images, numbers, list(data.classes), name=spec, split=chosen, splits=tuple(splits)
    )


def _root(argument: str) -> Path:
    return location(argument) if argument else cache_folder() / "datasets"


def _download(dataset: str, root: Path, arguments: Mapping[str, Any], spec: str) -> Any:
    """Return the data set of torchvision. Raises UserError if it is missing and cannot be downloaded."""
    import torchvision.datasets

    try:
        root.mkdir(parents=True, exist_ok=True)
        return getattr(torchvision.datasets, dataset)(root, download=True, **arguments)
    except (OSError, RuntimeError) as error:  # no network, no permission, a broken archive
        raise UserError(
            f"data '{spec}': {dataset} is not in {root} and cannot be downloaded "
            f"({reason(error, 200)}); put it there, or give its folder as "
            f"{spec.partition(':')[0]}:ROOT"
        ) from None
