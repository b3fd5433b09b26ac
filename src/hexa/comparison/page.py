"""A comparison as a page: verdict, table, the closest images under each backbone."""

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

#: Images whose neighbours are shown.
_QUERIES = 4
#: Neighbours of each.
_NEAREST = 6
#: Side of a picture in pixels.
_TILE = 72
#: Images among which those whose neighbours differ most are looked for.
_SEARCHED = 2000
#: Near-duplicates that are listed.
_TWINS = 18
#: Backbones that are drawn.
_DRAWN = 4


def write(comparison: Comparison, how: Extraction, folder: Path) -> Path:
    """Write compare.json and compare.html into a folder, which is made; returns the page."""
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
        "title": f"{first.name} beside {' and '.join(side.name for side in others)}",
        "verdict": comparison.verdict,
        "told": "better" if best is not None else "not told apart",
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
    """A row for each of some images and each backbone: the image and those nearest to it, named by class if known."""
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
