"""Classification sets of photographs that torchvision downloads and lists; the files themselves are read as any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexa.config import UserError, reason
from hexa.data import decode as decoding
from hexa.data.named import cache_folder, not_there
from hexa.data.source import Source, choose_split, location

Listing = tuple[list[Path], list[int]]


def _listed(files: str, labels: str) -> Callable[[Any], Listing]:
    """Files and labels under these attributes of torchvision's object."""
    return lambda data: ([Path(file) for file in getattr(data, files)], list(getattr(data, labels)))


def _paired(samples: str) -> Callable[[Any], Listing]:
    """Pairs of file and label under this attribute."""
    return lambda data: (
        [Path(file) for file, _ in getattr(data, samples)],
        [label for _, label in getattr(data, samples)],
    )


def _caltech101(data: Any) -> Listing:
    folder = Path(data.root) / "101_ObjectCategories"
    pairs = zip(data.y, data.index, strict=True)
    return [folder / data.categories[y] / f"image_{index:04d}.jpg" for y, index in pairs], list(data.y)


@dataclass(frozen=True)
class Set:
    """One of torchvision's classes, what makes each split of it, and where it keeps files and labels."""

    name: str
    listing: Callable[[Any], Listing]
    splits: Mapping[str, Mapping[str, Any]]


def _by(argument: str = "split", **splits: Any) -> dict[str, dict[str, Any]]:
    return {split: {argument: value} for split, value in splits.items()}


_TRAIN_TEST = _by(train="train", test="test")
_WITH_VAL = _by(train="train", test="test", val="val")

#: The splits train and test are the published ones; pets and aircraft train on what their authors call trainval.
SETS: dict[str, Set] = {
    "aircraft": Set("FGVCAircraft", _listed("_image_files", "_labels"), _by(train="trainval", test="test")),
    "caltech101": Set("Caltech101", _caltech101, {"train": {}}),
    "country211": Set("Country211", _paired("samples"), _by(train="train", test="test", val="valid")),
    "dtd": Set("DTD", _listed("_image_files", "_labels"), _WITH_VAL),
    "eurosat": Set("EuroSAT", _paired("samples"), {"train": {}}),
    "flowers102": Set("Flowers102", _listed("_image_files", "_labels"), _WITH_VAL),
    "food101": Set("Food101", _listed("_image_files", "_labels"), _TRAIN_TEST),
    "gtsrb": Set("GTSRB", _paired("_samples"), _TRAIN_TEST),
    "pets": Set("OxfordIIITPet", _listed("_images", "_labels"), _by(train="trainval", test="test")),
}


class TorchvisionSource(Source):
    """A set of `SETS`, below ROOT or the user's cache folder, downloaded if it is not there."""

    def __init__(self, kind: Set, argument: str, split: str | None, spec: str) -> None:
        import torchvision.datasets

        self.name, self._splits = spec, list(kind.splits)
        self.split = choose_split(spec, split, kind.splits)
        root = location(argument) if argument else cache_folder() / "datasets"
        try:
            root.mkdir(parents=True, exist_ok=True)
            data = getattr(torchvision.datasets, kind.name)(root, download=True, **kind.splits[self.split])
            self._files, labels = kind.listing(data)
        except (OSError, RuntimeError) as error:  # no network, no right to write, a broken archive
            raise not_there(spec, kind.name, root, error) from None
        except Exception as error:  # whatever torchvision's readers say of a list that is damaged
            said = reason(error) or type(error).__name__
            raise UserError(f"data '{spec}': the lists of {kind.name} in {root} are damaged ({said})") from None
        self.paths = [str(file.relative_to(root)) if file.is_relative_to(root) else file.name for file in self._files]
        names = getattr(data, "classes", getattr(data, "categories", None))
        self._take_labels(np.array(labels), [str(name) for name in names or ()])
        self._identify(b"" if self.labels is None else self.labels.tobytes())

    def splits(self) -> list[str]:
        return self._splits

    def files(self) -> list[Path]:
        return self._files

    def encoded(self, index: int) -> bytes:
        return decoding.read(self._files[index])


def builder(kind: Set) -> Callable[[str, str | None, str], Source]:
    """What `SOURCES` makes a source of this set by."""
    return lambda argument, split, spec: TorchvisionSource(kind, argument, split, spec)
