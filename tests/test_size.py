"""The budget: tokens of code, tokens on a line, and packed statements, by part of the project."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.size import Size, files, size_of


class Budget(NamedTuple):
    """Upper limits for one part of the project."""

    tokens: int
    """Tokens of code."""
    density: float
    """Tokens on a line of code."""
    packed: int
    """Packed statements."""


BUDGETS = {
    "src/hexa": Budget(204_800, 10, 30),
    "src/hexa_paper": Budget(41_000, 10, 10),
    "tests": Budget(233_100, 11, 60),
}
#: Most tokens on a line of a single file of `src`.
DENSEST = 12
#: Lines of code from which on a file's density counts.
SHORT = 20


@pytest.mark.parametrize("part", BUDGETS)
def test_budget(part: str) -> None:
    found = sum(files(part).values(), Size())
    budget = BUDGETS[part]
    assert found.tokens <= budget.tokens
    assert round(found.density, 1) <= budget.density
    assert found.packed <= budget.packed


def test_density_of_files() -> None:
    dense = {
        path: round(size.density, 1)
        for path, size in files("src").items()
        if size.lines >= SHORT and size.density > DENSEST
    }
    assert not dense


def test_counting() -> None:
    text = '"""Doc."""\nimport os\n\nx = 1  # one\na, b = x, os\na, b = b, a\ny = "s" * (x > 1)\n'
    assert size_of(text) == Size(3 + 7 + 7 + 9, 4, 2)
