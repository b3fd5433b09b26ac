"""Published results (published.yaml), and which of them belong to a result or a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexa.runtime.parsing import read_resource

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Row:
    """Percent, None where nothing was reported. epochs: None for supervised training and the like."""

    method: str
    epochs: int | None
    values: Values


@dataclass(frozen=True)
class Table:
    """A published table; also a part of one."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def only(self, columns: Sequence[str]) -> Table:
        """Some of the columns, and every row that has a value in one of them."""
        places = [self.columns.index(column) for column in columns]
        rows = (
            Row(row.method, row.epochs, tuple(row.values[place] for place in places))
            for row in self.rows
        )
        return Table(
            self.title,
            tuple(columns),
            tuple(row for row in rows if any(v is not None for v in row.values)),
        )


_DATA = read_resource("hexa_paper", "published.yaml")


def _table(name: str) -> Table:
    rows = tuple(
        Row(method, epochs, tuple(values)) for method, epochs, *values in _DATA[name]["rows"]
    )
    return Table(_DATA[name]["title"], tuple(_DATA[name]["columns"]), rows)


LINEAR, LOW_SHOT, SEMI_SUPERVISED, DETECTION, FINE_TUNE, ROBUST = TABLES = tuple(
    map(_table, ("linear", "low-shot", "semi-supervised", "detection", "fine-tune", "robust"))
)
#: Of semi-supervised learners on CIFAR-10, which are not in the paper.
FEW_LABELS = _table("few-labels")
#: The published row (method, epochs) that a recipe sets out to repeat.
COUNTERPARTS: dict[str, tuple[str, int]] = {
    recipe: tuple(row) for recipe, row in _DATA["counterparts"].items()
}

#: What to know about the published number of a recipe.
REMARKS: dict[str, str] = _DATA["remarks"]


def expected(recipe: str) -> str:
    """The published result of a recipe: top-1 on ImageNet by a linear classifier, a remark, or both."""
    value = _DATA["linear_top1"].get(recipe)
    for row in LINEAR.rows:
        if (row.method, row.epochs) == COUNTERPARTS.get(recipe):
            value = row.values[0]
    words = (f"published linear top-1 {value}" if value else "", REMARKS.get(recipe))
    return ", ".join(filter(None, words))


@dataclass(frozen=True)
class Comparison(Table):
    """A result's own values above the published rows of its columns.

    own: the result's values, one for each column.
    metrics: the metrics of the result that these are.
    caution: why they are not comparable; empty if they are.
    """

    own: Values = ()
    metrics: tuple[str, ...] = ()
    caution: str = ""


#: The table a protocol belongs to.
_TABLES = {protocol: _table(name) for protocol, name in _DATA["protocols"].items()}
#: Protocols that were published on one data set alone.
_ONLY: dict[str, str] = _DATA["only"]
#: Images that published numbers were learned from and scored on.
_IMAGES: dict[str, list[int]] = _DATA["images"]
#: {protocol: {data: presets}} of published numbers, where there are others.
_PRESETS: dict[str, dict[str, list[str]]] = _DATA["presets"]
#: Options that choose a column, or another row: results with them are comparable.
_CHOICES = {"percent", "list_file", "shots"}
#: Options of AutoAttack and PGD that make the attack weaker or stronger.
_STRENGTH = {"steps", "restarts", "targets", "queries"}
#: What may differ in `robust`, or is said otherwise. Dual batch-norms were published in the adversarial branch.
_ROBUST = _STRENGTH | {"epsilons", "images", "official", "branch"}


