"""Data sets that torchvision downloads: small ones as arrays, photographs as the files that it lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.config import UserError, reason
from hexa.data.sources import decode as decoding
from hexa.data.sources.source import ArraySource, Labels, Source, choose_split, location, reported
from hexa.runtime.files import cache_folder

Build = Callable[[str, str | None, str], Source]
#: {split: arguments of torchvision's constructor}
Splits = Mapping[str, Mapping[str, Any]]


def _named(**splits: str) -> Splits:
    return {split: {"split": name} for split, name in splits.items()}


_TRAIN_TEST = _named(train="train", test="test")
_WITH_VAL = _named(train="train", test="test", val="val")
_TRAINVAL = _named(train="trainval", test="test")
_CIFAR = {"train": {"train": True}, "test": {"train": False}}
_STL10 = {name: {"split": name} for name in ("train", "test", "unlabeled", "train+unlabeled")}
#: Sets of small images: torchvision's class, and the arguments of each split.
ARRAYS: dict[str, tuple[str, Splits]] = {
    "cifar10": ("CIFAR10", _CIFAR),
    "cifar100": ("CIFAR100", _CIFAR),
    "stl10": ("STL10", _STL10),
}


_LISTS, _SAMPLES = ("_image_files", "_labels"), ("samples",)
#: Sets of photographs: torchvision's class, its attributes with files and labels, or one with (file, label) pairs, and
#: the arguments of each split. The splits train and test are the published ones; pets and aircraft train on what their
#: authors call trainval.
SETS: dict[str, tuple[str, tuple[str, ...], Splits]] = {
    "aircraft": ("FGVCAircraft", _LISTS, _TRAINVAL),
    "caltech101": ("Caltech101", (), {"train": {}}),
    "country211": ("Country211", _SAMPLES, _named(train="train", test="test", val="valid")),
    "dtd": ("DTD", _LISTS, _WITH_VAL),
    "eurosat": ("EuroSAT", _SAMPLES, {"train": {}}),
    "flowers102": ("Flowers102", _LISTS, _WITH_VAL),
    "food101": ("Food101", _LISTS, _TRAIN_TEST),
    "gtsrb": ("GTSRB", ("_samples",), _TRAIN_TEST),
    "pets": ("OxfordIIITPet", ("_images", "_labels"), _TRAINVAL),
}


def _listed(data: Any, listing: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The files and labels of torchvision's object. Caltech-101 has no listing: its files are numbered by class."""
    if not listing:
        folder, pairs = Path(data.root) / "101_ObjectCategories", zip(data.y, data.index, strict=True)
        return [folder / data.categories[y] / f"image_{index:04d}.jpg" for y, index in pairs], list(data.y)
    lists = [getattr(data, name) for name in listing]
    files, labels = lists if len(lists) == 2 else zip(*lists[0], strict=True)
    return [Path(file) for file in files], list(labels)


class PhotographSource(Source):
    """A set of `SETS` in a given folder or the user's cache folder, downloaded if absent."""

    def __init__(
        self, dataset: str, listing: tuple[str, ...], splits: Splits, argument: str, split: str | None, spec: str
    ) -> None:
        arguments = self._open_split(spec, split, splits)
        root = _root(argument)
        with reported(f"data '{spec}': the lists of {dataset} in {root} are damaged"):
            data = _download(dataset, root, arguments, spec)
            self._files, labels = _listed(data, listing)
        self.paths = [str(file.relative_to(root)) if file.is_relative_to(root) else file.name for file in self._files]
        names = getattr(data, "classes", getattr(data, "categories", None))
        self._take_labels(np.array(labels), [str(name) for name in names or ()])
        self._identify(b"" if self.labels is None else self.labels.tobytes())

    def files(self) -> list[Path]:
        return self._files

    def encoded(self, index: int) -> bytes:
        return decoding.read(self._files[index])


def builders() -> dict[str, Build]:
    """What `SOURCES` makes the sources of torchvision's data sets with."""
    arrays: dict[str, Build] = {name: functools.partial(_array_source, *made) for name, made in ARRAYS.items()}
    return arrays | {name: functools.partial(PhotographSource, *made) for name, made in SETS.items()}


def _array_source(dataset: str, splits: Splits, argument: str, split: str | None, spec: str) -> Source:
    chosen = choose_split(spec, split, splits)
    data = _download(dataset, _root(argument), splits[chosen], spec)
    images = torch.from_numpy(np.ascontiguousarray(data.data))
    if images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2).contiguous()
    # STL-10 marks unlabelled images with −1
    numbers: Labels = np.asarray(data.labels if hasattr(data, "labels") else data.targets, dtype=np.int64)
    return ArraySource(images, numbers, list(data.classes), name=spec, split=chosen, splits=tuple(splits))


def _root(argument: str) -> Path:
    return location(argument) if argument else cache_folder() / "datasets"


def _download(dataset: str, root: Path, arguments: Mapping[str, Any], spec: str) -> Any:
    """torchvision's object of a data set. Raises UserError if it is neither in the folder nor can be downloaded."""
    import torchvision.datasets

    try:
        root.mkdir(parents=True, exist_ok=True)
        return getattr(torchvision.datasets, dataset)(root, download=True, **arguments)
    except (OSError, RuntimeError) as error:  # no network, no permission, a broken archive
        raise UserError(
            f"data '{spec}': {dataset} is not in {root} and cannot be downloaded ({reason(error, 200)}); "
            f"put it there, or name the folder that has it as {spec.partition(':')[0]}:ROOT"
        ) from None
