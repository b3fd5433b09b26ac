"""Writes a comparison as an HTML report: verdict, table, nearest images by each backbone."""

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
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.reporting.gallery import class_of, tiles_of
from hexa.reporting.pictures import Gallery, encoded
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
    facts = {
        name: value
        for name, value in vars(how).items()
        if value not in (None, math.inf) and name not in ("backbones", "seconds")
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
    return Gallery(np.stack(tiles), heads, captions if images.classes is not None else (), labels)
