"""Near-duplicates among labelled images, and between labelled images and training images."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import labels_of
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.data.sources.decode import DecodeError, unit
from hexa.data.sources.source import Subset
from hexa.evaluation.split import draw_images
from hexa.reporting.tables import counted
from hexa.runtime.console import Progress
from hexa.runtime.random import Stream

Rows = NDArray[np.int64]

#: Side in pixels of the thumbnails that are compared.
THUMB = 16
#: Largest distance of near-duplicates: the root mean square difference of grey thumbnails, each standardised to mean 0
#: and deviation 1.
ALIKE = 0.1
#: Number of thumbnails whose distances to all others are in memory at a time.
_CHUNK = 256
#: Minimum number of training images that are searched for near-duplicates.
_LEARNED = 200


def thumbnails(source: Source, num_workers: int | None) -> tuple[Tensor, Rows]:
    """Return standardised grey thumbnails [N, 256] of the readable images, and their positions [N]."""
    problems: dict[int, str] = {}
    grey = [torch.zeros(0, THUMB**2)]
    positions = [torch.zeros(0, dtype=torch.int64)]
    batches = evaluation_batches(
        source,
        EvaluationTransform(THUMB, 1.0),
        num_workers=num_workers,
        problems=problems,
        tolerance=1.0,
    )
    for images, index in batches:
        grey.append(unit(images).mean(1).flatten(1))
        positions.append(index)
    return standardised(torch.cat(grey)), torch.cat(positions).numpy()


def standardised(grey: Tensor) -> Tensor:
    """Return grey thumbnails [N, P], each standardised to mean 0 and standard deviation 1."""
    flat = grey - grey.mean(1, keepdim=True)
    return flat / flat.std(1, keepdim=True).clamp_min(1e-3)


def duplicates(asked: Tensor, others: Tensor | None = None, labels: Tensor | None = None) -> Rows:
    """Return the row of a near-duplicate of each thumbnail of `asked` [N, P], or −1; int64 [N].

    others: [M, P], the thumbnails to search (default: the earlier thumbnails of `asked`). labels: [N]; if given, only
    earlier thumbnails of the same class are searched.
    """
    bank = asked if others is None else others
    if not len(bank):
        return np.full(len(asked), -1)
    found = [torch.zeros(0, dtype=torch.int64)]
    for start in range(0, len(asked), _CHUNK):
        apart = torch.cdist(asked[start : start + _CHUNK], bank) / bank.shape[1] ** 0.5
        if others is None:
            excluded = torch.ones_like(apart, dtype=torch.bool).triu(start)
            if labels is not None:
                excluded |= labels[start : start + _CHUNK, None] != labels
            apart.masked_fill_(excluded, torch.inf)
        least, row = apart.min(1)
        found.append(torch.where(least < ALIKE, row, -1))
    return torch.cat(found).numpy()


def copies(data: Source, judging: Source, rows: Rows) -> Rows:
    """Return the position in `data` of an exact copy of each labelled image in `rows`, or −1; int64 [len(rows)].

    All images of `data` are searched: first by file size, then by the contents of files of equal size.
    """
    wanted = [_content(judging, row) for row in rows.tolist()]
    sizes = {one[0] for one in wanted if one is not None}
    files = list(data.files())
    found: dict[tuple[int, bytes] | None, int] = {}
    for position in range(len(data)):
        if len(files) != len(data) or _size(files[position]) in sizes:
            found.setdefault(_content(data, position), position)
    found[None] = -1
    return np.array([found.get(one, -1) for one in wanted], dtype=np.int64)


def _size(file: str | Path) -> int:
    """Return the size of a file in bytes; −1 if it is missing."""
    try:
        return os.stat(file).st_size
    except OSError:
        return -1


def _content(source: Source, position: int) -> tuple[int, bytes] | None:
    """Return size and digest of an image's file or, without a file, of its pixels; None if the image cannot be read."""
    try:
        stored = source.encoded(position)
        if stored is None:
            stored = source.decode(position).numpy().tobytes()
    except DecodeError:
        return None
    return len(stored), hashlib.blake2b(stored, digest_size=16).digest()


def apart(
    data: Source,
    judging: Source,
    rows: Rows,
    how: Extraction,
    notes: list[str],
    progress: Progress,
    learned: bool = True,
) -> tuple[Rows, tuple[tuple[str, str], ...]]:
    """Remove near-duplicates; return the kept positions and pairs of paths (removed, duplicate of).

    An image is removed if it is a near-duplicate of an earlier image of its class. If a backbone was trained on `data`
    (`learned`), an image is also removed if it is an exact copy of an image of `data`, or a near-duplicate of one in a
    sample of `data`. If most images would be removed, the duplicates are assumed to be intended: all images are kept,
    and a note is added to `notes`.
    """
    progress("looking for near-duplicates", 0, 1)
    thumbs, found = thumbnails(Subset(judging, rows), how.num_workers)
    places = rows[found]
    same = duplicates(thumbs, labels=torch.from_numpy(labels_of(judging)[places]))
    drop = same >= 0
    if 2 * drop.sum() > len(drop):
        notes.append(
            f"{drop.sum()} of {len(drop)} labelled images are near-duplicates of others; they are kept, and inflate scores"
        )
        drop[:] = False
    elif drop.any():
        notes.append(
            f"left out: {counted(int(drop.sum()), 'near-duplicate')} of other labelled images"
        )
    dropped = np.flatnonzero(drop)
    twins = [(judging.paths[places[row]], judging.paths[places[same[row]]]) for row in dropped]
    if learned and data is not judging and data.fingerprint != judging.fingerprint:
        twin = _learned_twins(data, judging, places, thumbs, how, notes)
        seen = (twin >= 0) & ~drop
        if 2 * seen.sum() > (~drop).sum():
            notes.append(
                f"{seen.sum()} of {len(seen)} labelled images are also in --data; they are kept, because training uses no labels, but overstate a gain"
            )
        elif seen.any():
            notes.append(
                f"left out: {counted(int(seen.sum()), 'labelled near-duplicate')} of images in --data"
            )
            drop |= seen
            dropped = np.flatnonzero(seen)
            twins += [(judging.paths[places[row]], data.paths[twin[row]]) for row in dropped]
    progress("looking for near-duplicates", 1, 1)
    # unreadable images stay; the extraction of features adds a note on them
    return np.setdiff1d(rows, places[drop]), tuple(twins)


def _learned_twins(
    data: Source,
    judging: Source,
    places: Rows,
    thumbs: Tensor,
    how: Extraction,
    notes: list[str],
) -> Rows:
    """Return the position in `data` of a copy or near-duplicate of each labelled image in `places`, or −1."""
    drawn = draw_images(len(data), max(len(places), _LEARNED), Stream(how.seed).child("learned"))
    others, found = thumbnails(Subset(data, drawn), how.num_workers)
    near = duplicates(thumbs, others)
    if len(drawn) < len(data):
        notes.append(
            f"{len(drawn):,} of {len(data):,} images of --data were searched for near-duplicates, "
            "all of them for exact copies"
        )
    equal = copies(data, judging, places)
    alike = np.append(drawn[found], -1)[near]
    return np.where(equal < 0, alike, equal)
