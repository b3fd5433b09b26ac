"""Near-duplicates, outliers and similar images, found by the features of a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.evaluation import feature_file
from hexa.evaluation.alike import (
    Floats,
    Places,
    complete_groups,
    components,
    kth_largest,
    pairs_above,
    unit,
)
from hexa.evaluation.feature_file import FeatureFile
from hexa.evaluation.picture_similarity import aligned, descriptors
from hexa.runtime.paths import composed, location

#: The similarity of duplicates by default: of thumbnails, and of features if a file has no thumbnails.
LEAST_PICTURES = 0.9
LEAST_FEATURES = 0.95
#: Pairs are aligned, which is slow, if their features have this cosine or their thumbnails this similarity without.
_LIKELY_FEATURES = 0.75
_LIKELY_PICTURES = 0.75
#: Likely pairs at most, per image in the mean and in all: if there are more, these numbers must be larger.
_LIKELY_PAIRS = 10
_MOST_LIKELY = 100_000
#: Rows by which the number of likely pairs is estimated.
_SAMPLED = 256
#: All pairs of images are aligned that are linked by others, if these are not more.
_LINKED = 200
#: The neighbour whose distance counts for outliers, and the images that it is looked for among.
_NEIGHBOUR = 5
_REFERENCES = 4096
#: Robust standard deviations that one statistic counts for at most.
_FARTHEST = 4
#: Neighbours of an outlier that are named.
_NAMED = 4


@dataclass(frozen=True)
class Found:
    """Images that belong together or stand alone.

    places: theirs in the file, or in both files one after the other. similarity: of the most similar pair of a group,
    of an outlier with its fifth nearest image, or of the image with the one that was asked for. lowest: of the least
    similar pair of a group. score: of an outlier, by how many robust standard deviations the logarithm of its distance
    exceeds the median; reason: "features" or "picture", what this distance is of. nearest: places of the images nearest
    to an outlier.
    """

    paths: list[str]
    places: list[int]
    similarity: float
    lowest: float | None = None
    score: float | None = None
    reason: str | None = None
    nearest: list[int] | None = None


class Features:
    """The images of a file of features; similarities are cosines of the features as they are.

    Their mean is not removed: in a folder of duplicates alone it would be all that there is.
    """

    def __init__(self, source: Path | str | FeatureFile) -> None:
        """Raises UserError for a file that cannot be read or has other contents."""
        self.file = source if isinstance(source, FeatureFile) else feature_file.read(source)
        self.paths = self.file.paths
        self.directions = unit(self.file.features)

    @property
    def least(self) -> float:
        """The similarity of duplicates by default."""
        return LEAST_PICTURES if self.has_pictures else LEAST_FEATURES

    @property
    def has_pictures(self) -> bool:
        """True if the file has what pictures are compared by."""
        return self.file.thumbnails is not None and self.file.statistics is not None

    def duplicates(self, least: float | None = None) -> list[Found]:
        """Groups of images of which every pair is a duplicate; the most similar pairs first.

        Duplicates have equal pixels or a similarity of at least `least`: that of their thumbnails (`aligned`) or, if
        the file has none, of their features. Thumbnails are aligned if they or the features are somewhat similar.
        """
        least = _checked(self.least if least is None else least)
        keepers, copies = _copies(self.file)
        first, second, similarity = _links(self, least, keepers)
        groups = complete_groups(first, second, similarity, len(keepers))
        grouped = np.zeros(len(keepers), bool)
        found = []
        for group in groups:
            grouped[group] = True
            inside = np.isin(first, group) & np.isin(second, group)
            found.append(self._group(group, similarity[inside], keepers, copies))
        alone = ~grouped & (np.bincount(copies, minlength=len(keepers)) > 1)
        found += [
            self._group(np.array([place]), np.ones(1), keepers, copies)
            for place in np.flatnonzero(alone)
        ]
        return sorted(found, key=lambda group: (-group.similarity, group.places[0]))

    def _group(
        self, group: Places, similarity: NDArray[np.floating], keepers: Places, copies: Places
    ) -> Found:
        """A group of distinct images together with their copies."""
        places = np.flatnonzero(np.isin(copies, group)).tolist()
        highest = 1.0 if len(places) > len(group) else float(similarity.max())
        lowest = float(similarity.min())
        return Found([self.paths[place] for place in places], places, highest, lowest)

    def outliers(self, count: int = 20) -> list[Found]:
        """The images that are farthest from their fifth nearest image, farthest first.

        There are two orders, by the distance of features (1 − cosine) and, if the file has them, by that of statistics
        of the picture; images come in turn from the one and the other. If there are more than 8,192 images, distances
        are to 4,096 of them or more.
        """
        step = max(1, len(self.paths) // _REFERENCES)
        bank = np.arange(0, len(self.paths), step)
        own = np.full(len(self.paths), -1)
        own[bank] = np.arange(len(bank))
        k = min(_NEIGHBOUR, len(bank) - 1)
        similarity = kth_largest(self.directions, self.directions[bank], k, own)
        scores = [_deviations(1 - similarity)]
        if self.file.statistics is not None:
            positions = _standardised(self.file.statistics)
            scores.append(_deviations(_kth_distance(positions, positions[bank], k, own)))
        ranks = [_ranks(one) + number / 2 for number, one in enumerate(scores)]
        best = np.argmin(ranks, axis=0)
        order = np.argsort(np.min(ranks, axis=0), kind="stable")[:count]
        nearest = self._nearest(self.directions[order], _NAMED + 1)
        return [
            Found(
                [self.paths[place]],
                [int(place)],
                float(similarity[place]),
                score=float(scores[best[place]][place]),
                reason=("features", "picture")[best[place]],
                nearest=[other for other, _ in near if other != place][:_NAMED],
            )
            for place, near in zip(order, nearest, strict=True)
        ]

    def _nearest(self, directions: Floats, count: int) -> list[list[tuple[int, float]]]:
        """Places and cosines of the nearest images of each row."""
        cosines = directions @ self.directions.T
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        return [
            [(int(place), float(cosines[row, place])) for place in places]
            for row, places in enumerate(order)
        ]

    def find(self, path: str) -> int | None:
        """The place of the image of this path, which may have folders before it; None if there is none.

        A file that exists, but elsewhere than the images were, is not one of them.
        """
        if path in self.paths:
            return self.paths.index(path)
        asked = composed(path)
        names = [composed(one) for one in self.paths]
        if asked in names:
            return names.index(asked)
        known = [place for place, one in enumerate(names) if f"/{asked}".endswith(f"/{one}")]
        if not known:
            return None
        place = max(known, key=lambda one: len(names[one]))
        home = (self.file.origin or {}).get("folder")
        file = location(path)
        if isinstance(home, str) and file.exists():
            theirs = os.path.join(home, self.paths[place])
            if not os.path.exists(theirs) or not os.path.samefile(file, theirs):
                return None
        return place

    def place_of(self, path: str) -> int:
        """The place of the image of this path. Raises UserError if there is none."""
        place = self.find(path)
        if place is None:
            raise UserError(
                f"--like {path}: no image of that path in {self.file.path}, and no such file; paths in "
                f"it are such as {self.paths[0]}"
            )
        return place

    def closest(self) -> float:
        """The largest cosine of features of two images."""
        own = np.arange(len(self.paths))
        step = max(1, len(own) // _REFERENCES)
        return float(kth_largest(self.directions[::step], self.directions, 1, own[::step]).max())

    def like(self, asked: str | NDArray[np.floating], count: int = 10) -> list[Found]:
        """The images with the largest cosine to one, largest first. Raises UserError for an unknown path.

        asked: its path, or the features [D] of an image that is not in the file.
        """
        inside = self.place_of(asked) if isinstance(asked, str) else -1
        row = unit(asked) if isinstance(asked, np.ndarray) else self.directions[inside]
        near = self._nearest(row[None], count + 1)[0]
        return [
            Found([self.paths[place]], [place], similarity)
            for place, similarity in near
            if place != inside
        ][:count]


def shared(one: Features, other: Features, least: float | None = None) -> list[Found]:
    """The images of `other` that are duplicates of images of `one`, each followed by these; the most similar first.

    Places continue from `one` to `other`. Raises UserError if the features are of different backbones.
    """
    together = Features(_joined(one.file, other.file))
    least = _checked(together.least if least is None else least)
    keepers, copies = _copies(together.file)
    first, second, similarity = _links(together, least, keepers)
    neighbours: list[dict[int, float]] = [{place: 1.0} for place in range(len(keepers))]
    for a, b, value in zip(first.tolist(), second.tolist(), similarity.tolist(), strict=True):
        neighbours[a][b] = neighbours[b][a] = value
    members = np.split(np.argsort(copies, kind="stable"), np.cumsum(np.bincount(copies))[:-1])
    found = []
    for place in range(len(one.paths), len(together.paths)):
        near = [
            (value, int(member))
            for keeper, value in neighbours[copies[place]].items()
            for member in members[keeper]
            if member < len(one.paths)
        ]
        if near:
            near.sort(key=lambda pair: (-pair[0], pair[1]))
            places = [place, *(member for _, member in near)]
            names = [together.paths[member] for member in places]
            found.append(Found(names, places, near[0][0], near[-1][0]))
    return sorted(found, key=lambda group: (-group.similarity, group.places[0]))


def _joined(one: FeatureFile, other: FeatureFile) -> FeatureFile:
    """Two files as one; optional arrays if both have them."""
    weights = [(file.origin or {}).get("weights") for file in (one, other)]
    dimensions = [file.features.shape[1] for file in (one, other)]
    if dimensions[0] != dimensions[1] or (None not in weights and weights[0] != weights[1]):
        raise UserError(
            f"{one.path} and {other.path} hold features of different backbones; embed both with one"
        )
    arrays: dict[str, Any] = {}
    for name in ("digests", "thumbnails", "statistics", "previews", "preview_ends"):
        both = [getattr(one, name), getattr(other, name)]
        if any(part is None for part in both):
            arrays[name] = None
            continue
        if name == "preview_ends":
            both[1] = both[1] + both[0][-1]
        arrays[name] = np.concatenate(both)
    features = np.concatenate([one.features, other.features])
    return replace(one, features=features, paths=one.paths + other.paths, origin=None, **arrays)


def _checked(least: float) -> float:
    if not -1 <= least <= 1:
        raise UserError(f"--least must be a similarity, from -1 to 1, got {least:g}")
    return least


def _copies(file: FeatureFile) -> tuple[Places, Places]:
    """Places of images with distinct pixels [K], and for each of the N images the one in 0 … K − 1 that it equals."""
    count = len(file.paths)
    if file.digests is None:
        return np.arange(count), np.arange(count)
    whole = np.ascontiguousarray(file.digests).view(f"V{file.digests.shape[1]}")[:, 0]
    _, keepers, copies = np.unique(whole, return_index=True, return_inverse=True)
    return keepers, copies


def _links(
    features: Features, least: float, keepers: Places
) -> tuple[Places, Places, NDArray[np.floating]]:
    """All pairs of the K images at `keepers` that are duplicates, each once: places in 0 … K − 1, and similarities."""
    rows = features.directions[keepers]
    file = features.file
    if file.thumbnails is None or file.statistics is None:
        return pairs_above(rows, least)
    thumbnails = file.thumbnails[keepers]
    colours = file.statistics[keepers, :3]
    plain, mirrored = descriptors(thumbnails, colours)
    first, second = _distinct(
        len(rows),
        pairs_above(rows, _likely(rows, rows, _LIKELY_FEATURES)),
        pairs_above(plain, min(least, _likely(plain, plain, _LIKELY_PICTURES))),
        pairs_above(
            plain, min(least, _likely(plain, mirrored, _LIKELY_PICTURES)), mirrored, once=True
        ),
    )
    similarity = aligned(thumbnails, colours, first, second)
    kept = similarity >= least
    # duplicates of one image are likely duplicates of each other: align these too
    linked = _within(components(first[kept], second[kept], len(rows)))
    every = _distinct(len(rows), (first, second), linked)
    new = ~np.isin(every[0] * len(rows) + every[1], first * len(rows) + second)
    further = every[0][new], every[1][new]
    similarity = np.concatenate([similarity, aligned(thumbnails, colours, *further)])
    first = np.concatenate([first, further[0]])
    second = np.concatenate([second, further[1]])
    kept = similarity >= least
    return first[kept], second[kept], similarity[kept]


def _likely(rows: Floats, others: Floats, least: float) -> float:
    """The similarity from which on a pair is aligned: `least` or, if too many pairs reach it, more.

    Larger, that is, for networks under which all images are alike.
    """
    sample = np.arange(0, len(rows), max(1, len(rows) // _SAMPLED))
    product = rows[sample] @ others.T
    product[np.arange(len(sample)), sample] = -1
    pairs = min(_LIKELY_PAIRS * len(sample), _MOST_LIKELY * len(sample) // len(rows))
    kept = min(max(pairs, 1), product.size)
    return max(least, float(np.partition(product, -kept, axis=None)[-kept]))


def _distinct(count: int, *pairs: tuple[Any, ...]) -> tuple[Places, Places]:
    """Each unordered pair of different places once, of pairs (first, second, …) of `count` places."""
    first = np.concatenate([one[0] for one in pairs])
    second = np.concatenate([one[1] for one in pairs])
    low = np.minimum(first, second)
    high = np.maximum(first, second)
    keys = np.unique((low * count + high)[low < high])
    return keys // count, keys % count


def _within(component: Places) -> tuple[Places, Places]:
    """All pairs of places in each component that is not large."""
    order = np.argsort(component, kind="stable")
    _, starts, sizes = np.unique(component[order], return_index=True, return_counts=True)
    pairs = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for start, size in zip(starts, sizes, strict=True):
        if 2 < size <= _LINKED:
            places = order[start : start + size]
            low, high = np.triu_indices(size, 1)
            pairs.append((places[low], places[high]))
    first, second = zip(*pairs, strict=True)
    return np.concatenate(first), np.concatenate(second)


def _deviations(distances: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return how far logarithms of distances exceed their median, in robust standard deviations."""
    logarithms = np.log(np.maximum(distances, 0) + 1e-4).astype(np.float64)
    apart: NDArray[np.float64] = logarithms - np.median(logarithms)
    return apart / max(1.4826 * float(np.median(np.abs(apart))), 0.05)


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 for the highest score, 1 for the next."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return ranks


def _standardised(statistics: Floats) -> Floats:
    """Statistics [N, 12] with one mean grey level in place of three colours, in robust standard deviations [N, 10]."""
    numbers = np.concatenate([statistics[:, :3].mean(1, keepdims=True), statistics[:, 3:]], axis=1)
    middle = np.median(numbers, axis=0)
    deviation = 1.4826 * np.median(np.abs(numbers - middle), axis=0)
    scaled: Floats = np.clip(
        (numbers - middle) / np.maximum(deviation, 1e-3), -_FARTHEST, _FARTHEST
    )
    return scaled.astype(np.float32)


def _kth_distance(rows: Floats, bank: Floats, k: int, own: Places) -> Floats:
    """The Euclidean distance of each row to the k-th nearest of `bank`, without itself."""
    # |a − b|² = |a|² − (2 a·b − |b|²), whose bracket is a product of longer rows
    longer = np.concatenate([2 * rows, -np.ones((len(rows), 1), np.float32)], axis=1)
    others = np.concatenate([bank, (bank**2).sum(1, keepdims=True)], axis=1)
    largest = kth_largest(longer, others, k, own)
    distances: Floats = np.sqrt(np.maximum((rows**2).sum(1) - largest, 0))
    return distances
