"""Published results as data, and which of them a result or a recipe is to be read beside (REFERENCE §8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Row:
    """One published row: percent, None where nothing was reported. epochs is None for supervised training and such."""

    method: str
    epochs: int | None
    values: Values


@dataclass(frozen=True)
class Table:
    """A published table: what it shows, the heads of its columns, its rows in their order."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


LINEAR = Table(
    "linear classification, ResNet-50; top-1 in percent (VOC07: mAP of SVMs)",
    ("ImageNet", "VOC07", "CIFAR-10", "CIFAR-100"),
    (
        Row("Supervised", None, (76.5, 87.5, 93.6, 78.3)),
        Row("InstDisc", 200, (54.0, None, None, None)),
        Row("Jigsaw", 90, (45.7, 64.5, None, None)),
        Row("BigBiGAN", None, (56.6, None, None, None)),
        Row("CPC-v2", 200, (63.8, None, None, None)),
        Row("CMC", 200, (66.2, None, None, None)),
        Row("SimCLR", 200, (61.9, None, None, None)),
        Row("SimCLR", 1000, (69.3, 80.5, 90.6, 71.6)),
        Row("MoCo", 200, (60.6, 79.2, None, None)),
        Row("PIRL", 800, (63.6, 81.1, None, None)),
        Row("PCL-v2", 200, (67.6, 85.4, None, None)),
        Row("BYOL", 800, (74.3, None, 91.3, 78.4)),
        Row("SwAV (B=256)", 200, (72.7, 87.5, 91.8, 74.2)),
        Row("SwAV (B=4096)", 200, (73.9, 87.9, 92.0, 76.0)),
        Row("SwAV (B=4096)", 800, (75.3, 88.1, 93.1, 77.0)),
        Row("InfoMin", 200, (70.1, None, None, None)),
        Row("InfoMin", 800, (73.0, None, None, None)),
        Row("MoCo-v2", 200, (67.5, 84.5, 89.4, 70.1)),
        Row("HEXA-MoCo", 200, (68.9, 85.0, 90.4, 71.5)),
        Row("MoCo-v2", 800, (71.1, 86.8, 90.6, 71.8)),
        Row("HEXA-MoCo", 800, (71.7, 87.0, 91.5, 73.2)),
        Row("DeepCluster-v2", 200, (67.6, 85.4, 89.6, 70.9)),
        Row("HEXA-D", 200, (68.1, 85.9, 90.7, 71.5)),
        Row("HEXA-D (8-crop)", 200, (74.0, 88.1, 92.9, 76.6)),
        Row("HEXA-D+ (8-crop)", 200, (73.4, 88.8, 91.9, 75.2)),
        Row("DeepCluster-v2 (8-crop)", 800, (75.2, 87.6, 93.2, 77.3)),
        Row("HEXA-D (8-crop)", 800, (75.5, 87.9, 93.4, 78.6)),
        Row("HEXA-D+ (8-crop)", 800, (75.1, 88.2, 93.5, 78.0)),
    ),
)
"""REFERENCE §8.1."""

