"""Similar rows among hundreds of thousands, by cosine, and groups of which all pairs are linked."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hexa.config import UserError

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

#: Rows and columns of the tiles in which products are computed: 32 MB.
_ROWS = 1024
_COLUMNS = 8192
#: Pairs that are kept at most; sets of their places take 200 bytes each.
_MOST_PAIRS = 2_000_000
#: What rounding may take from a cosine in float32.
ROUNDING = 1e-5


def unit(rows: NDArray[np.floating]) -> Floats:
    """The rows divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    directions: Floats = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return directions


def pairs_above(
    rows: Floats,
    least: float,
    others: Floats | None = None,
) -> tuple[Places, Floats]:
    """All pairs i < j of the N rows with a cosine of at least `least`: their numbers i · N + j, and cosines.

    rows: unit vectors [N, D]. others: unit vectors [N, D] of the second of a pair; by default `rows`. Raises UserError
    for more than two million pairs.
    """
    bank = rows if others is None else others
    pairs = [np.empty(0, np.int64)]
    cosines = [np.empty(0, np.float32)]
    count = 0
    corners = itertools.product(range(0, len(rows), _ROWS), range(0, len(rows), _COLUMNS))
    for top, left in corners:
        if left + _COLUMNS <= top:  # wholly below the diagonal
            continue
        product = rows[top : top + _ROWS] @ bank[left : left + _COLUMNS].T
        i, j = np.nonzero(product >= least - ROUNDING)
        later = top + i < left + j
        i = i[later]
        j = j[later]
        first = top + i
        second = left + j
        pairs.append(first * len(rows) + second)
        cosines.append(product[i, j])
        count += len(i)
        if count > _MOST_PAIRS:
            raise UserError(
                f"more than {_MOST_PAIRS:,} pairs are at least this similar; raise --least"
            )
    return np.concatenate(pairs), np.minimum(np.concatenate(cosines), 1)


def complete_groups(
    pairs: Places,
    similarity: NDArray[np.floating],
    count: int,
) -> list[list[int]]:
    """Groups of two or more of `count` places, of which all pairs are linked; the most similar pairs join first.

    pairs: numbers i · count + j of the links, each once, with their similarity. Agglomerative clustering with complete
    linkage, in which pairs that are not linked never join.
    """
    common: list[set[int]] = [set() for _ in range(count)]  # linked with all members of a group
    links = pairs[np.argsort(-similarity, kind="stable")].tolist()
    for link in links:
        first, second = divmod(link, count)
        common[first].add(second)
        common[second].add(first)
    members = [{place} for place in range(count)]
    group_of = list(range(count))
    for link in links:
        one, other = (group_of[place] for place in divmod(link, count))
        if one != other and members[other] <= common[one]:
            for place in members[other]:
                group_of[place] = one
            members[one] |= members[other]
            common[one] &= common[other]
            members[other] = set()
    return [sorted(group) for group in members if len(group) > 1]


def components(pairs: Places, count: int) -> Places:
    """The number of the connected component of each of `count` places. pairs: i · count + j."""
    ends = np.divmod(pairs, count)
    links = coo_array((np.ones(len(pairs)), ends), shape=(count, count))
    found: Places = connected_components(links, directed=False)[1]
    return found
