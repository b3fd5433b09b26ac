"""What the features of a file show about its images: near-duplicates, outliers, and the images most like one."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.neighbors import NearestNeighbors

from hexa.config import UserError


@dataclass(frozen=True)
class Found:
    """Images that belong together or stand alone, with a cosine similarity in [−1, 1] that says how much.

    lowest: the similarity of the least similar pair of a group, whose images may be linked by others alone.
    """

    paths: list[str]
    similarity: float
    lowest: float | None = None


class Features:
    """The features [N, D] of a file that `hexa embed` wrote, their mean removed, as directions; and their paths.

    Without the mean, since features after a ReLU point in similar directions whatever the image.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises UserError for a file that cannot be read or has other contents."""
        path = Path(path)
        try:
            features, paths = _read(path)
        except (OSError, ValueError, KeyError, pyarrow.ArrowException, zipfile.BadZipFile) as error:
            why = (isinstance(error, OSError) and error.strerror) or "not such a file"
            raise UserError(
                f"{path}: {why}; give a .npz or .parquet that hexa embed wrote"
            ) from None
        floats = features.dtype.kind == "f" and features.ndim == 2 and np.isfinite(features).all()
        if not floats or not 2 <= len(features) == len(paths):
            given = f"{features.dtype} of shape {features.shape} and {len(paths)} paths"
            raise UserError(
                f"{path}: features are {given}; expected finite floats [N, D] and N ≥ 2 paths; embed again"
            )
        centred = features.astype(np.float32) - features.mean(0, dtype=np.float32)
        self.directions = centred / np.maximum(
            np.linalg.norm(centred, axis=1, keepdims=True), 1e-12
        )
        self.paths = paths
        self._neighbours = NearestNeighbors(metric="cosine", algorithm="brute").fit(self.directions)

    def duplicates(self, least: float = 0.95) -> list[Found]:
        """Groups of images linked by a cosine of at least `least`, the most similar pair of each; closest first."""
        if not -1 <= least <= 1:
            raise UserError(f"--least must be a cosine similarity, from -1 to 1, got {least:g}")
        reach = max(1 - least, 1e-6)  # what rounding leaves between equal images
        linked = DBSCAN(eps=reach, min_samples=2, metric="cosine", algorithm="brute").fit_predict(
            self.directions
        )
        groups = [self._group(np.flatnonzero(linked == one)) for one in range(linked.max() + 1)]
        return sorted(groups, key=lambda group: -group.similarity)

    def _group(self, places: NDArray[np.int64]) -> Found:
        members = self.directions[places]
        distances, _ = (
            NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute")
            .fit(members)
            .kneighbors()
        )
        lowest = min(float((members @ one).min()) for one in members)
        return Found(
            [self.paths[place] for place in places], max(lowest, 1 - float(distances.min())), lowest
        )

    def outliers(self, count: int = 20, k: int = 10) -> list[Found]:
        """The images with the lowest mean cosine to their k nearest neighbours, lowest first."""
        distances, _ = self._neighbours.kneighbors(n_neighbors=min(k, len(self.paths) - 1))
        mean = 1 - distances.mean(1)
        return [
            Found([self.paths[place]], float(mean[place]))
            for place in np.argsort(mean, kind="stable")[:count]
        ]

    def place_of(self, path: str) -> int:
        """The place of the image of this path, as `like` takes it. Raises UserError if there is none."""
        if not (known := [one for one in self.paths if f"/{path}".endswith(f"/{one}")]):
            raise UserError(f"{path}: no image of that path in the file, such as {self.paths[0]}")
        return self.paths.index(max(known, key=len))

    def closest(self) -> float:
        """The largest cosine of two images."""
        return 1 - float(self._neighbours.kneighbors(n_neighbors=1)[0].min())

    def like(self, path: str, count: int = 10) -> list[Found]:
        """The images with the largest cosine to that of this path, largest first. Raises UserError if there is none.

        path: as in the file, where it is relative to the images' folder, or with folders before it.
        """
        place = self.place_of(path)
        distances, places = self._neighbours.kneighbors(
            self.directions[[place]], min(count + 1, len(self.paths))
        )
        found = [
            (one, 1 - far) for one, far in zip(places[0], distances[0], strict=True) if one != place
        ]
        return [Found([self.paths[one]], float(similarity)) for one, similarity in found[:count]]


def _read(path: Path) -> tuple[NDArray[Any], list[str]]:
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path, columns=["features", "paths"])
        rows = table["features"].combine_chunks()
        return rows.flatten().to_numpy().reshape(len(rows), -1), table["paths"].to_pylist()
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["features"], arrays["paths"].tolist()
