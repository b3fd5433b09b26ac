"""Rows of pictures with captions and coloured frames: what galleries of any kind are drawn as."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hexa.reporting.gallery import Gallery
from hexa.reporting.style import INK, MUTED, drawing

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class PictureRow:
    """tiles: uint8 [K, S, S, 3]; captions and frames (a colour, or none) one a tile; label: left of the row."""

    label: str
    tiles: Pixels
    captions: Sequence[str] = ()
    frames: Sequence[str | None] = ()


def pictures(
    rows: Sequence[PictureRow], *, heads: Sequence[str] = (), title: str = "", remark: str = "", side: float = 1.15
) -> Figure:
    """A grid of pictures, each `side` inches wide. heads: above the columns."""
    columns = max(len(row.tiles) for row in rows)
    height = side + 0.22 * any(row.captions for row in rows)
    with drawing(columns * len(rows), title, remark, width=side, height=height, rows=len(rows)) as (figure, axes):
        for number, ax in enumerate(axes):
            row, place = rows[number // columns], number % columns
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if place >= len(row.tiles):
                continue
            ax.imshow(row.tiles[place], interpolation="nearest")
            if row.frames and row.frames[place] is not None:
                ax.spines[:].set(visible=True, color=row.frames[place], linewidth=3)
            if row.captions:
                ax.set_xlabel(row.captions[place], fontsize=8, color=MUTED, labelpad=2)
            if heads and number < columns:
                ax.set_title(textwrap.fill(heads[place], int(12 * side)), fontsize=9, color=INK)
            if place == 0:
                ax.set_ylabel(row.label, rotation=0, ha="right", va="center", fontsize=9)
    return figure


def hard_examples(gallery: Gallery, *, title: str = "", remark: str = "") -> Figure:
    """The grid of `hexa visualize` as a figure: view, perturbation, adversarial, cut-mixed …, one row per image."""
    columns = gallery.columns
    rows = [
        PictureRow("", np.stack([column.tiles[n] for column in columns]), [column.captions[n] for column in columns])
        for n in range(gallery.num_images)
    ]
    return pictures(rows, heads=[column.title for column in columns], title=title, remark=remark, side=1.7)
