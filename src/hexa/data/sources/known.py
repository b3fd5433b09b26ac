"""Recognises published benchmarks by their classes, in any kind of source."""

from __future__ import annotations

from hexa.data.sources.source import Source
from hexa.runtime.parsing import read_resource

_CLASSES = read_resource("hexa.data.sources", "known.yaml")


def known_as(source: Source) -> str | None:
    """Return ImageNet (by counts), CIFAR-10, CIFAR-100 or VOC07 (by class names); None for other sources."""
    names = set(source.class_names or ())
    if names == {*_CLASSES["CIFAR-10"]}:
        return "CIFAR-10"
    if len(names) == 100 and names >= {*_CLASSES["CIFAR-100"]}:
        return "CIFAR-100"
    if names == {*_CLASSES["VOC07"]} and source.classes is None:
        return "VOC07"
    return "ImageNet" if (len(names), len(source)) == (1000, 50_000) else None
