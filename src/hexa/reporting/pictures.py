"""Galleries: rows of pictures with captions, drawn together or shown in a page."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from hexa.reporting.rendering import data_uri
from hexa.reporting.style import INK, MUTED, drawing

MID_GREY = 128

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Gallery:
    """R rows of K pictures of S × S pixels. Texts are left out by default."""

    tiles: Pixels
    """uint8 [R, K, S, S, 3]; mid-grey where a row has fewer pictures."""
    heads: Sequence[str] = ()
    """K texts above the columns."""
    captions: Sequence[Sequence[str]] = ()
    """R rows of K texts below the pictures."""
    labels: Sequence[str] = ()
    """R texts at the left."""

    def draw(self, title: str = "", remark: str = "", *, side: float = 1.15) -> Figure:
        """The gallery as a figure, each picture `side` inches wide."""
        rows, columns = self.tiles.shape[:2]
        height = side + 0.22 * bool(self.captions)
        with drawing(rows * columns, title, remark, width=side, height=height, rows=rows) as (
            figure,
            axes,
        ):
            for place, ax in enumerate(axes):
                row, column = divmod(place, columns)
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
                ax.imshow(self.tiles[row, column])
                if self.captions:
                    ax.set_xlabel(self.captions[row][column], fontsize=8, color=MUTED, labelpad=2)
                if self.heads and row == 0:
                    ax.set_title(
                        textwrap.fill(self.heads[column], int(12 * side)), fontsize=9, color=INK
                    )
                if self.labels and column == 0:
                    ax.set_ylabel(self.labels[row], rotation=0, ha="right", va="center", fontsize=9)
        return figure


def encoded(tile: Pixels) -> str:
    """A picture as a data URI."""
    file = io.BytesIO()
    Image.fromarray(tile).save(file, format="png", optimize=True)
    return data_uri("image/png", file.getvalue())
