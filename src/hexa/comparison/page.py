"""A comparison as a page: verdict, table, the closest images under each backbone, maps, classes that gained or lost."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional

from hexa.comparison import unlabelled, verdict
from hexa.comparison.compare import Comparison
from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import NEAREST
from hexa.comparison.verdict import Side
from hexa.config import whole_characters
from hexa.data.views.evaluation import EvaluationTransform
from hexa.evaluation.split import draw_images
from hexa.reporting.gallery import tiles_of
from hexa.reporting.pictures import Gallery
from hexa.reporting.plots.clusters import class_name, class_of
from hexa.reporting.rendering import rendered
from hexa.reporting.report import picture
from hexa.reporting.style import COLOURS, MARKERS, MUTED, drawing
from hexa.reporting.tables import Table, shortened, text
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
#: Images on a map.
_MAPPED = 800
#: Classes that a map colours.
_COLOURED = 8
#: Classes and duplicates that are listed.
_LISTED = 6
#: Backbones that are drawn.
_DRAWN = 4
#: Columns that a title of a map has room for.
_TITLE = 40


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
    sides = comparison.sides[:_DRAWN]
    pair = comparison.sides[0], comparison.sides[comparison.verdict.best or 1]
    some = torch.randperm(len(comparison.images), generator=Stream(0).child("shown").generator())[
        :_SEARCHED
    ]
    survive = unlabelled.kept(pair[0].features, pair[1].features, rows=some).numpy()
    shown = {
        "title": f"{pair[0].name} beside {' and '.join(side.name for side in comparison.sides[1:])}",
        "verdict": comparison.verdict,
        "told": "better" if comparison.verdict.best is not None else "not told apart",
        "table": verdict.table(comparison.sides, comparison.verdict),
        "judged": 0 if comparison.judge is None else len(comparison.judge.judged),
        "notes": comparison.notes,
        "closest": _closest(comparison, sides, some[:_QUERIES]),
        "moved": _closest(
            comparison, pair, some[np.lexsort((-np.arange(len(survive)), survive))[:_QUERIES]]
        ),
        "changed": f"{pair[0].name} and {pair[1].name} share {survive.mean():.0%} of all neighbourhoods",
        "maps": _maps(comparison, sides),
        "classes": _classes(comparison, pair),
        "duplicates": comparison.duplicates[: 3 * _LISTED],
        "twins": len(comparison.duplicates),
        "facts": [(name, text(value)) for name, value in asked.items()],
    }
    return write_text(folder / "compare.html", whole_characters(rendered("compare.html", **shown)))


def _closest(comparison: Comparison, sides: Sequence[Side], queries: Tensor) -> Any:
    """A row for each of some images and each backbone: the image and those nearest to it, named by class if known."""
    images = comparison.images
    transform = EvaluationTransform(_TILE, 1.0)
    near = [unlabelled.neighbours(side.features, _NEAREST, queries).tolist() for side in sides]
    rows = [
        [query, *nearest[row]] for row, query in enumerate(queries.tolist()) for nearest in near
    ]
    tiles = np.stack([tiles_of(images, places, transform) for places in rows])
    captions = [[class_of(images, place) for place in places] for places in rows]
    heads = ["image", *map(str, range(1, tiles.shape[1]))]
    labels = [side.name for side in sides] * len(queries)
    return picture(Gallery(tiles, heads, captions if images.classes is not None else (), labels))


def _maps(comparison: Comparison, sides: Sequence[Side]) -> str:
    """The images in two dimensions under each backbone (t-SNE, van der Maaten & Hinton 2008), as SVG."""
    order = draw_images(len(comparison.images), _MAPPED, Stream(0).child("map"))
    classes = comparison.images.classes
    shown = np.zeros(len(order), np.int64) if classes is None else classes[order]
    frequent = np.argsort(-np.bincount(shown), kind="stable")[: 0 if classes is None else _COLOURED]
    names = [side.name for side in sides]
    name_of = dict(zip(names, shortened(names, _TITLE), strict=True))
    # a browser has glyphs that the font for measuring lacks
    warned = warnings.catch_warnings(action="ignore", category=UserWarning)
    with warned, drawing(len(sides), width=5.2, height=4.6) as (figure, axes):
        for ax, side in zip(axes, sides, strict=True):
            x = functional.normalize(side.features[order] - side.features.mean(0), dim=1).numpy()
            perplexity = min(
                30.0, (len(order) - 1) / 3
            )  # begun by PCA it would crash where features are all alike
            at = TSNE(
                perplexity=perplexity, init="random", max_iter=500, random_state=0, n_jobs=1
            ).fit_transform(x)
            ax.scatter(at[:, 0], at[:, 1], s=7, color=MUTED, linewidths=0, alpha=0.5)
            for slot, label in enumerate(frequent):
                look: dict[str, Any] = {
                    "color": COLOURS[slot],
                    "marker": MARKERS[slot % len(MARKERS)],
                    "linewidths": 0,
                }
                mine = at[shown == label]
                name = whole_characters(class_name(comparison.images, label))
                ax.scatter(mine[:, 0], mine[:, 1], s=14, label=name, **look)
            ax.set(title=f"{name_of[side.name]} ({side.size} px)", xticks=[], yticks=[])
            ax.grid(visible=False)
        if len(frequent):
            axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return "<svg" + file.getvalue().partition("<svg")[2]


def _classes(comparison: Comparison, pair: tuple[Side, Side]) -> Table:
    """The classes whose k-NN accuracy gained and lost most."""
    judge = comparison.judge
    first, second = (side.scores for side in pair)
    if judge is None or first is None or second is None:
        return Table()
    labels = judge.labels[judge.judged]
    rows = []
    for label in np.unique(labels):
        before, after = (
            float(one.right[NEAREST][labels == label].mean()) for one in (first, second)
        )
        name = class_name(comparison.images, label)
        rows.append((after - before, name, before, after, int((labels == label).sum())))
    rows.sort(reverse=True)
    kept = rows if len(rows) <= 2 * _LISTED else [*rows[:_LISTED], *rows[-_LISTED:]]
    cells = [
        (name, str(count), f"{before:.0f}", f"{after:.0f}", f"{gain:+.0f}".replace("-", "−"))
        for gain, name, before, after, count in kept
        if gain
    ]
    return Table(
        ("class", "images", f"{pair[0].name}, %", f"{pair[1].name}, %", "points"), tuple(cells)
    )
