"""Near-duplicates among images: what is judged must not be what was learned from, nor judge itself."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.data import Source
from hexa.data.loading.loaders import evaluation_batches
from hexa.data.views.evaluation import EvaluationTransform

#: Side of the thumbnails that are compared, and the largest distance of near-duplicates: the root mean square
#: difference of grey levels, standardised per thumbnail to mean 0 and deviation 1.
THUMB, ALIKE = 16, 0.1
_CHUNK = 2048


def thumbnails(source: Source, num_workers: int | None = None) -> tuple[Tensor, NDArray[np.int64]]:
    """Standardised grey thumbnails [N, 256] of the readable images, and their positions [N]."""
    made = evaluation_batches(source, EvaluationTransform(THUMB, 1.0), 256, "cpu", num_workers, {}, 1.0)
    parts = [(images.mean(1).flatten(1), index) for images, _, index in made]
    if not parts:
        return torch.zeros(0, THUMB**2), np.zeros(0, np.int64)
    return standardised(torch.cat([part for part, _ in parts])), torch.cat([index for _, index in parts]).numpy()


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
