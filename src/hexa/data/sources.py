"""Sources of images by name: `digits`, `folder:PATH`, `parquet:PATH`, `cifar10`, `cifar100`, `stl10`, each with its
splits.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import UserError, nearest
from hexa.data import decode as decoding

Labels = NDArray[np.int64]
# What splits are called elsewhere, by the name they have here.
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


class Source(ABC):
    """Images of one split, by position, undecoded.

    name: as the user gave it, without the split. labels: int64 [N], or None. class_names: by label, or None. paths:
    one per image, in the words of the source, for messages and tables. fingerprint: changes when the images do, the
    same wherever they lie. uniform_size: (H, W) if it is known that all images have it.
    """

    name: str
    split: str
    labels: Labels | None = None
    class_names: list[str] | None = None
    paths: list[str]
    fingerprint: str
    uniform_size: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @abstractmethod
    def splits(self) -> list[str]:
        """The splits there are."""

    @abstractmethod
    def decode(self, index: int) -> Tensor:
        """Image `index` as uint8 [3, H, W]. Raises `hexa.data.decode.DecodeError` if it cannot be read."""

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image's file, or None where images are not kept as files."""
        return None

    def __repr__(self) -> str:
        return f"{self.name}#{self.split} ({len(self):,} images)"


def open_source(spec: str, split: str | None = None) -> Source:
    """The source that `spec` names: NAME, NAME:ARGUMENT, and optionally #split; `split` is taken where `spec` names
    none.

    Raises UserError, one line with a remedy: an unknown name, a folder that is missing or empty, a split that is not
    there.
    """
    body, mark, named = spec.partition("#")
    if mark and not named:
        raise UserError(f"data '{spec}': a split is missing after '#', as in {body}#train")
    kind, _, argument = body.partition(":")
    if kind not in SOURCES:
        looks_like_path = os.path.sep in spec or Path(spec).exists()
        remedy = f"for a folder of images write folder:{spec}" if looks_like_path else nearest(kind, SOURCES)
        raise UserError(f"data '{spec}': no source of this name; {remedy}")
    return SOURCES[kind](argument, named or split, body)


def _choose_split(spec: str, split: str | None, there: Iterable[str]) -> str:
    known = list(there)
    if split is None:
        return known[0]
    if split not in known:
        raise UserError(
            f"data '{spec}': no split '{split}'; there {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
        )
    return split