LOW_SHOT = Table(
    "low-shot classification of VOC07, ResNet-50; mAP of SVMs, mean of five runs",
    ("mAP@2", "mAP@4", "mAP@8", "mAP@16", "mAP@32"),
    (
        Row("Supervised", None, (67.8, 73.9, 79.6, 82.3, 83.8)),
        Row("Jigsaw", 200, (31.1, 40.0, 46.7, 51.8, None)),
        Row("SimCLR", 200, (43.1, 52.5, 61.0, 67.1, None)),
        Row("MoCo", 200, (42.0, 49.5, 60.0, 65.9, None)),
        Row("PCL-v2", 200, (59.6, 66.2, 74.5, 78.3, None)),
        Row("SwAV (B=4096)", 200, (53.8, 65.0, 73.9, 78.6, 82.3)),
        Row("SwAV (B=4096)", 800, (54.6, 64.6, 73.4, 79.0, 82.5)),
        Row("MoCo-v2", 200, (56.4, 67.2, 72.0, 77.2, 79.5)),
        Row("HEXA-MoCo", 200, (57.0, 68.5, 73.1, 78.0, 80.1)),
        Row("MoCo-v2", 800, (60.6, 72.1, 77.1, 80.9, 82.8)),
        Row("HEXA-MoCo", 800, (61.5, 72.8, 77.5, 81.5, 83.0)),
        Row("DeepCluster-v2", 200, (57.7, 66.5, 74.1, 77.6, 80.7)),
        Row("HEXA-D", 200, (55.7, 65.3, 74.1, 78.0, 81.2)),
        Row("HEXA-D (8-crop)", 200, (55.5, 66.2, 75.2, 79.5, 83.1)),
        Row("HEXA-D+ (8-crop)", 200, (56.9, 67.3, 76.4, 81.1, 84.0)),
        Row("DeepCluster-v2 (crop count not printed; 8-crop implied)", 800, (53.5, 65.6, 73.3, 78.9, 82.5)),
        Row("HEXA-D (8-crop)", 800, (54.1, 65.6, 73.9, 79.0, 82.9)),
        Row("HEXA-D+ (8-crop)", 800, (54.8, 65.8, 74.2, 79.4, 83.1)),
    ),
)
"""REFERENCE §8.2."""

SEMI_SUPERVISED = Table(
    "semi-supervised classification of ImageNet, ResNet-50; percent",
    ("1 % top1", "1 % top5", "10 % top1", "10 % top5", "100 % top1", "100 % top5"),
    (
        Row("Supervised", None, (25.4, 48.4, 56.4, 80.4, 76.5, 93.0)),
        Row("Pseudo-labels", None, (None, 51.6, None, 82.4, None, None)),
        Row("VAT", None, (None, 47.0, None, 83.4, None, None)),
        Row("S4L rotation", None, (None, 53.4, None, 83.8, None, None)),
        Row("UDA", None, (None, None, 68.8, 88.5, None, None)),
        Row("FixMatch", None, (None, None, 71.5, 89.1, None, None)),
        Row("InstDisc", 200, (None, 39.2, None, 77.4, None, None)),
        Row("Jigsaw", 90, (None, 45.3, None, 79.3, None, None)),
        Row("SimCLR", 200, (None, 56.5, None, 82.7, None, None)),
        Row("SimCLR", 1000, (48.3, 75.5, 65.6, 87.8, 76.5, 93.5)),
        Row("MoCo", 200, (None, 56.9, None, 83.0, None, None)),
        Row("PIRL", 800, (None, 57.2, None, 83.8, None, None)),
        Row("PCL", 200, (None, 75.3, None, 85.6, None, None)),
        Row("SwAV (B=256)", 200, (51.3, 76.6, 67.8, 88.6, 75.5, 92.9)),
        Row("SwAV (B=4096)", 200, (52.6, 77.7, 68.5, 89.2, 76.3, 93.2)),
        Row("SwAV (B=4096)", 800, (53.9, 78.5, 70.2, 89.9, 78.3, 94.1)),
        Row("BYOL", 800, (53.2, 78.4, 68.8, 89.0, 77.7, 93.9)),
        Row("MoCo-v2", 200, (38.9, 67.4, 61.5, 84.6, 74.6, 92.5)),
        Row("HEXA-MoCo", 200, (39.4, 67.6, 62.3, 85.1, 74.8, 92.4)),
        Row("MoCo-v2", 800, (42.3, 70.1, 63.8, 86.2, 75.5, 92.8)),
        Row("HEXA-MoCo", 800, (42.4, 70.2, 64.1, 86.3, 75.7, 93.0)),
        Row("DeepCluster-v2", 200, (46.7, 72.9, 63.5, 86.3, 71.9, 91.0)),
        Row("HEXA-D", 200, (48.9, 74.7, 64.9, 87.3, 73.9, 92.2)),
        Row("HEXA-D (8-crop)", 200, (54.1, 78.6, 69.3, 89.3, 76.9, 93.6)),
        Row("HEXA-D+ (8-crop)", 200, (54.9, 79.3, 69.4, 89.7, 77.2, 93.9)),
        Row("DeepCluster-v2 (8-crop implied)", 800, (55.6, 79.3, 70.6, 90.2, 78.0, 94.0)),
        Row("HEXA-D (8-crop)", 800, (55.3, 79.1, 70.8, 90.2, 78.3, 94.1)),
        Row("HEXA-D+ (8-crop)", 800, (57.3, 80.7, 71.8, 90.8, 78.6, 94.4)),
    ),
)
"""REFERENCE §8.3."""

