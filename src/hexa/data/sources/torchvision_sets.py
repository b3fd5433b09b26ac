"""Data sets that torchvision downloads: small ones as arrays, photographs as the files that it lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.config import UserError, reason
from hexa.data.sources import decode as decoding
from hexa.data.sources.source import ArraySource, Labels, Source, choose_split, location, reported
from hexa.runtime.files import cache_folder

FilesAndLabels = tuple[list[Path], list[int]]
Build = Callable[[str, str | None, str], Source]


def _split_argument(argument: str = "split", **splits: Any) -> dict[str, dict[str, Any]]:
    """{split: arguments of torchvision's constructor}, all of one name."""
    return {split: {argument: value} for split, value in splits.items()}


_TRAIN_TEST = _split_argument(train="train", test="test")
_WITH_VAL = _split_argument(train="train", test="test", val="val")
_CIFAR = _split_argument("train", train=True, test=False)
_STL10 = {name: {"split": name} for name in ("train", "test", "unlabeled", "train+unlabeled")}
#: Sets of small images: torchvision's class, and the arguments of each split.
ARRAYS: dict[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    "cifar10": ("CIFAR10", _CIFAR),
    "cifar100": ("CIFAR100", _CIFAR),
    "stl10": ("STL10", _STL10),
}


@dataclass(frozen=True)
class PhotographSet:
    """One of torchvision's classes, how to list its files and labels, and the arguments of each split."""

    name: str
    listing: Callable[[Any], FilesAndLabels]
    splits: Mapping[str, Mapping[str, Any]]


def _two_lists(files: str, labels: str) -> Callable[[Any], FilesAndLabels]:
    """Files and labels are two attributes of torchvision's object."""
    return lambda data: ([Path(file) for file in getattr(data, files)], list(getattr(data, labels)))


def _pairs(samples: str) -> Callable[[Any], FilesAndLabels]:
    """(file, label) pairs are one attribute of torchvision's object."""
    return lambda data: ([Path(file) for file, _ in getattr(data, samples)], [y for _, y in getattr(data, samples)])


def _caltech101(data: Any) -> FilesAndLabels:
    folder = Path(data.root) / "101_ObjectCategories"
    pairs = zip(data.y, data.index, strict=True)
    return [folder / data.categories[y] / f"image_{index:04d}.jpg" for y, index in pairs], list(data.y)


_FILES_LABELS = _two_lists("_image_files", "_labels")
_TRAINVAL = _split_argument(train="trainval", test="test")
#: The splits train and test are the published ones; pets and aircraft train on what their authors call trainval.
SETS: dict[str, PhotographSet] = {
    "aircraft": PhotographSet("FGVCAircraft", _FILES_LABELS, _TRAINVAL),
    "caltech101": PhotographSet("Caltech101", _caltech101, {"train": {}}),
    "country211": PhotographSet(
        "Country211", _pairs("samples"), _split_argument(train="train", test="test", val="valid")
    ),
    "dtd": PhotographSet("DTD", _FILES_LABELS, _WITH_VAL),
    "eurosat": PhotographSet("EuroSAT", _pairs("samples"), {"train": {}}),
    "flowers102": PhotographSet("Flowers102", _FILES_LABELS, _WITH_VAL),
    "food101": PhotographSet("Food101", _FILES_LABELS, _TRAIN_TEST),
    "gtsrb": PhotographSet("GTSRB", _pairs("_samples"), _TRAIN_TEST),
    "pets": PhotographSet("OxfordIIITPet", _two_lists("_images", "_labels"), _TRAINVAL),
}


class PhotographSource(Source):
    """A set of `SETS` in a given folder or the user's cache folder, downloaded if absent."""

    def __init__(self, kind: PhotographSet, argument: str, split: str | None, spec: str) -> None:
        arguments = self._open_split(spec, split, kind.splits)
        root = _root(argument)
        with reported(f"data '{spec}': the lists of {kind.name} in {root} are damaged"):
            data = _download(kind.name, root, arguments, spec)
            self._files, labels = kind.listing(data)
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
    return arrays | {name: functools.partial(PhotographSource, kind) for name, kind in SETS.items()}


def _array_source(
    dataset: str, splits: Mapping[str, Mapping[str, Any]], argument: str, split: str | None, spec: str
) -> Source:
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
