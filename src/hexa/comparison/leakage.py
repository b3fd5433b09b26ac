"""Near-duplicates among images: what is judged must not be what was learned from, nor judge itself."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import labels_of
from hexa.data import Source
from hexa.data.loading.evaluation_stream import evaluation_batches
from hexa.data.sources.decode import DecodeError
from hexa.data.sources.source import Subset
from hexa.data.views.evaluation import EvaluationTransform
from hexa.evaluation.split import draw_images
from hexa.reporting.tables import counted
from hexa.runtime.progress import Progress
from hexa.runtime.random import Stream

#: Side in pixels of the thumbnails that are compared.
THUMB = 16
#: Largest distance of near-duplicates: the root mean square difference of grey levels, standardised per thumbnail to
#: mean 0 and deviation 1.
ALIKE = 0.1
_CHUNK = 2048
#: Images to learn from that near-duplicates are looked for among, at least.
_LEARNED = 200


def thumbnails(source: Source, num_workers: int | None = None) -> tuple[Tensor, NDArray[np.int64]]:
    """Standardised grey thumbnails [N, 256] of the readable images, and their positions [N]."""
    made = evaluation_batches(
        source, EvaluationTransform(THUMB, 1.0), 256, "cpu", num_workers, {}, 1.0
    )
    parts = [(torch.zeros(0, THUMB**2), torch.zeros(0, dtype=torch.int64))]
    parts += [(images.mean(1).flatten(1), index) for images, _, index in made]
    return standardised(torch.cat([part for part, _ in parts])), torch.cat(
        [index for _, index in parts]
    ).numpy()


def standardised(grey: Tensor) -> Tensor:
    """Grey thumbnails [N, P], each with mean 0 and standard deviation 1."""
    flat = grey - grey.mean(1, keepdim=True)
    return flat / flat.std(1, keepdim=True).clamp_min(1e-3)


def duplicates(asked: Tensor, others: Tensor | None = None) -> NDArray[np.int64]:
    """For each thumbnail of `asked` [N, P] the row of a near-duplicate, or −1; int64 [N].

    others: [M, P], where it is looked for; by default among the thumbnails before it.
    """
    bank = asked if others is None else others
    found = np.full(len(asked), -1, dtype=np.int64)
    for start in range(0, len(asked), _CHUNK):
        part = asked[start : start + _CHUNK]
        least = torch.full((len(part),), ALIKE)
        for first in range(0, len(bank) if others is not None else start + len(part), _CHUNK):
            apart = torch.cdist(part, bank[first : first + _CHUNK]) / bank.shape[1] ** 0.5
            if others is None and first == start:  # only earlier ones
                apart += torch.ones_like(apart).triu().mul_(2 * ALIKE)
            nearest, row = apart.min(1)
            closer = nearest < least
            least = torch.where(closer, nearest, least)
            found[start : start + len(part)][closer.numpy()] = first + row[closer].numpy()
    return found


def shared(data: Source, judging: Source) -> NDArray[np.bool_]:
    """Tell by their paths which images of `judging` are also in `data`: bool [N].

    All are False unless both sources store one image a file.
    """
    mine = list(judging.files())
    theirs = list(data.files())
    if len(mine) != len(judging) or len(theirs) != len(data):
        return np.zeros(len(judging), dtype=np.bool_)
    known = set(map(os.path.abspath, theirs))
    return np.array([os.path.abspath(file) in known for file in mine])


def copies(data: Source, judging: Source, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of these images of `judging` the position of an exact copy in `data`, or −1; int64 [len(rows)].

    All images of `data` are looked at: first the sizes of files, then the contents of those of equal size.
    """
    sizes = _sizes(judging)
    known = {sizes[row] for row in rows} if sizes else set()
    contents = {row: _content(judging, row) for row in rows.tolist()}
    wanted = set(contents.values()) - {None}
    theirs = _sizes(data)
    found = dict[bytes, int]()
    for position in range(len(data)):
        if sizes and theirs and theirs[position] not in known:
            continue
        content = _content(data, position)
        if content is not None and content in wanted:
            found.setdefault(content, position)
    return np.array([found.get(contents[row] or b"", -1) for row in rows.tolist()], dtype=np.int64)