def _digest(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode(errors="surrogateescape") if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


class ArraySource(Source):
    """Images that are in memory already, uint8 [N, 3, H, W]."""

    def __init__(
        self,
        images: Tensor,
        labels: Labels | None = None,
        class_names: list[str] | None = None,
        *,
        name: str = "arrays",
        split: str = "train",
        splits: Sequence[str] = ("train",),
    ) -> None:
        self.images = images
        self.name, self.split, self._splits = name, split, list(splits)
        self.labels, self.class_names = labels, class_names
        self.paths = [f"{name}/{split}/{number:06d}" for number in range(len(images))]
        self.uniform_size = (int(images.shape[2]), int(images.shape[3]))
        self.fingerprint = _digest(images.numpy().tobytes(), b"" if labels is None else labels.tobytes())

    def splits(self) -> list[str]:
        return self._splits

    def decode(self, index: int) -> Tensor:
        return self.images[index]


def _digits(argument: str, split: str | None, spec: str) -> Source:
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels; a fixed stratified quarter is the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if argument:
        raise UserError(f"data '{spec}': digits are embedded and take no path; write digits")
    split = _choose_split(spec, split, ("train", "test"))
    images, labels = load_digits(return_X_y=True)
    chosen = train_test_split(np.arange(len(labels)), test_size=450, stratify=labels, random_state=0)[split == "test"]
    grey = torch.from_numpy((images[chosen] * (255 / 16)).round().astype(np.uint8)).view(-1, 1, 8, 8)
    names = [str(digit) for digit in range(10)]
    kept = labels[chosen].astype(np.int64)
    return ArraySource(
        grey.expand(-1, 3, -1, -1).contiguous(), kept, names, name=spec, split=split, splits=("train", "test")
    )


class FolderSource(Source):
    """Image files below a folder: the first level of sub-folders are the classes, if every image lies in one of them.

    Folders named train and test (or val) are splits instead. Without them everything is the split `train`.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        root = Path(argument).expanduser()
        if not argument or not root.is_dir():
            what = "is a file, not a folder" if root.is_file() else "no such folder"
            raise UserError(f"data '{spec}': {what}{f': {root}' if argument else ''}; write folder:PATH")
        found = {name: self._split_folder(root, names) for name, names in SPLIT_FOLDERS.items()}
        folders = {name: folder for name, folder in found.items() if folder is not None} or {"train": root}
        self.name = spec
        self._splits = list(folders)
        self.split = _choose_split(spec, split, folders)
        self.root = folders[self.split]
        files = sorted(self._walk(self.root))
        if not files:
            raise UserError(
                f"data '{spec}': no images below {self.root}; known are {', '.join(sorted(decoding.EXTENSIONS))}"
            )
        self.paths = [path for path, _ in files]
        self.fingerprint = _digest(*(f"{path} {size}" for path, size in files))
        tops = [path.split("/", 1)[0] if "/" in path else None for path in self.paths]
        classes = sorted({top for top in tops if top is not None})
        if None not in tops and len(classes) > 1:
            self.class_names = classes
            number = {name: label for label, name in enumerate(classes)}
            self.labels = np.array([number[top] for top in tops if top is not None], dtype=np.int64)

    @staticmethod
    def _split_folder(root: Path, names: Sequence[str]) -> Path | None:
        return next((root / name for name in names if (root / name).is_dir()), None)

    @staticmethod
    def _walk(root: Path) -> Iterable[tuple[str, int]]:
        pending = [(str(root), "")]
        while pending:
            folder, prefix = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        pending.append((entry.path, f"{prefix}{entry.name}/"))
                    elif os.path.splitext(entry.name)[1].lower() in decoding.EXTENSIONS:
                        yield f"{prefix}{entry.name}", entry.stat().st_size

    def splits(self) -> list[str]:
        return self._splits

    def encoded(self, index: int) -> bytes:
        try:
            return (self.root / self.paths[index]).read_bytes()
        except OSError as error:
            raise decoding.DecodeError(error.strerror or str(error)) from None

    def decode(self, index: int) -> Tensor:
        return decoding.decode(self.encoded(index))


class ParquetSource(Source):
    """Parquet files in the layout of Hugging Face: a struct column with the bytes of an image file, and perhaps a
    label column.

    A folder holds train.parquet and test.parquet, or train-00000-of-00002.parquet and so on; a file is a split by
    itself. The encoded images are kept in memory.
    """

    def __init__(self, argument: str, split: str | None, spec: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        root = Path(argument).expanduser()
        if not argument or not root.exists():
            raise UserError(
                f"data '{spec}': no such file or folder{f': {root}' if argument else ''}; write parquet:PATH"
            )
        groups = self._files(root, spec)
        self.name = spec
        self._splits = list(groups)
        self.split = _choose_split(spec, split, groups)
        try:
            schema = pq.read_schema(groups[self.split][0])
            image, label = self._columns(schema, spec)
            wanted = [image] if label is None else [image, label]
            table = pa.concat_tables([pq.read_table(file, columns=wanted) for file in groups[self.split]])
            footers = [pq.ParquetFile(file).metadata for file in groups[self.split]]
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"data '{spec}': cannot read {groups[self.split][0]}: {' '.join(str(error).split())}"
            ) from None
        if not len(table):
            raise UserError(f"data '{spec}': no images in {groups[self.split][0]}")
        self._bytes = [chunk.field("bytes") for chunk in table.column(image).chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._bytes])
        names = [name for chunk in table.column(image).chunks for name in self._names(chunk)]
        self.paths = [name or f"{self.split}/{number:08d}" for number, name in enumerate(names)]
        if label is not None:
            self.labels = table.column(label).to_numpy().astype(np.int64)
            self.class_names = self._class_names(schema, label)
        sizes = [chunk.nbytes for chunk in self._bytes]
        stamps = [str(self._stamp(footer)) for footer in footers]
        self.fingerprint = _digest(str(len(table)), str(sum(sizes)), *stamps, self._sample())

    @staticmethod
    def _files(root: Path, spec: str) -> dict[str, list[Path]]:
        if root.is_file():
            stem = root.name.split(".")[0].split("-")[0]
            split = next((name for name, names in SPLIT_FOLDERS.items() if stem in names), "train")
            return {split: [root]}
        groups: dict[str, list[Path]] = {}
        for file in sorted(root.rglob("*.parquet")):
            stem = file.name.split(".")[0].split("-")[0]
            name = next((name for name, names in SPLIT_FOLDERS.items() if stem in names), stem)
            groups.setdefault(name, []).append(file)
        if not groups:
            raise UserError(
                f"data '{spec}': no .parquet files in {root}; expected train.parquet or train-00000-of-00001.parquet"
            )
        return dict(sorted(groups.items(), key=lambda item: (item[0] != "train", item[0] != "test", item[0])))

    @staticmethod
    def _columns(schema: Any, spec: str) -> tuple[str, str | None]:
        import pyarrow as pa

        images = [
            field.name
            for field in schema
            if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        ]
        if not images:
            raise UserError(
                f"data '{spec}': no image column, a struct with a field 'bytes'; there are: {', '.join(schema.names)}"
            )
        integers = [field.name for field in schema if pa.types.is_integer(field.type)]
        labels = [name for name in ("label", "labels", "fine_label", "class", "target") if name in integers]
        return images[0], labels[0] if labels else None

    @staticmethod
    def _names(chunk: Any) -> list[str | None]:
        at = chunk.type.get_field_index("path")
        return chunk.field(at).to_pylist() if at >= 0 else [None] * len(chunk)

    @staticmethod
    def _class_names(schema: Any, label: str) -> list[str] | None:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = metadata.get("info", {}).get("features", {}).get(label, {})
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, dict):  # some writers number them
            names = [names[key] for key in sorted(names, key=int)]
        return [str(name) for name in names] if names else None

    @staticmethod
    def _stamp(footer: Any) -> list[tuple[int, int]]:
        groups = (footer.row_group(number) for number in range(footer.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def _sample(self) -> bytes:
        """About a hundred images spread over the split, so that the fingerprint sees contents and not sizes alone."""
        return b"".join(self.encoded(index) for index in range(0, len(self), max(1, len(self) // 100)))

    def splits(self) -> list[str]:
        return self._splits

    def encoded(self, index: int) -> bytes:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        data = self._bytes[chunk][index - int(self._starts[chunk])].as_py()
        if data is None:
            raise decoding.DecodeError("no bytes in this row")
        return bytes(data)

    def decode(self, index: int) -> Tensor:
        return decoding.decode(self.encoded(index))


def _torchvision(dataset: str, splits: dict[str, dict[str, Any]]) -> Callable[[str, str | None, str], Source]:
    """A data set that torchvision downloads on demand, below ROOT or the user's cache folder."""

    def build(argument: str, split: str | None, spec: str) -> Source:
        import torchvision.datasets

        chosen = _choose_split(spec, split, splits)
        root = Path(argument).expanduser() if argument else cache_folder() / "datasets"
        try:
            root.mkdir(parents=True, exist_ok=True)
            data = getattr(torchvision.datasets, dataset)(root, download=True, **splits[chosen])
        except (OSError, RuntimeError) as error:  # no network, no right to write, a broken archive
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"data '{spec}': {dataset} is not in {root} and cannot be downloaded ({reason}); "
                f"put it there, or name the folder that has it as {spec.partition(':')[0]}:ROOT"
            ) from None
        images = torch.from_numpy(np.ascontiguousarray(data.data))
        if images.shape[-1] == 3:
            images = images.permute(0, 3, 1, 2).contiguous()
        labels = np.asarray(data.labels if hasattr(data, "labels") else data.targets, dtype=np.int64)
        known = labels if labels.min() >= 0 else None  # STL-10 marks unlabelled images by −1
        return ArraySource(images, known, list(data.classes), name=spec, split=chosen, splits=tuple(splits))

    return build


def cache_folder() -> Path:
    """Where downloads go: HEXA_CACHE, or `hexa` below the user's cache folder."""
    chosen = os.environ.get("HEXA_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hexa"


_CIFAR: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
SOURCES: dict[str, Callable[[str, str | None, str], Source]] = {
    "digits": _digits,
    "folder": FolderSource,
    "parquet": ParquetSource,
    "cifar10": _torchvision("CIFAR10", _CIFAR),
    "cifar100": _torchvision("CIFAR100", _CIFAR),
    "stl10": _torchvision(
        "STL10", {name: {"split": name} for name in ("train", "test", "unlabeled", "train+unlabeled")}
    ),
}
