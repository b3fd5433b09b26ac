"""Galleries: rows of pictures with captions, drawn together, and stored as arrays for a report."""

from __future__ import annotations

import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hexa.reporting.style import INK, MUTED, drawing
from hexa.runtime.files import write_whole

MID_GREY = 128
#: The texts of a gallery, as they are stored.
_TEXTS = ("heads", "captions", "labels")
_MOST_BYTES = 64 * 1024**2
_MOST_TILES = 4096

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

    def store(self, path: Path) -> Path:
        """Write tiles and texts as .npz, atomically."""
        texts: dict[str, Any] = {
            name: np.array(getattr(self, name), dtype=np.str_) for name in _TEXTS
        }
        return write_whole(path, lambda file: np.savez_compressed(file, tiles=self.tiles, **texts))

    @classmethod
    def load(cls, path: Path) -> Gallery:
        """What `store` wrote. The file may be a stranger's: nothing in it is unpickled.

        Raises OSError, ValueError, and whatever a damaged archive leads zipfile and numpy to.
        """
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > _MOST_BYTES:
                raise ValueError(f"{path}: too large for a gallery")
        with np.load(path, allow_pickle=False) as stored:
            tiles, heads, captions, labels = (stored[name] for name in ("tiles", *_TEXTS))
        rows, columns, height, width, channels = tiles.shape
        fitting = (
            tiles.dtype == np.uint8
            and 0 < rows * columns <= _MOST_TILES
            and height == width > 0
            and channels == 3
            and heads.shape in ((0,), (columns,))
            and labels.shape in ((0,), (rows,))
            and captions.shape in ((0,), (rows, columns))
        )
        if not fitting:
            raise ValueError(f"{path}: not a gallery written by hexa")
        return cls(tiles, *(texts.astype(np.str_).tolist() for texts in (heads, captions, labels)))
