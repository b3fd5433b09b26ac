"""The rows of the published tables, and the commands of those that are no arm of a study."""

from __future__ import annotations

from hexa import published
from hexa.published import Row
from hexa.reproduce.arms import PLAIN

#: What was published for those that are tables.
TABLES = {
    "low-shot-curve": published.LOW_SHOT,
    "table1": published.LINEAR,
    "table2": published.LOW_SHOT,
    "table3": published.SEMI_SUPERVISED,
    "table4": published.DETECTION,
    "table5": published.FINE_TUNE,
}
_PATH, _RESNET, _RANDOM = "--data folder:PATH/imagenet", "timm:resnet50.tv_in1k", "random:resnet50"
_SHARES = {share: f"--list_file PATH/imagenet_subsets/{share}percent.txt" for share in (1, 10)} | {100: "--percent 100"}


def _evaluations(*given: str) -> str:
    return "; ".join(f"`hexa evaluate {one}`" for one in given)


def _of_shares(*shares: int, learner: str = "") -> str:
    taught = f" --learner {learner}" if learner else ""
    return _evaluations(*(f"semi-supervised {_RANDOM} {_PATH} {_SHARES[share]}{taught}" for share in shares))


_SUPERVISED = {
    "table1": _evaluations(
        f"linear {_RESNET} {_PATH}",
        f"svm {_RESNET} --data voc:PATH/VOCdevkit",
        *(f"linear {_RESNET} --preset cifar --data {data}" for data in ("cifar10", "cifar100")),
    ),
    "table2": _evaluations(f"low-shot {_RESNET} --data voc:PATH/VOCdevkit"),
    "table3": _of_shares(1, 10, 100),
    "table4": _evaluations(f"detect {_RESNET} --data voc:PATH/VOCdevkit"),
    "table5": _evaluations(*(f"fine-tune {_RESNET} --data {data}" for data in ("cifar10", "cifar100"))),
    "small": "no small network that learned from labels; random weights are below",
}
#: Rows of table 3 that learn from a few labels: their learner, and the shares of labels that were published.
LEARNERS = {
    "Pseudo-labels": ("pseudo-label", (1, 10)),
    "VAT": ("vat", (1, 10)),
    "S4L rotation": ("s4l", (1, 10)),
    "UDA": ("uda", (10,)),
    "FixMatch": ("fixmatch", (10,)),
}
_NO_LABEL = "published only: it predicts no pseudo-label"
#: Published rows that are no arm: by table the commands of all their columns; "" is why there is none, "small" why
#: there is none at the small scale.
ELSEWHERE = {
    "Supervised": _SUPERVISED,
    "Supervised†": _SUPERVISED,
    "Random init": {"table5": _SUPERVISED["table5"].replace(_RESNET, _RANDOM), "small": "not finished"},
    "BigBiGAN": {"": _NO_LABEL, "small": _NO_LABEL},
    **{
        row: {
            "table3": f"{_of_shares(*shares, learner=learner)} (settings of CIFAR-10; it has none for ImageNet)",
            "small": "not in this run",
        }
        for row, (learner, shares) in LEARNERS.items()
    },
}


def shown(table: str) -> list[Row]:
    """The published rows of a table, and before HEXA-D of eight crops its baseline, which the paper does not print."""
    rows: list[Row] = []
    for row in TABLES[table].rows:
        if (row.method, row.epochs) == ("HEXA-D (8-crop)", 200):
            rows.append(Row(*PLAIN, (None,) * len(row.values)))
        rows.append(row)
    return rows