DETECTION = Table(
    "detection on VOC07 test, trained on VOC07+12, ResNet-50-C4",
    ("AP", "AP50", "AP75"),
    (
        Row("Supervised", None, (53.5, 81.3, 58.8)),
        Row("MoCo-v2", 200, (57.0, 82.4, 63.6)),
        Row("HEXA-MoCo", 200, (57.1, 82.4, 63.8)),
        Row("MoCo-v2", 800, (57.4, 82.5, 64.0)),
        Row("HEXA-MoCo", 800, (57.7, 82.8, 64.9)),
    ),
)
"""REFERENCE §8.4."""

FINE_TUNE = Table(
    "fine-tuning of the whole network, ResNet-50; top-1 in percent (†: the authors' runs)",
    ("CIFAR-10", "CIFAR-100"),
    (
        Row("Supervised", None, (97.5, 86.4)),
        Row("Supervised†", None, (96.7, 83.5)),
        Row("Random init", None, (95.9, 80.2)),
        Row("SimCLR", 1000, (97.7, 85.9)),
        Row("SwAV (B=256)†", 200, (96.6, 82.7)),
        Row("SwAV (B=4096)†", 200, (96.4, 83.2)),
        Row("MoCo-v2", 200, (95.6, 80.8)),
        Row("HEXA-MoCo", 200, (96.1, 81.3)),
        Row("MoCo-v2", 800, (96.1, 83.0)),
        Row("HEXA-MoCo", 800, (96.5, 83.5)),
        Row("DeepCluster-v2", 200, (96.2, 82.1)),
        Row("HEXA-D", 200, (97.2, 84.4)),
        Row("HEXA-D (8-crop)", 200, (97.0, 85.5)),
        Row("HEXA-D+ (8-crop)", 200, (96.9, 84.9)),
    ),
)
"""REFERENCE §8.5."""

TABLES = (LINEAR, LOW_SHOT, SEMI_SUPERVISED, DETECTION, FINE_TUNE)

COUNTERPARTS = {
    "imagenet-moco-v2-200": ("MoCo-v2", 200),
    "imagenet-moco-v2-800": ("MoCo-v2", 800),
    "imagenet-hexa-moco-200": ("HEXA-MoCo", 200),
    "imagenet-hexa-moco-800": ("HEXA-MoCo", 800),
    "imagenet-moco-v1-200": ("MoCo", 200),
    "imagenet-simclr": ("SimCLR", 1000),
    "imagenet-instdisc": ("InstDisc", 200),
    "imagenet-pirl": ("PIRL", 800),
    "imagenet-infomin": ("InfoMin", 800),
    "imagenet-deepcluster-v2-200": ("DeepCluster-v2", 200),
    "imagenet-hexa-dcluster-200": ("HEXA-D", 200),
    "imagenet-hexa-dcluster-8crop-200": ("HEXA-D (8-crop)", 200),
    "imagenet-hexa-dcluster-8crop-800": ("HEXA-D (8-crop)", 800),
    "imagenet-hexa-dcluster-plus-8crop-200": ("HEXA-D+ (8-crop)", 200),
    "imagenet-hexa-dcluster-plus-8crop-800": ("HEXA-D+ (8-crop)", 800),
}
"""The published row that a recipe sets out to repeat. A recipe that is not here has no published counterpart."""

#: The same method with and without hard examples.
_FAMILIES = (
    {"MoCo-v2", "HEXA-MoCo"},
    {"DeepCluster-v2", "HEXA-D"},
    {"DeepCluster-v2 (8-crop)", "HEXA-D (8-crop)", "HEXA-D+ (8-crop)"},
)


