"""A comparison as a page: verdict, table, the closest images under each backbone, maps, classes that gained or lost."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional

from hexa.comparison import unlabelled, verdict
from hexa.comparison.compare import CompareRequest, Comparison
from hexa.comparison.labelled import DECIDING
from hexa.comparison.verdict import Side
from hexa.data.views.evaluation import EvaluationTransform
from hexa.ops.photometric import unit
from hexa.reporting.gallery import as_pixels
from hexa.reporting.pictures import Gallery, Pixels
from hexa.reporting.report import picture, rendered
from hexa.reporting.style import COLOURS, MARKERS, MUTED, drawing
from hexa.reporting.tables import Table, text
from hexa.runtime.files import write_text, write_whole
from hexa.runtime.random import Stream

#: Images whose neighbours are shown, neighbours of each, the side of a picture in pixels, and images among which those
#: whose neighbours differ most are looked for.
_QUERIES, _NEAREST, _TILE, _SEARCHED = 4, 7, 72, 2000
#: Images on a map, classes that it colours, classes and duplicates that are listed, backbones that are drawn.
_MAPPED, _COLOURED, _LISTED, _DRAWN = 800, 8, 6, 4


def write(comparison: Comparison, request: CompareRequest, folder: Path) -> Path:
    """Write compare.json and compare.html into a folder, which is made; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "compare.json", json.dumps(comparison.record, indent=1) + "\n")
    asked = {name: value for name, value in vars(request).items() if value is not None and name != "backbones"}
    return page(comparison, folder / "compare.html", {**asked, "images": len(comparison.images)})


def page(comparison: Comparison, out: Path, asked: Mapping[str, Any]) -> Path:
    """Write one HTML file that needs no other. asked: what to show of the request, by label."""
    sides = comparison.sides[:_DRAWN]
    header, rows = verdict.table(comparison.sides, comparison.verdict)
    other = comparison.verdict.best or 1
    pair = comparison.sides[0], comparison.sides[other]
    some = torch.randperm(len(comparison.images), generator=Stream(0).child("shown").generator())[:_SEARCHED]
    survive = unlabelled.kept(pair[0].features, pair[1].features, rows=some).numpy()
    shown = {
        "title": f"{pair[0].name} beside {' and '.join(side.name for side in comparison.sides[1:])}",
        "verdict": comparison.verdict,
        "told": "better" if comparison.verdict.best is not None else "not told apart",
        "table": Table(tuple(header), tuple(map(tuple, rows))),
        "judged": comparison.judge is not None,
        "notes": comparison.notes,
        "closest": _closest(comparison, sides, some[:_QUERIES]),
        "moved": _closest(comparison, pair, some[np.argsort(survive, kind="stable")[:_QUERIES]]),
        "changed": f"{pair[0].name} and {pair[1].name} share {survive.mean():.0%} of all neighbourhoods",
        "maps": _maps(comparison, sides),
        "classes": _classes(comparison, pair),
        "duplicates": comparison.duplicates[: 3 * _LISTED],
        "twins": len(comparison.duplicates),
        "facts": [(name, text(value)) for name, value in asked.items()],
    }
    return write_whole(
        out, lambda file: file.write(rendered("compare.html", **shown).encode(errors="backslashreplace"))
    )


def _tiles(comparison: Comparison, places: Sequence[int]) -> Pixels:
    transform = EvaluationTransform(_TILE, 1.0)
    images = [unit(transform(comparison.images.decode(int(place)))) for place in places]
    return as_pixels(255 * torch.stack(images))


def _closest(comparison: Comparison, sides: Sequence[Side], queries: Tensor) -> Any:
    """A row for each of some images and each backbone: the image and those nearest to it, named by class if known."""
    near = [unlabelled.neighbours(side.features, _NEAREST, queries).tolist() for side in sides]
    classes, names = comparison.images.classes, comparison.images.class_names
    rows, captions, labels = [], [], []
    for row, query in enumerate(queries.tolist()):
        for side, nearest in zip(sides, near, strict=True):
            places = [query, *nearest[row]]
            rows.append(_tiles(comparison, places))
            labels.append(side.name)
            told = ["" if classes is None else names[classes[one]] if names else str(classes[one]) for one in places]
            captions.append(told)
    heads = ["image", *(str(number) for number in range(1, rows[0].shape[0]))]
    return picture(Gallery(np.stack(rows), heads, captions if classes is not None else (), labels))


def _maps(comparison: Comparison, sides: Sequence[Side]) -> str:
    """The images in two dimensions under each backbone (t-SNE, van der Maaten & Hinton 2008), as SVG."""
    count = len(comparison.images)
    order = torch.randperm(count, generator=Stream(0).child("map").generator())[:_MAPPED].sort().values
    classes, names = comparison.images.classes, comparison.images.class_names
    shown = np.zeros(len(order), np.int64) if classes is None else classes[order.numpy()]
    frequent = np.argsort(-np.bincount(shown), kind="stable")[: 0 if classes is None else _COLOURED]
    with drawing(len(sides), width=5.2, height=4.6) as (figure, axes):
        for ax, side in zip(axes, sides, strict=True):
            x = functional.normalize(side.features[order] - side.features.mean(0), dim=1).numpy()
            perplexity = min(30.0, (len(order) - 1) / 3)
            at = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(x)
            ax.scatter(at[:, 0], at[:, 1], s=7, color=MUTED, linewidths=0, alpha=0.5)
            for slot, label in enumerate(frequent):
                mine, name = at[shown == label], names[label] if names else str(label)
                ax.scatter(
                    mine[:, 0],
                    mine[:, 1],
                    s=14,
                    color=COLOURS[slot],
                    marker=MARKERS[slot % len(MARKERS)],
                    linewidths=0,
                    label=name,
                )
            ax.set(title=f"{side.name} ({side.size} px)", xticks=[], yticks=[])
            ax.grid(visible=False)
        if len(frequent):
            axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    made = file.getvalue()
    return made[made.index("<svg") :]


def _classes(comparison: Comparison, pair: tuple[Side, Side]) -> Table:
    """The classes whose k-NN accuracy gained and lost most."""
    judge, names = comparison.judge, comparison.images.class_names
    first, second = (side.scores for side in pair)
    if judge is None or first is None or second is None:
        return Table()
    labels, rows = judge.labels[judge.judged], []
    for label in np.unique(labels):
        before, after = (100 * float(one.right[DECIDING[0]][labels == label].mean()) for one in (first, second))
        rows.append(
            (after - before, names[label] if names else str(label), before, after, int((labels == label).sum()))
        )
    rows.sort(reverse=True)
    kept = rows if len(rows) <= 2 * _LISTED else [*rows[:_LISTED], *rows[-_LISTED:]]
    cells = [
        (name, str(count), f"{before:.0f}", f"{after:.0f}", f"{gain:+.0f}".replace("-", "−"))
        for gain, name, before, after, count in kept
        if gain
    ]
    return Table(("class", "images", f"{pair[0].name}, %", f"{pair[1].name}, %", "points"), tuple(cells))
