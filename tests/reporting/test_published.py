"""The published table, against the document it was taken from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hexa.reporting import published


def reference() -> Path:
    data = os.environ.get("HEXA_TEST_DATA")
    if not data:
        pytest.skip("HEXA_TEST_DATA is not set: the reference document is beside that folder")
    path = Path(data).resolve().parent / "REFERENCE.md"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def number(text: str) -> float | None:
    return None if text == "-" else float(text)


def test_the_table_of_the_reference() -> None:
    text = reference().read_text(encoding="utf-8")
    section = text.split("### 8.1 ", 1)[1].split("\n### ", 1)[0]
    lines = [line.strip("| \n").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    expected = [(line[0], None if line[1] == "-" else int(line[1]), *map(number, line[2:])) for line in cells]
    assert len(expected) > 20
    assert [(row.method, row.epochs, *row.values) for row in published.LINEAR] == expected


def test_every_counterpart_is_a_row() -> None:
    for recipe in published.COUNTERPARTS:
        assert published.counterpart(recipe) is not None


def test_a_counterpart_comes_with_what_it_is_compared_with() -> None:
    rows = published.rows_for("imagenet-hexa-moco-800")
    assert [(row.method, row.epochs) for row in rows] == [("Supervised", None), ("MoCo-v2", 800), ("HEXA-MoCo", 800)]
    assert published.rows_for("cifar10-hexa-moco") == []
    assert published.rows_for("") == []


def test_counterparts_are_recipes_that_train_as_long() -> None:
    from hexa import recipes

    for name, (_, epochs) in published.COUNTERPARTS.items():
        assert recipes.get(name).epochs == epochs
