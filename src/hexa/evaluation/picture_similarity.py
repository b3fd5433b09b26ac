"""Similarity of two pictures by their thumbnails, also if one is mirrored or a part of the other."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from hexa.evaluation.alike import Floats, Places, unit
from hexa.evaluation.feature_file import THUMBNAIL

#: Side of the pictures whose steps are compared.
_SIDE = 16
#: Sides of a part of a picture, as shares of the whole.
_SHARES = (0.97, 0.94, 0.91, 0.88, 0.85, 0.8)
#: Where a part lies in what is left: at the ends or in the middle.
_OFFSETS = (0.0, 0.5, 1.0)
#: Grey levels of steps below which pictures count as flat and are compared by their colour.
_FLAT = 1.0
#: Images that are described at a time.
_BLOCK = 4096


class Pictures:
    """Pictures to compare: thumbnails, uint8 [N, 32, 32], and means of red, green and blue, [N, 3]."""

    def __init__(self, thumbnails: NDArray[np.uint8], colours: Floats) -> None:
        self.thumbnails = thumbnails
        self.colours = colours
        whole = _averages(0, 1)
        plain = []
        mirrored = []
        for start in range(0, len(thumbnails), _BLOCK):
            block = slice(start, start + _BLOCK)
            pictures = thumbnails[block].astype(np.float32)
            small = (whole @ pictures @ whole.T).astype(np.float32)
            plain.append(_described(small, colours[block]))
            mirrored.append(_described(small[..., ::-1], colours[block]))
        #: Unit vectors [N, 484] of the pictures and of their mirror images, whose products are similarities.
        self.plain = np.concatenate(plain)
        self.mirrored = np.concatenate(mirrored)

    def aligned(self, first: Places, second: Places) -> Floats:
        """The similarity of pairs of pictures, at most 1: the largest over mirroring and parts of one of the two.

        first, second: their places, int64 [n]. Parts have from 80 % of the sides on.
        """
        one = self._of_parts(first, second)
        other = self._of_parts(second, first)
        return np.maximum(one, other)

    def _of_parts(self, cut: Places, whole: Places) -> Floats:
        """The largest similarity of parts of the pictures `cut` to the whole pictures, also mirrored."""
        found = np.empty(len(cut), np.float32)
        rows, columns = _parts()
        order = np.argsort(cut, kind="stable")
        starts = np.flatnonzero(np.diff(cut[order], prepend=-1))
        for links in np.split(order, starts[1:]) if len(cut) else ():
            place = cut[links[0]]
            picture = self.thumbnails[place].astype(np.float32)
            parts = rows @ picture @ columns.transpose(0, 2, 1)
            colours = np.tile(self.colours[place], (len(parts), 1))
            vectors = _described(parts, colours)
            others = whole[links]
            plain = vectors @ self.plain[others].T
            mirrored = vectors @ self.mirrored[others].T
            best = np.maximum(plain, mirrored)
            found[links] = best.max(0)
        return np.minimum(found, 1)


def _described(pictures: Floats, colours: Floats) -> Floats:
    """Unit vectors [n, 484] of pictures [n, 16, 16] and their colours [n, 3].

    A vector has the horizontal and vertical steps between neighbours, which neither brightness nor contrast changes,
    and in four more entries, as long as steps of 1/255, the colour, which decides if there are no steps.
    """
    count = len(pictures)
    across = np.diff(pictures, axis=2).reshape(count, -1)
    down = np.diff(pictures, axis=1).reshape(count, -1)
    steps = np.concatenate([across, down], axis=1)
    length = _FLAT * np.sqrt(steps.shape[1])
    ones = np.ones((len(colours), 1))
    ends = np.concatenate([ones, (colours - 128) / 64], axis=1)
    vectors = np.concatenate([steps, length * ends], axis=1)
    return unit(vectors)


def _averages(start: float, stop: float) -> Floats:
    """Weights [16, 32] that average pixels from `start` to `stop`, shares of the side, into 16 equal cells."""
    edges = np.linspace(start * THUMBNAIL, stop * THUMBNAIL, _SIDE + 1)
    pixels = np.arange(THUMBNAIL)
    ends = np.minimum(edges[1:, None], pixels + 1)
    starts = np.maximum(edges[:-1, None], pixels)
    weights = np.maximum(ends - starts, 0)
    shares: Floats = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return shares


@functools.cache
def _parts() -> tuple[Floats, Floats]:
    """Weights of rows and of columns [P, 16, 32] of the whole picture and of all parts."""
    rows = [_averages(0, 1)]
    columns = [_averages(0, 1)]
    for share, top, left in itertools.product(_SHARES, _OFFSETS, _OFFSETS):
        free = 1 - share
        first_row = top * free
        first_column = left * free
        rows.append(_averages(first_row, first_row + share))
        columns.append(_averages(first_column, first_column + share))
    return np.stack(rows), np.stack(columns)
