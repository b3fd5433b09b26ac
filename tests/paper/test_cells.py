"""Every cell of the paper's five tables: which recipe, protocol, data and metric belong to its published value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hexa import recipes
from hexa.evaluation import protocols
from hexa_paper import published, studies
from hexa_paper.plan import Plan
from hexa_paper.published import Row, Table
from hexa_paper.request import Request, Target
from hexa_paper.rows import rows_of
from hexa_paper.studies import METHODS, TABLES, Arm, Measure

#: By the name of its data: what a command is given.
SOURCES = {
    "ImageNet": "folder:imagenet",
    "VOC07": "voc:VOC",
    "CIFAR-10": "parquet:cifar10",
    "CIFAR-100": "cifar100",
}
#: Cells without an arm, and why.
ELSEWHERE = {
    "Supervised": "one command each, which the study names",
    "Supervised†": "one command each, which the study names",
    "Random init": "one command each, which the study names",
    "BigBiGAN": "predicts no pseudo-label",
    **dict.fromkeys(
        ("Pseudo-labels", "VAT", "S4L rotation", "UDA", "FixMatch"), "learn from labels"
    ),
    "PCL": "of version 1, which has no recipe",
}
#: Names in SimCLR's lists, by the share of labels.
LISTED = {1: 12_811, 10: 128_116}
PROTOTYPES = ("HEXA-D", "DeepCluster-v2", "SwAV")


def expected(name: str, method: str, column: str) -> tuple[str, str, dict[str, Any], str]:
    """Data, protocol, its options beside the defaults of its first preset, and the metric of a cell."""
    if name == "table1" and column == "ImageNet":
        return (
            column,
            "linear",
            {"preset": "swav" if method.startswith(PROTOTYPES) else "moco"},
            "top1",
        )
    if name == "table1" and column == "VOC07":
        return column, "svm", {}, "mAP"
    if name == "table3":
        share, _, metric = column.partition(" % ")
        return "ImageNet", "semi-supervised", {"percent": int(share)}, metric
    return {
        "table1": (column, "linear", {"preset": "cifar"}, "top1"),
        "table2": ("VOC07", "low-shot", {"shots": [1, 2, 4, 8, 16, 32]}, column),
        "table4": ("VOC07", "detect", {}, column),
        "table5": (column, "fine-tune", {}, "top1"),
    }[name]


def cells() -> Iterator[tuple[str, Row, str, float]]:
    for name, table in TABLES.items():
        for row in table.rows if name != "low-shot-curve" else ():
            for column, value in zip(table.columns, row.values, strict=True):
                if value is not None:
                    yield name, row, column, value


def arms_of(name: str) -> dict[tuple[str, int], tuple[str, Arm]]:
    """By the row they stand beside: method of the study, and arm."""
    table: Table = TABLES[name]
    known = {}
    for method in METHODS:
        for arm in studies.study(name, method=method, scale="full").arms:
            row = arm.published and published.find(table.rows, *arm.published)
            if row:
                known[row.method, row.epochs] = method, arm
    return known


def result_of(measure: Measure, known_as: str, metric: str) -> dict[str, Any]:
    own = {name: value for name, value in measure.options.items() if name != "preset"}
    preset, used = protocols.get(measure.protocol).options(measure.options.get("preset"), own)
    images = published._IMAGES[known_as]
    return {
        "title": measure.title,
        "protocol": f"{measure.protocol}/made-up",
        "preset": preset,
        "options": used.model_dump(mode="json"),
        "deviations": {},
        "metrics": {metric: 1.0},
        "details": {"labelled_images": LISTED.get(own.get("percent", 0))},
        "data_facts": {
            "fit": {"images": images[0]},
            "test": {"known_as": known_as, "images": images[1]},
        },
    }


@pytest.mark.parametrize("name", [f"table{number}" for number in range(1, 6)])
def test_every_cell_has_its_protocol_its_data_its_metric_and_its_value(
    name: str, tmp_path: Path
) -> None:
    arms = arms_of(name)
    for share in (1, 10):
        (tmp_path / f"{share}percent.txt").touch()
    checked = 0
    for table, row, column, value in cells():
        if table != name or row.method in ELSEWHERE:
            continue
        method, arm = arms[row.method, row.epochs]
        assert recipes.get(arm.recipe).epochs == row.epochs == arm.epochs
        data, protocol, options, metric = expected(name, row.method, column)
        targets = (Target(SOURCES[data], several=data == "VOC07", known_as=data),)
        request = Request("folder:imagenet", targets=targets, num_images=1_281_167, seeds=(0,))
        study = studies.study(name, method=method, scale="full")
        if name == "table3":
            study = studies.with_lists(study, tmp_path)
            file = str(tmp_path / f"{options['percent']}percent.txt")
            options |= {"list_file": file} if options["percent"] < 100 else {}
        plan = Plan(study, request)
        wanted = [one for one in plan.measures() if one.options == options or name != "table3"]
        assert [(one.protocol, dict(one.options), one.source) for one in wanted] == [
            (protocol, options, SOURCES[data])
        ]
        result = result_of(wanted[0], data, metric)
        run = {
            "arm": arm.key,
            "epochs": row.epochs,
            "seed": 0,
            "rate": 1.0,
            "pretrain_seconds": None,
        }
        rows = rows_of(plan, [run | {"results": [result]}])
        assert [[score["published"] for score in one["scores"].values()] for one in rows] == [
            [value]
        ], (row, column)
        assert not published.beside(result).caution
        checked += 1
    assert checked >= {"table1": 60, "table2": 70, "table3": 90, "table4": 12, "table5": 20}[name]
