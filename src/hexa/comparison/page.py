"""A comparison as a page: verdict, table, the closest images under each backbone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hexa.comparison import unlabelled, verdict
from hexa.comparison.compare import Comparison
from hexa.comparison.extraction import Extraction
from hexa.comparison.verdict import Side
from hexa.config import whole_characters
from hexa.data.views.evaluation import EvaluationTransform
from hexa.reporting.gallery import class_of, tiles_of
from hexa.reporting.pictures import Gallery, encoded
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
    facts = {
        name: value
        for name, value in vars(how).items()
        if value not in (None, math.inf) and name != "backbones"
    }
    first = comparison.sides[0].features
    other = comparison.sides[comparison.verdict.best or 1]
    order = torch.randperm(len(comparison.images), generator=Stream(0).child("shown").generator())
    some = order[:_SEARCHED]
    kept = unlabelled.kept(first, other.features, rows=some)
    moved = some[kept.argsort(stable=True)]
    page = rendered(
        "compare.html",
        comparison=comparison,
        table=verdict.table(comparison.sides, comparison.verdict),
        closest=_closest(comparison, comparison.sides[:_DRAWN], moved[:_QUERIES].tolist()),
        other=other.name,
        kept=f"{kept.mean():.0%}",
        most=_TWINS,
        facts=facts | {"images": len(comparison.images)},
        text=text,
        encoded=encoded,
    )
    return write_text(folder / "compare.html", whole_characters(page))


def _closest(comparison: Comparison, sides: Sequence[Side], queries: Sequence[int]) -> Gallery:
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
    return Gallery(np.stack(tiles), heads, captions if images.classes is not None else (), labels)
