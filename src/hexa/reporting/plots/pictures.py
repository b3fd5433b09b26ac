"""Rows of pictures with captions and coloured frames: what galleries of any kind are drawn as."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hexa.reporting.gallery import Gallery
from hexa.reporting.plots.style import INK, MUTED, heading, note, panels, style

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
    with style():
        figure, axes = panels(
            columns * len(rows), width=side, height=side + 0.22 * any(row.captions for row in rows), rows=len(rows)
        )
        for number, ax in enumerate(axes):
            row, place = divmod(number, columns)
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_visible(False)
            if place >= len(rows[row].tiles):
                continue
            ax.imshow(rows[row].tiles[place], interpolation="nearest")
            frame = rows[row].frames[place] if rows[row].frames else None
            if frame is not None:
                for spine in ax.spines.values():
                    spine.set(visible=True, color=frame, linewidth=3)
            if rows[row].captions:
                ax.set_xlabel(rows[row].captions[place], fontsize=8, color=MUTED, labelpad=2)
            if heads and row == 0:
                ax.set_title("\n".join(textwrap.wrap(heads[place], int(12 * side))), fontsize=9, color=INK)
            if place == 0:
                ax.set_ylabel(rows[row].label, rotation=0, ha="right", va="center", fontsize=9)
        heading(figure, title)
        note(figure, remark)
    return figure


def hard_examples(gallery: Gallery, *, title: str = "", remark: str = "") -> Figure:
    """The grid of `hexa visualize` as a figure: view, perturbation, adversarial, cut-mixed …, a row an image."""
    rows = [
        PictureRow(
            "",
            np.stack([column.tiles[number] for column in gallery.columns]),
            [column.captions[number] for column in gallery.columns],
        )
        for number in range(gallery.num_images)
    ]
    return pictures(rows, heads=[column.title for column in gallery.columns], title=title, remark=remark, side=1.7)
