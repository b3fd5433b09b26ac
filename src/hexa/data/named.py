"""Data sets known by their name: scikit-learn's digits, and those that torchvision downloads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.config import UserError, reason
from hexa.data.source import ArraySource, Source, choose_split, location


def digits(argument: str, split: str | None, spec: str) -> Source:
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels; a fixed stratified quarter is the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    if argument:
        raise UserError(f"data '{spec}': digits are embedded and take no path; write digits")
    split = choose_split(spec, split, ("train", "test"))
    images, labels = load_digits(return_X_y=True)
    chosen = train_test_split(np.arange(len(labels)), test_size=450, stratify=labels, random_state=0)[split == "test"]
    grey = torch.from_numpy((images[chosen] * (255 / 16)).round().astype(np.uint8)).view(-1, 1, 8, 8)
    names = [str(digit) for digit in range(10)]
    kept = labels[chosen].astype(np.int64)
    return ArraySource(
        grey.expand(-1, 3, -1, -1).contiguous(), kept, names, name=spec, split=split, splits=("train", "test")
    )


def torchvision_set(dataset: str, splits: dict[str, dict[str, Any]]) -> Callable[[str, str | None, str], Source]:
    """A data set that torchvision downloads on demand, below ROOT or the user's cache folder."""

    def build(argument: str, split: str | None, spec: str) -> Source:
        import torchvision.datasets

        chosen = choose_split(spec, split, splits)
        root = location(argument) if argument else cache_folder() / "datasets"
        try:
            root.mkdir(parents=True, exist_ok=True)
            data = getattr(torchvision.datasets, dataset)(root, download=True, **splits[chosen])
        except (OSError, RuntimeError) as error:  # no network, no right to write, a broken archive
            raise not_there(spec, dataset, root, error) from None
        images = torch.from_numpy(np.ascontiguousarray(data.data))
        if images.shape[-1] == 3:
            images = images.permute(0, 3, 1, 2).contiguous()
        labels = np.asarray(data.labels if hasattr(data, "labels") else data.targets, dtype=np.int64)
        known = labels if labels.min() >= 0 else None  # STL-10 marks unlabelled images by −1
        return ArraySource(images, known, list(data.classes), name=spec, split=chosen, splits=tuple(splits))

    return build


def not_there(spec: str, dataset: str, root: Path, error: Exception) -> UserError:
    """What to say where a data set is neither on the disk nor to be had."""
    return UserError(
        f"data '{spec}': {dataset} is not in {root} and cannot be downloaded ({reason(error, 200)}); "
        f"put it there, or name the folder that has it as {spec.partition(':')[0]}:ROOT"
    )


def cache_folder() -> Path:
    """Where downloads go: HEXA_CACHE, or `hexa` below the user's cache folder."""
    chosen = os.environ.get("HEXA_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hexa"


CIFAR_SPLITS: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
STL10_SPLITS = {name: {"split": name} for name in ("train", "test", "unlabeled", "train+unlabeled")}
