"""Similarity of two pictures by their thumbnails, also if one is mirrored or a part of the other."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from hexa.evaluation.alike import Floats, Places, unit
from hexa.evaluation.appearance import THUMBNAIL

#: Side of the pictures whose steps are compared.
_SIDE = 16
#: Sides of a part of a picture, as shares of the whole, and where it lies in what is left: at the ends or in the middle.
_SHARES = (0.97, 0.94, 0.91, 0.88, 0.85, 0.8)
_OFFSETS = (0.0, 0.5, 1.0)
#: Grey levels of steps below which pictures count as flat and are compared by their colour.
_FLAT = 1.0
#: Images that are described at a time, and of which all parts are compared at a time.
_BLOCK = 4096
_CHUNK = 32


def descriptors(thumbnails: NDArray[np.uint8], colours: Floats) -> tuple[Floats, Floats]:
    """Unit vectors [N, 484] of pictures and of their mirror images, whose products are similarities.

    thumbnails: uint8 [N, 32, 32]. colours: means of red, green and blue, [N, 3]. A vector has the horizontal and
    vertical steps between neighbours at 16 x 16 pixels, which neither brightness nor contrast changes, and in four more
    entries, as long as steps of one grey level, the colour, which decides if there are no steps.
    """
    length = 2 * _SIDE * (_SIDE - 1) + 4
    plain = np.empty((len(thumbnails), length), np.float32)
    mirrored = np.empty_like(plain)
    whole = _whole()
    for start in range(0, len(thumbnails), _BLOCK):
        block = slice(start, start + _BLOCK)
        small = whole @ thumbnails[block].astype(np.float32) @ whole.T
        plain[block] = _described(small, colours[block])
        mirrored[block] = _described(small[..., ::-1], colours[block])
    return plain, mirrored


def _described(pictures: Floats, colours: Floats) -> Floats:
    across = np.diff(pictures, axis=-1)
    down = np.diff(pictures, axis=-2)
    steps = np.concatenate(
        [one.reshape(*pictures.shape[:-2], _SIDE * (_SIDE - 1)) for one in (across, down)], axis=-1
    )
    length = _FLAT * np.sqrt(steps.shape[-1])
    ends = np.concatenate([np.ones_like(colours[..., :1]), (colours - 128) / 64], axis=-1)
    return unit(np.concatenate([steps, length * ends], axis=-1))


@functools.cache
def _whole() -> Floats:
    return _averages(0.0, 1.0)


def _averages(start: float, stop: float) -> Floats:
    """Weights [16, 32] that average pixels from `start` to `stop`, shares of the side, into 16 equal cells."""
    edges = np.linspace(start * THUMBNAIL, stop * THUMBNAIL, _SIDE + 1)
    pixels = np.arange(THUMBNAIL)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights = np.maximum(covered, 0)
    shares: Floats = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return shares


@functools.cache
def _parts() -> tuple[Floats, Floats]:
    """Weights of rows and of columns [P, 16, 32] of the whole picture and of all parts."""
    rows = [_whole()]
    columns = [_whole()]
    for share, top, left in itertools.product(_SHARES, _OFFSETS, _OFFSETS):
        free = 1 - share
        rows.append(_averages(top * free, top * free + share))
        columns.append(_averages(left * free, left * free + share))
    return np.stack(rows), np.stack(columns)


def aligned(
    thumbnails: NDArray[np.uint8], colours: Floats, first: Places, second: Places
) -> Floats:
    """The similarity of pairs of pictures, at most 1: the largest over mirroring and parts of one of the two.

    first, second: their places, int64 [n]. Parts have from 80 % of the sides on.
    """
    one = _of_parts(thumbnails, colours, first, second)
    return np.maximum(one, _of_parts(thumbnails, colours, second, first))


def _of_parts(thumbnails: NDArray[np.uint8], colours: Floats, cut: Places, whole: Places) -> Floats:
    """The largest similarity of parts of the pictures `cut` to the whole pictures, also mirrored."""
    found = np.empty(len(cut), np.float32)
    order = np.argsort(cut, kind="stable")
    distinct, starts = np.unique(cut[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    rows, columns = _parts()
    for begin in range(0, len(distinct), _CHUNK):
        chunk = distinct[begin : begin + _CHUNK]
        pictures = thumbnails[chunk, None].astype(np.float32)  # [n, 1, 32, 32]
        parts = np.matmul(rows @ pictures, columns.transpose(0, 2, 1))  # [n, P, 16, 16]
        shown = np.broadcast_to(colours[chunk, None], (*parts.shape[:2], 3))
        vectors = _described(parts, shown)
        for number in range(len(chunk)):
            links = order[starts[begin + number] : ends[begin + number]]
            plain, mirrored = descriptors(thumbnails[whole[links]], colours[whole[links]])
            best = np.maximum(vectors[number] @ plain.T, vectors[number] @ mirrored.T)
            found[links] = best.max(0)
    return np.minimum(found, 1)