def _sizes(source: Source) -> list[int]:
    """The bytes of every image's file, −1 if it is gone; empty unless there is one file an image."""
    files = list(source.files())
    if len(files) != len(source):
        return []
    sizes = []
    for file in files:
        sizes.append(-1)
        with suppress(OSError):
            sizes[-1] = os.stat(file).st_size
    return sizes


def _content(source: Source, position: int) -> bytes | None:
    """A digest of an image's file or, without one, of its pixels; None if it cannot be read."""
    try:
        stored = source.encoded(position)
        if stored is None:
            stored = source.decode(position).numpy().tobytes()
    except DecodeError:
        return None
    return hashlib.blake2b(stored, digest_size=16).digest()


def apart(
    data: Source,
    judging: Source,
    rows: NDArray[np.int64],
    how: Extraction,
    notes: list[str],
    progress: Progress,
    learned: bool = True,
) -> tuple[NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """Of these labelled images those without near-duplicates, and paths of those that are left out with their twins.

    An image is left out if it is like one of its class before it or, if a backbone learned from `data` (`learned`), like
    one of these: an exact copy of any, or nearly equal to one of as many as are looked at. Where that would be most of
    them, they were meant to be alike or to be among those: all stay, and a note says so.
    """
    progress("looking for near-duplicates", 0, 1)
    thumbs, found = thumbnails(Subset(judging, rows), how.num_workers)
    places = rows[found]
    labels = labels_of(judging)
    same = duplicates(thumbs)
    alike = same >= 0
    drop = alike & (labels[places] == labels[places[same]])
    if 2 * alike.sum() > len(drop):
        told = f"{alike.sum()} of {len(drop)} labelled images are near-duplicates of others"
        notes.append(f"{told}, and judge each other")
        drop[:] = False
    elif drop.any():
        notes.append(
            f"left out: {counted(int(drop.sum()), 'near-duplicate')} of other labelled images"
        )
    twins = [
        (judging.paths[places[row]], judging.paths[places[same[row]]])
        for row in np.flatnonzero(drop)
    ]
    if learned and data is not judging and data.fingerprint != judging.fingerprint:
        twin = _learned_twins(data, judging, places, thumbs, how, notes)
        seen = (twin >= 0) & ~drop
        if 2 * seen.sum() > (~drop).sum():
            notes.append(
                f"{seen.sum()} of {len(seen)} labelled images are among --data, where no label is used"
            )
        elif seen.any():
            drop |= seen
            twins += [
                (judging.paths[places[row]], data.paths[twin[row]]) for row in np.flatnonzero(seen)
            ]
            notes.append(
                f"left out: {counted(int(seen.sum()), 'labelled near-duplicate')} of images of --data"
            )
    progress("looking for near-duplicates", 1, 1)
    # unreadable ones stay: they are noted where features are extracted
    return np.sort(np.concatenate([places[~drop], np.setdiff1d(rows, places)])), tuple(twins)


def _learned_twins(
    data: Source,
    judging: Source,
    places: NDArray[np.int64],
    thumbs: Tensor,
    how: Extraction,
    notes: list[str],
) -> NDArray[np.int64]:
    """For each image of `judging` at `places` the position of an equal or nearly equal one in `data`, or −1."""
    twin = copies(data, judging, places)
    drawn = draw_images(len(data), max(len(places), _LEARNED), Stream(how.seed).child("learned"))
    others, found = thumbnails(Subset(data, drawn), how.num_workers)
    drawn = drawn[found]
    near = duplicates(thumbs, others)
    twin = np.where((twin < 0) & (near >= 0), drawn[near], twin)
    if len(drawn) < len(data):
        notes.append(
            f"near-duplicates were sought among only {len(drawn):,} of {len(data):,} images of --data, "
            "exact copies among all"
        )
    return twin
