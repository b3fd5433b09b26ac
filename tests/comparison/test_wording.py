"""The difference that labelled images can show."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hexa.comparison.labelled import DECIDING, Judge, Rows, paired
from hexa.comparison.wording import shown_by


def showable(images: int, groups: Rows | None = None, comparisons: int = 1) -> str:
    """Return the sentence on scored images, of which all count."""
    judge = SimpleNamespace(judged=np.arange(images), groups=groups)
    return shown_by(judge, comparisons=comparisons)  # type: ignore[arg-type]


def test_showable_difference_by_count() -> None:
    """The smallest detectable difference shrinks with the number of labels and of groups."""

    def points(*given: object) -> int:
        return int(showable(*given).partition("about ")[2].split()[0])  # type: ignore[arg-type]

    assert showable(1000) == (
        "with 1,000 labelled images a difference of about 3 points can be shown"
    )
    assert points(100) > points(300) > points(1000)
    assert points(300, np.repeat(np.arange(10), 30)) > points(300, np.arange(300)) == points(300)
    assert points(300, None, 10) > points(300)
    assert " in 10 groups " in showable(300, np.repeat(np.arange(10), 30))
    assert showable(300, np.repeat([5, 7, 9], 100)) == (
        "with 300 labelled images in 3 groups no difference can be shown"
    )
    assert showable(12).endswith(" no difference can be shown")
    sizes = [500] + 100 * [1]
    unequal = np.repeat(np.arange(101), sizes)
    assert "in 101 groups no difference can be shown" in showable(600, unequal)


@pytest.mark.parametrize(("count", "each"), [(6, 20), (20, 10)])
def test_power_of_few_groups(count: int, each: int) -> None:
    """The difference of the plan is shown in about four of five comparisons, or more."""
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(count), each)
    images = len(groups)
    points = int(showable(images, groups).partition("about ")[2].split()[0])
    found = 0
    for _ in range(400):
        shared = generator.normal(size=count)[groups]
        alone = generator.normal(size=images)
        gains = points + 35 * (math.sqrt(0.3) * shared + math.sqrt(0.7) * alone)
        found += paired(np.zeros(images), gains, DECIDING, groups=groups).sign > 0
    assert found / 400 > 0.75


def test_showable_difference_judging_images() -> None:
    """Classes with one image are not scored, unused groups do not count, and a draw has fewer
    images per group."""
    few = np.concatenate([np.repeat([0, 1], 9), np.arange(2, 1000)])
    assert shown_by(Judge(few)).startswith("with 18 labelled images no")
    labels = np.repeat([0, 1], 500)
    assert shown_by(Judge(labels, groups=labels)) == showable(1000)
    groups = np.arange(1000) % 50
    judge = Judge(labels, groups=groups)
    assert shown_by(judge) == showable(1000, groups)
    assert shown_by(judge, 100).startswith("with 100 labelled images")
