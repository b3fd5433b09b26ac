"""Recognises data sets of published benchmarks by their classes, whatever source they are read from."""

from __future__ import annotations

from hexa.data.sources.source import Source

_CIFAR10 = {
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
}
_VOC = {
    *(
        "aeroplane",
        "bicycle",
        "bird",
        "boat",
        "bottle",
        "bus",
        "car",
        "cat",
        "chair",
        "cow",
        "diningtable",
        "dog",
    ),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
}
#: Classes of CIFAR-100 that no other set of a hundred classes has together.
_CIFAR100 = {
    "aquarium_fish",
    "bee",
    "castle",
    "lawn_mower",
    "pickup_truck",
    "sweet_pepper",
    "wardrobe",
    "worm",
}


def known_as(source: Source) -> str | None:
    """ImageNet (by its counts), CIFAR-10, CIFAR-100 or VOC07 (by their class names); None for other sources."""
    names = set(source.class_names or ())
    if names == _CIFAR10:
        return "CIFAR-10"
    if len(names) == 100 and names >= _CIFAR100:
        return "CIFAR-100"
    if names == _VOC and source.classes is None:
        return "VOC07"
    return "ImageNet" if (len(names), len(source)) == (1000, 50_000) else None
