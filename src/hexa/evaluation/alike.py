"""Pairs of rows whose cosine is large, among hundreds of thousands, and groups of which all pairs are linked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hexa.config import UserError

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

#: Rows and columns of the tiles in which products are computed: 32 MB.
_ROWS = 1024
_COLUMNS = 8192
#: Columns left after the projection, and rows from which on it saves time.
_PROJECTED = 64
_MANY = 4096
#: Pairs that are kept at most: 16 bytes each.
_MOST_PAIRS = 10_000_000
#: What rounding may take from a cosine in float32.
ROUNDING = 1e-5


def unit(rows: NDArray[np.floating]) -> Floats:
    """The rows divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    directions: Floats = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return directions


def pairs_above(
    rows: Floats, least: float, others: Floats | None = None, *, once: bool = False
) -> tuple[Places, Places, Floats]:
    """All pairs with a cosine of at least `least`: places in `rows`, places in the others, cosines.

    rows: unit vectors [N, D]. others: unit vectors [M, D]; by default `rows` itself. once: each pair only with the
    smaller place first; always so without others. Nothing is lost by the projection: for unit vectors a and b with the parts a1, b1 in a subspace and the
    lengths a2, b2 of the rests, a·b <= a1·b1 + a2 b2 (Cauchy-Schwarz), so that 65 columns rule out almost all pairs.
    Raises UserError for more than ten million pairs.
    """
    least -= ROUNDING
    bank = rows if others is None else others
    once = once or others is None
    small = rows
    small_bank = bank
    if len(bank) > _MANY and rows.shape[1] > 2 * _PROJECTED:
        basis = _main_directions(bank)
        small = _projected(rows, basis)
        small_bank = _projected(bank, basis)
    found: list[tuple[Places, Places, Floats]] = [
        (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    ]
    count = 0
    for top, left in _tiles(len(rows), len(bank), upper=once):
        one = rows[top : top + _ROWS]
        other = bank[left : left + _COLUMNS]
        product = small[top : top + _ROWS] @ small_bank[left : left + _COLUMNS].T
        i, j = _entries_above(product, least)
        if small is not rows and len(i) > product.size / 200:  # cheaper than one by one
            i, j = _entries_above(one @ other.T, least)
        if once:
            later = top + i < left + j
            i = i[later]
            j = j[later]
        cosines = np.concatenate(
            [np.empty(0, np.float32)]
            + [
                np.einsum("nd,nd->n", one[i[start:end]], other[j[start:end]])
                for start, end in _pieces(len(i))
            ]
        )
        kept = cosines >= least
        count += int(kept.sum())
        if count > _MOST_PAIRS:
            raise UserError(
                f"more than {_MOST_PAIRS:,} pairs are at least this similar; raise --least"
            )
        found.append((top + i[kept], left + j[kept], cosines[kept]))
    first, second, cosine = (np.concatenate(part) for part in zip(*found, strict=True))
    return first, second, np.minimum(cosine, 1)


def _tiles(rows: int, columns: int, upper: bool) -> Iterator[tuple[int, int]]:
    for top in range(0, rows, _ROWS):
        for left in range(0, columns, _COLUMNS):
            if not upper or left + _COLUMNS > top:
                yield top, left


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, _COLUMNS):
        yield start, start + _COLUMNS


def _entries_above(product: Floats, least: float) -> tuple[Places, Places]:
    """Rows and columns of the entries that are large enough; most rows have none."""
    some = np.flatnonzero(product.max(1) >= least)
    i, j = np.nonzero(product[some] >= least)
    return some[i], j


def _main_directions(rows: Floats) -> Floats:
    """The 64 directions [D, 64] that hold most of the squared length of a sample of the rows."""
    sample = rows[:: max(1, len(rows) // _MANY)]
    _, vectors = np.linalg.eigh(sample.T @ sample)
    return np.ascontiguousarray(vectors[:, -_PROJECTED:], dtype=np.float32)


def _projected(rows: Floats, basis: Floats) -> Floats:
    """Coordinates in the basis, and the length of the rest [N, 65]."""
    coordinates = rows @ basis
    rest = np.sqrt(np.maximum(1 - (coordinates**2).sum(1, keepdims=True), 0))
    return np.concatenate([coordinates, rest], 1)


def kth_largest(rows: Floats, bank: Floats, k: int, own: Places | None = None) -> Floats:
    """The k-th largest cosine of each of `rows` to those of `bank`, without the row's own place in it.

    own: that place, int64 [N], or −1 for rows that are not in the bank.
    """
    found = np.empty(len(rows), np.float32)
    for top in range(0, len(rows), _ROWS):
        product = rows[top : top + _ROWS] @ bank.T
        if own is not None:
            here = own[top : top + _ROWS]
            inside = np.flatnonzero(here >= 0)
            product[inside, here[inside]] = -np.inf
        found[top : top + _ROWS] = np.partition(product, -k, axis=1)[:, -k]
    return found


def complete_groups(
    first: Places, second: Places, similarity: NDArray[np.floating], count: int
) -> list[Places]:
    """Groups of two or more of `count` places, of which all pairs are linked; the most similar pairs join first.

    first, second, similarity: the links, each once. Agglomerative clustering with complete linkage, in which pairs that
    are not linked never join.
    """
    ends = np.concatenate([first, second])
    order = np.argsort(ends, kind="stable")
    linked = np.concatenate([second, first])[order]
    starts = np.searchsorted(ends[order], np.arange(count + 1))
    members: dict[int, Places] = {}
    common: dict[int, Places] = {}  # places that are linked with all members
    group_of = np.arange(count)

    def group(place: int) -> tuple[Places, Places]:
        if place not in members:
            members[place] = np.array([place])
            common[place] = np.sort(linked[starts[place] : starts[place + 1]])
        return members[place], common[place]

    for link in np.argsort(-similarity, kind="stable"):
        one = int(group_of[first[link]])
        other = int(group_of[second[link]])
        if one == other:
            continue
        mine, ours = group(one)
        theirs, known = group(other)
        if not np.isin(theirs, ours, assume_unique=True).all():
            continue
        members[one] = np.concatenate([mine, theirs])
        common[one] = np.intersect1d(ours, known, assume_unique=True)
        group_of[theirs] = one
        del members[other], common[other]
    return [np.sort(places) for places in members.values() if len(places) > 1]


def components(first: Places, second: Places, count: int) -> Places:
    """The connected component of each of `count` places, named by its smallest place."""
    label = np.arange(count)
    while True:
        before = label.copy()
        least = np.minimum(label[first], label[second])
        np.minimum.at(label, first, least)
        np.minimum.at(label, second, least)
        label = label[label]
        if (label == before).all():
            return label
