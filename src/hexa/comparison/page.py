"""Writes a comparison as an HTML report: verdict, table, nearest images by each backbone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hexa.comparison import unlabelled, verdict
from hexa.comparison.compare import Comparison
from hexa.comparison.extraction import Extraction
from hexa.comparison.verdict import Side
from hexa.config import whole_characters
from hexa.data.views.evaluation import EvaluationTransform
from hexa.reporting.gallery import class_of, tiles_of
from hexa.reporting.pictures import Gallery, shown
from hexa.reporting.rendering import rendered
from hexa.reporting.tables import text
from hexa.runtime.files import write_text
from hexa.runtime.random import Stream

#: Number of images whose neighbours are shown.
_QUERIES = 4
#: Number of neighbours of an image.
_NEAREST = 6
#: Side of an image in the report, in pixels.
_TILE = 72
#: Number of images that are searched for the largest change of neighbours.
_SEARCHED = 2000
#: Maximum number of listed near-duplicates.
_TWINS = 18
#: Maximum number of backbones in the figure.
_DRAWN = 4


def write(comparison: Comparison, how: Extraction, folder: Path) -> Path:
    """Create the folder, write compare.json and compare.html into it, and return the path of the HTML file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "compare.json", json.dumps(comparison.record, indent=1) + "\n")
    asked = {
        name: value
        for name, value in vars(how).items()
        if value not in (None, math.inf) and name != "backbones"
    }
    asked["images"] = len(comparison.images)
    best = comparison.verdict.best
    first, *others = comparison.sides
    pair = (first, comparison.sides[best or 1])
    order = torch.randperm(len(comparison.images), generator=Stream(0).child("shown").generator())
    some = order[:_SEARCHED]
    kept = unlabelled.kept(pair[0].features, pair[1].features, rows=some)
    moved = some[kept.argsort(stable=True)]
    shown = {
        "title": f"{first.name} compared with {' and '.join(side.name for side in others)}",
        "verdict": comparison.verdict,
        "told": "better" if best is not None else "no significant difference",
        "table": verdict.table(comparison.sides, comparison.verdict),
        "judged": 0 if comparison.judge is None else len(comparison.judge.judged),
        "notes": comparison.notes,
        "closest": _closest(comparison, comparison.sides[:_DRAWN], moved[:_QUERIES].tolist()),
        "changed": f"{pair[0].name} and {pair[1].name} share {kept.mean():.0%} of all neighbourhoods",
        "duplicates": comparison.duplicates[:_TWINS],
        "twins": len(comparison.duplicates),
        "facts": [(name, text(value)) for name, value in asked.items()],
    }
    return write_text(folder / "compare.html", whole_characters(rendered("compare.html", **shown)))


def _closest(comparison: Comparison, sides: Sequence[Side], queries: Sequence[int]) -> Any:
    """Return the figure with a row for each query and backbone: the image, then its nearest images with their classes."""
    images = comparison.images
    transform = EvaluationTransform(_TILE, 1.0)
    labels = []
    tiles = []
    captions = []
    for query in queries:
        for side in sides:
            near = unlabelled.neighbours(side.features, _NEAREST, torch.tensor([query]))
            places = [query, *near[0].tolist()]
            labels.append(side.name)
            tiles.append(tiles_of(images, places, transform))
            captions.append([class_of(images, place) for place in places])
    heads = ["image", *map(str, range(1, len(tiles[0])))]
    if images.classes is None:
        captions = []
    return shown(Gallery(np.stack(tiles), heads, captions, labels))
