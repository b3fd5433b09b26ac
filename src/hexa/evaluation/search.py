"""Near-duplicates, outliers and similar images, found by the features of a file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from hexa.config import UserError
from hexa.evaluation import feature_file
from hexa.evaluation.alike import Floats, Places, complete_groups, components, pairs_above, unit
from hexa.evaluation.feature_file import FeatureFile
from hexa.evaluation.picture_similarity import Pictures
from hexa.runtime.paths import composed, location

#: The similarity of duplicates by default: of thumbnails, and of features if a file has no thumbnails.
LEAST_PICTURES = 0.9
LEAST_FEATURES = 0.95
#: Pairs are aligned, which is slow, if their features or their thumbnails as they are have this similarity.
_LIKELY = 0.75
#: Likely pairs at most, per image in the mean and in all: if there are more, `_LIKELY` is raised.
_LIKELY_PAIRS = 10
_MOST_LIKELY = 100_000
#: Rows by which the number of likely pairs is estimated.
_SAMPLED = 256
#: All pairs of images are aligned that are linked by others, if these are not more.
_LINKED = 200
#: The neighbour whose distance counts for outliers.
_NEIGHBOUR = 5
#: Images that it is looked for among: between this number and twice as many.
_REFERENCES = 4096
#: Robust standard deviations that one statistic counts for at most.
_FARTHEST = 4
#: Neighbours of an outlier that are named.
_NAMED = 4


@dataclass(frozen=True)
class Found:
    """Images that belong together or stand alone."""

    paths: list[str]
    places: list[int]
    """Places of the images in the file, or in both files one after the other."""
    similarity: float
    """Similarity of the group's closest pair, of an outlier to its fifth nearest image, or to the given image."""
    lowest: float | None = None
    """Similarity of the least similar pair of a group."""
    score: float | None = None
    """Robust standard deviations by which the logarithm of an outlier's distance exceeds the median."""
    reason: str | None = None
    """The distance of the score: of "features" or of the "picture"."""
    nearest: list[int] | None = None
    """Places of the images nearest to an outlier."""


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
        return LEAST_FEATURES if self.file.pictures is None else LEAST_PICTURES

    def duplicates(self, least: float | None = None) -> list[Found]:
        """Groups of images of which every pair is a duplicate; the most similar pairs first.

        Duplicates have equal pixels or a similarity of at least `least`: that of their thumbnails (`aligned`) or, if
        the file has none, of their features. Thumbnails are aligned if they or the features are somewhat similar.
        """
        members = _copies(self.file)
        links, similarity = _links(self, least, members)
        groups = complete_groups(links, similarity, len(members))
        alone = {*range(len(members))}.difference(*groups)
        groups += [[place] for place in alone if len(members[place]) > 1]
        first, second = np.divmod(links, len(members))
        found = []
        for group in groups:
            inside = similarity[np.isin(first, group) & np.isin(second, group)]
            places = sorted(place for one in group for place in members[one])
            if len(places) > len(group):
                inside = np.append(inside, 1.0)
            found.append(_group(self.paths, places, inside))
        return _sorted(found)

    def outliers(self, count: int) -> list[Found]:
        """The images that are farthest from their fifth nearest image, farthest first.

        There are two orders, by the distance of features (1 − cosine) and, if the file has them, by that of statistics
        of the picture; images come in turn from the one and the other. If there are more than 8,192 images, distances
        are to 4,096 of them or more.
        """
        bank = np.arange(0, len(self.paths), max(1, len(self.paths) // _REFERENCES))
        # unit vectors: |a − b|² = 2 − 2 a·b
        unlike = _fifth_nearest(self.directions, bank) ** 2 / 2
        scores = [_deviations(unlike)]
        if self.file.statistics is not None:
            pictures = _standardised(self.file.statistics)
            scores.append(_deviations(_fifth_nearest(pictures, bank)))
        ranks = [np.argsort(np.argsort(-one, kind="stable")) for one in scores]
        turns = np.array(ranks) + np.arange(len(ranks))[:, None] / 2
        order = np.argsort(turns.min(0), kind="stable")[:count]
        _, near = _nearest(self.directions[order], self.directions, _NAMED + 1)
        found = []
        for place, others in zip(order.tolist(), near.tolist(), strict=True):
            which = int(turns[:, place].argmin())
            outlier = Found(
                [self.paths[place]],
                [place],
                1 - float(unlike[place]),
                score=float(scores[which][place]),
                reason=("features", "picture")[which],
                nearest=[other for other in others if other != place][:_NAMED],
            )
            found.append(outlier)
        return found

    def find(self, path: str) -> int | None:
        """The place of the image of this path, which may have folders before it; None if there is none.

        A file that exists, but elsewhere than the images were, is not one of them.
        """
        if path in self.paths:
            return self.paths.index(path)
        asked = f"/{composed(path)}"
        ends = [one for one in self.paths if asked.endswith(f"/{composed(one)}")]
        if not ends:
            return None
        place = self.paths.index(max(ends, key=len))
        home = (self.file.origin or {}).get("folder")
        file = location(path)
        if isinstance(home, str) and file.exists():
            theirs = os.path.join(home, self.paths[place])
            if not os.path.exists(theirs) or not os.path.samefile(file, theirs):
                return None
        return place

    def like(
        self,
        row: NDArray[np.floating],
        count: int,
        itself: int | None = None,
    ) -> list[Found]:
        """The images with the largest cosine to features [D], largest first. itself: a place that is left out."""
        distances, places = _nearest(unit(row)[None], self.directions, count + 1)
        near = zip(places[0].tolist(), (1 - distances[0] ** 2 / 2).tolist(), strict=True)
        found = [
            Found([self.paths[place]], [place], value) for place, value in near if place != itself
        ]
        return found[:count]


def shared(
    one: Features,
    other: Features,
    least: float | None = None,
) -> list[Found]:
    """The images of `other` that are duplicates of images of `one`, each followed by these; the most similar first.

    Places continue from `one` to `other`. Raises UserError if the features are of different backbones.
    """
    both = Features(_joined(one.file, other.file))
    members = _copies(both.file)
    near: list[dict[int, float]] = [{place: 1.0} for place in range(len(members))]
    for link, value in zip(*_links(both, least, members), strict=True):
        first, second = divmod(int(link), len(members))
        near[first][second] = near[second][first] = float(value)
    count = len(one.paths)
    found = []
    for own, copies in enumerate(members):
        earlier = sorted(
            (-value, member)
            for like, value in near[own].items()
            for member in members[like]
            if member < count
        )
        values = -np.array([value for value, _ in earlier])
        matches = [member for _, member in earlier]
        later = [place for place in copies if place >= count and earlier]
        found += [_group(both.paths, [place, *matches], values) for place in later]
    return _sorted(found)


def _group(
    paths: list[str],
    places: list[int],
    similarity: NDArray[np.floating],
) -> Found:
    """Images that are duplicates, with the similarities of their pairs."""
    names = [paths[place] for place in places]
    return Found(names, places, float(similarity.max()), float(similarity.min()))


def _joined(
    one: FeatureFile,
    other: FeatureFile,
) -> FeatureFile:
    """Two files as one; optional arrays if both have them."""
    weights = [(file.origin or {}).get("weights") for file in (one, other)]
    known = None not in weights
    if one.features.shape[1] != other.features.shape[1] or (known and weights[0] != weights[1]):
        raise UserError(
            f"{one.path} and {other.path} hold features of different backbones; embed both with one"
        )
    arrays: dict[str, Any] = {}
    for name in ("thumbnails", "statistics"):
        both = [getattr(one, name), getattr(other, name)]
        arrays[name] = None if any(part is None for part in both) else np.concatenate(both)
    features = np.concatenate([one.features, other.features])
    return FeatureFile(one.path, features, one.paths + other.paths, **arrays)


def _sorted(groups: Iterable[Found]) -> list[Found]:
    return sorted(groups, key=lambda group: (-group.similarity, group.places[0]))


def _copies(file: FeatureFile) -> list[list[int]]:
    """Places of each distinct image and its copies, whose thumbnails and statistics are equal."""
    if file.pictures is None:
        return [[place] for place in range(len(file.paths))]
    members: dict[bytes, list[int]] = {}
    for place, (thumbnail, statistics) in enumerate(zip(*file.pictures, strict=True)):
        members.setdefault(thumbnail.tobytes() + statistics.tobytes(), []).append(place)
    return [*members.values()]


def _links(
    features: Features,
    least: float | None,
    members: list[list[int]],
) -> tuple[Places, NDArray[np.floating]]:
    """All pairs of the K distinct images that are duplicates, each once: numbers i · K + j, and similarities.

    members: of `_copies`. Raises UserError for an impossible `least`.
    """
    least = features.least if least is None else least
    if not -1 <= least <= 1:
        raise UserError(f"--least must be a similarity, from -1 to 1, got {least:g}")
    keepers = np.array([copies[0] for copies in members])
    rows = features.directions[keepers]
    if features.file.pictures is None:
        return pairs_above(rows, least)
    thumbnails, statistics = features.file.pictures
    pictures = Pictures(thumbnails[keepers], statistics[keepers, :3])
    plain = pictures.plain
    mirrored = pictures.mirrored
    by_features, _ = pairs_above(rows, _likely(rows, rows))
    by_pictures, _ = pairs_above(plain, min(least, _likely(plain, plain)))
    by_mirrors, _ = pairs_above(plain, min(least, _likely(plain, mirrored)), mirrored)
    pairs = np.unique(np.concatenate([by_features, by_pictures, by_mirrors]))
    similarity = pictures.aligned(*np.divmod(pairs, len(rows)))
    # duplicates of one image are likely duplicates of each other: align these too
    linked = components(pairs[similarity >= least], len(rows))
    further = np.setdiff1d(_within(linked), pairs)
    more = pictures.aligned(*np.divmod(further, len(rows)))
    pairs = np.concatenate([pairs, further])
    similarity = np.concatenate([similarity, more])
    kept = similarity >= least
    return pairs[kept], similarity[kept]


def _likely(rows: Floats, others: Floats) -> float:
    """The similarity from which on a pair is aligned: `_LIKELY` or, if too many pairs reach it, more.

    Larger, that is, for networks under which all images are alike.
    """
    sample = np.arange(0, len(rows), max(1, len(rows) // _SAMPLED))
    product = rows[sample] @ others.T
    product[np.arange(len(sample)), sample] = -1
    pairs = int(min(_LIKELY_PAIRS, _MOST_LIKELY / len(rows)) * len(sample))
    kept = min(max(pairs, 1), product.size)
    return max(_LIKELY, float(np.partition(product, -kept, axis=None)[-kept]))


def _within(component: Places) -> Places:
    """The numbers i · N + j of all pairs of the N places that are in one component, unless it is large."""
    order = np.argsort(component, kind="stable")
    starts = np.flatnonzero(np.diff(component[order], prepend=-1))
    pairs = [np.empty(0, np.int64)]
    for places in np.split(order, starts[1:]):
        if 2 < len(places) <= _LINKED:
            low, high = np.triu_indices(len(places), 1)
            pairs.append(places[low] * len(component) + places[high])
    return np.concatenate(pairs)


def _deviations(distances: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return how far logarithms of distances exceed their median, in robust standard deviations."""
    logarithms = np.log(np.maximum(distances, 0) + 1e-4).astype(np.float64)
    apart: NDArray[np.float64] = logarithms - np.median(logarithms)
    return apart / max(1.4826 * float(np.median(np.abs(apart))), 0.05)


def _fifth_nearest(rows: Floats, bank: Places) -> NDArray[np.floating]:
    """The distance of each row [N, D] to the fifth nearest of those at the places `bank`, without itself."""
    k = min(_NEIGHBOUR, len(bank) - 1)
    distances, _ = _nearest(rows, rows[bank], k + 1)
    values: NDArray[np.floating] = distances[:, k - 1]
    values[bank] = distances[bank, k]  # a row of the bank is its own nearest
    return values


def _nearest(
    rows: Floats,
    bank: Floats,
    count: int,
) -> Any:
    """The distances [N, k] of each row to the nearest rows of a bank, and their places in it; k is `count` at most."""
    search = NearestNeighbors(n_neighbors=min(count, len(bank)), algorithm="brute").fit(bank)
    return search.kneighbors(rows)


def _standardised(statistics: Floats) -> Floats:
    """Statistics [N, 12] of pictures in robust standard deviations, with one mean luminance in place of three colours."""
    numbers = np.concatenate([statistics[:, :3].mean(1, keepdims=True), statistics[:, 3:]], axis=1)
    middle = np.median(numbers, axis=0)
    deviation = np.maximum(1.4826 * np.median(np.abs(numbers - middle), axis=0), 1e-3)
    apart = (numbers - middle) / deviation
    clipped: Floats = np.clip(apart, -_FARTHEST, _FARTHEST).astype(np.float32)
    return clipped
