"""Accessors of sources for tests."""

from __future__ import annotations

from typing import Any

from hexa.data import Source


def labels_of(source: Source) -> Any:
    """The labels as a list, or None."""
    return None if source.labels is None else source.labels.tolist()


def reds_of(source: Source) -> list[int]:
    """Return the upper left red value of each image, which identifies flat images."""
    return [int(source.decode(index)[0, 0, 0]) for index in range(len(source))]