def counterpart(recipe: str) -> Row | None:
    """The published row that `recipe` repeats; None if there is none."""
    named = COUNTERPARTS.get(recipe)
    return next((row for row in LINEAR.rows if (row.method, row.epochs) == named), None)


def rows_for(recipe: str) -> list[Row]:
    """The counterpart of `recipe`, with the same method without (or with) hard examples and the supervised network.

    In the order of the published table; empty for a recipe without a counterpart.
    """
    own = counterpart(recipe)
    if own is None:
        return []
    family = next((names for names in _FAMILIES if own.method in names), {own.method})
    shown = {("Supervised", None), *((name, own.epochs) for name in family)}
    return [row for row in LINEAR.rows if (row.method, row.epochs) in shown]


@dataclass(frozen=True)
class Comparison:
    """A result beside published rows: columns, its own values, and every row that has one of them."""

    title: str
    columns: tuple[str, ...]
    own: Values
    rows: tuple[Row, ...]
    caution: str = ""
    """Why the two are not alike, if they are not."""


#: The table a protocol belongs to.
_TABLES = {
    "linear": LINEAR,
    "svm": LINEAR,
    "low-shot": LOW_SHOT,
    "semi-supervised": SEMI_SUPERVISED,
    "fine-tune": FINE_TUNE,
    "detect": DETECTION,
}
#: Protocols that were published on one data set alone.
_ONLY = {"low-shot": "VOC07", "semi-supervised": "ImageNet", "detect": "VOC07"}
#: Images that published numbers were learned from and scored on.
_IMAGES = {
    "ImageNet": (1_281_167, 50_000),
    "VOC07": (5_011, 4_952),
    "CIFAR-10": (50_000, 10_000),
    "CIFAR-100": (50_000, 10_000),
}


def beside(result: Mapping[str, Any]) -> Comparison | None:
    """What was published for the protocol and the data of a result (a dict as `evaluate` returns); None if nothing."""
    name = str(result["protocol"]).partition("/")[0]
    test = result["data_facts"]["test"]
    data, metrics = test.get("known_as"), result["metrics"]
    table = _TABLES.get(name)
    if data is None or table is None or _ONLY.get(name, data) != data:
        return None
    # the columns are data sets, of which the result has one figure; shares of labels; or metrics
    own = dict(metrics)
    if name == "semi-supervised":
        own = {f"{result['options']['percent']:g} % {metric}": value for metric, value in metrics.items()}
    elif name not in _ONLY and (data == "VOC07") == (name == "svm"):
        own[data] = metrics.get("mAP", metrics.get("top1"))
    columns = tuple(column for column in table.columns if column in own)
    if not columns:
        return None
    places = [table.columns.index(column) for column in columns]
    rows = [Row(row.method, row.epochs, tuple(row.values[place] for place in places)) for row in table.rows]
    kept = tuple(row for row in rows if any(value is not None for value in row.values))
    used = result["data_facts"].get("fit", {}).get("images"), test["images"]
    parts = [
        f"{there:,} {part} images, here {here:,}"
        for part, there, here in zip(("training", "test"), _IMAGES[data], used, strict=True)
        # of detection's training images those of VOC2012 are a part, or not
        if here not in (None, there) and not (name == "detect" and part == "training")
    ]
    caution = f"published with {'; '.join(parts)}: not comparable" if parts else ""
    if name == "detect":
        # VOC2012 may be asked for and not be there
        other = result["deviations"] or result["preset"] != "moco" or not result["options"]["with_2012"]
        caution = caution or ("published without the deviations of this one: not comparable" if other else "")
    return Comparison(table.title, columns, tuple(own[column] for column in columns), kept, caution)


def find(rows: Sequence[Row], method: str, epochs: int) -> Row | None:
    """The row of a method and its epochs; a remark in brackets after the name may differ between tables (8-crop …)."""
    own = [row for row in rows if row.epochs == epochs]
    exact = next((row for row in own if row.method == method), None)
    name, bracket, _ = method.partition(" (")
    near = [row for row in own if bracket and row.method.startswith(f"{name} (")]
    return exact or (near[0] if len(near) == 1 else None)