def beside(result: Mapping[str, Any]) -> Comparison | None:
    """The published rows for the protocol and data of a result (a dict as `evaluate` returns); None if there are none."""
    name = str(result["protocol"]).partition("/")[0]
    data = result["data_facts"]["test"].get("known_as")
    metrics = result["metrics"]
    table = _TABLES.get(name)
    labels = name == "semi-supervised" and result["options"].get("labels")
    if labels and data == "CIFAR-10":
        table = FEW_LABELS
        metrics = {f"error@{labels}": 100 - metrics["top1"]}
    elif data is None or table is None or labels or _ONLY.get(name, data) != data:
        return None
    # columns are data sets, of which the result has one value; shares of labels; or metrics
    of = {metric: metric for metric in metrics}
    if name == "semi-supervised" and not labels:
        of = {f"{_percent(result):g} % {metric}": metric for metric in metrics}
    elif (
        name == "robust" and result["preset"] == "pgd"
    ):  # a weaker attack than that of the other columns
        of = {f"PGD {metric}": metric for metric in metrics} | {"top1": "top1"}
    elif name not in _ONLY and (data == "VOC07") == (name == "svm"):
        of[data] = "mAP" if "mAP" in metrics else "top1"
    columns = [column for column in table.columns if column in of]
    if not columns:
        return None
    part = table.only(columns)
    shown = tuple(of[column] for column in columns)
    own = tuple(metrics.get(metric) for metric in shown)
    return Comparison(
        table.title, part.columns, part.rows, own, shown, _caution(name, data, result)
    )


def _percent(result: Mapping[str, Any]) -> float:
    """The share of labels that was used; of a list to two digits, as such lists are called."""
    if result["options"].get("list_file") is None:
        return float(result["options"]["percent"])
    one = result["details"].get("draws", [result["details"]])[0]
    return float(f"{100 * one['labelled_images'] / result['data_facts']['fit']['images']:.2g}")


def _caution(name: str, data: str, result: Mapping[str, Any]) -> str:
    facts = result["data_facts"]
    used = facts.get("fit", {}).get("images"), facts["test"]["images"]
    parts = [
        f"{there:,} {part} images, here {here:,}"
        for part, there, here in zip(("training", "test"), _IMAGES[data], used, strict=True)
        # of detection's training images those of VOC2012 are a part, or not
        if here not in (None, there) and not (name == "detect" and part == "training")
    ]
    if parts:
        return f"published with {'; '.join(parts)}: not comparable"
    options = result.get("options", {})
    changed = result["deviations"].keys() - _CHOICES
    if name == "robust":
        limit = options.get("images") or _IMAGES[data][1]
        if result["preset"] == "apgd" or changed & _STRENGTH:
            parts.append("published with another attack")
        if limit < _IMAGES[data][1]:
            parts.append(
                f"published on all {_IMAGES[data][1]:,} test images, here {limit:,} of them"
            )
        changed -= _ROBUST
    if (
        name == "semi-supervised"
        and data == "ImageNet"
        and options.get("learner", "supervised") != "supervised"
    ):
        return "the settings of a learner are those of CIFAR-10, it has none for ImageNet: not comparable"
    if (
        name == "semi-supervised"
        and data == "ImageNet"
        and options["percent"] < 100
        and not options.get("list_file")
    ):
        return "published with the labels of SimCLR's lists, here they were drawn; --list_file FILE gives a list"
    if name == "semi-supervised" and data == "CIFAR-10":
        return "published of one network and one length of training; compare with your own runs of both"
    presets = _PRESETS.get(name, {}).get(data, [result["preset"]])
    if result["preset"] not in presets:
        return f"published with the settings of {' or '.join(presets)}: not comparable"
    sides = _DATA["sides"][name]
    if result["transform"].get("size") not in sides:
        parts.append(f"published at {sides[0]} px, here {result['transform']['size']}")
    # VOC2012 may be asked for and missing
    if changed or not options.get("with_2012", True):
        parts.append("published without the deviations of this one: not comparable")
    return "; ".join(parts)


def called(method: str) -> str:
    """A method without what a table appends to its name: a †, or in the brackets how sure its number of crops is."""
    plain = method.removesuffix("†")
    return str(_DATA["called"].get(plain, plain))


def find(rows: Sequence[Row], method: str, epochs: int | None) -> Row | None:
    """The row of a method and its epochs, whatever the table appends to the name."""
    return next(
        (row for row in rows if row.epochs == epochs and called(row.method) == called(method)), None
    )
