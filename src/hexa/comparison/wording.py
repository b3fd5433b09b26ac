"""Sentences on labelled images: the difference that they can show, and the use of groups."""

from __future__ import annotations

import math

import numpy as np

from hexa.comparison.labelled import (
    FEWEST,
    FEWEST_EFFECTIVE,
    FEWEST_GROUPS,
    GROUPED_WIDTH,
    WIDTH,
    Judge,
    effective_groups,
)
from hexa.config import some
from hexa.data import Source
from hexa.evaluation.few_labels import student
from hexa.reporting.tables import counted

#: Standard deviation, in points, of the difference of an image between two related backbones.
_DEVIATION = 35.0
#: Correlation between the differences of two images in a group.
_ALIKE = 0.3
#: Statistical power for the smallest difference that can be shown.
_POWER = 0.8


def shown_by(
    judge: Judge,
    most: int | None = None,
    comparisons: int = 1,
) -> str:
    """Return a sentence on the true difference that the scored images, at most `most` of them, show in four of five
    comparisons."""
    from scipy.special import stdtrit  # a quarter of a second, which other commands do without

    rows = judge.judged
    if most is not None and most < len(rows):
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
    images = len(rows)
    alone = np.arange(images) if judge.groups is None else judge.groups[rows]
    sizes = np.unique(alone, return_counts=True)[1]
    within = f" in {counted(len(sizes), 'group')}" if sizes.max() > 1 else ""
    given = f"with {images:,} labelled images{within}"
    if images < FEWEST or len(sizes) < FEWEST_GROUPS:
        return f"{given} no difference can be shown"
    if effective_groups(sizes) < FEWEST_EFFECTIVE:
        return f"{given} no difference can be shown, because most of them are in few groups"
    independent = images / (1 + _ALIKE * (float((sizes**2).sum() / sizes.sum()) - 1))
    width = WIDTH if sizes.max() == 1 else GROUPED_WIDTH
    freedom = effective_groups(sizes) - 1
    reach = student(freedom, comparisons) + float(stdtrit(freedom, _POWER))
    points = reach * width * _DEVIATION / math.sqrt(independent)
    return f"{given} a difference of about {points:.0f} points can be shown"


def groups_note(judge: Judge, images: Source) -> str:
    """Return a note on the use of groups. images: the source with the given groups, even if they are ignored."""
    groups = images.groups()
    if groups is None or np.bincount(groups).max() < 2:
        return "labelled images count as independent; if some belong together, for example by visit or patient, give --groups"
    if judge.groups is None:
        return "images of a group count as independent, because fewer than two classes span several groups"
    scored = len(np.unique(judge.groups[judge.judged]))
    alike = "a group"
    if images.grouped is None:
        names = {path.split("/")[1] for path in images.paths if path.count("/") > 1}
        alike = f"equal sub-folders ({some(sorted(names))})"
    return f"images of {alike} are in the same fold; the scored images are in {counted(scored, 'group')}"
