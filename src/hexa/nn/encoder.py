"""An encoder: normalisation, backbone and projection head, from pixels to an embedding."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.nn.normalize import Normalize


class Encoder(nn.Module):
    """Pixels in [0, 1], [B, 3, S, S] -> projection [B, D], not normalised (z of REFERENCE §1.1)."""

    def __init__(self, backbone: nn.Module, head: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalize = normalize
        self.backbone = backbone
        self.head = head

    def forward(self, pixels: Tensor) -> Tensor:
        projection: Tensor = self.head(self.backbone(self.normalize(pixels)))
        return projection

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As for any module; `multi_crop`, which is not a call of it, too."""
        super().compile(*args, **kwargs)
        self.multi_crop = torch.compile(self.multi_crop, *args, **kwargs)  # type: ignore[method-assign]

    def multi_crop(self, crops: tuple[Tensor, ...], groups: int = 1) -> Tensor:
        """V crops [B, 3, S_v, S_v] -> projections [V, B, D].

        Consecutive crops of one size go through the backbone together, so batch statistics are those of a size; the
        head sees all crops at once (REFERENCE §4.1). groups: runs of images with statistics of their own in this
        process; what goes in together is ordered by run, so that a run holds the same images in every crop.
        """
        count, batch = len(crops), len(crops[0])
        groups = max(1, min(groups, batch))
        features = []
        for _, same in itertools.groupby(crops, key=lambda crop: crop.shape[-1]):
            together = _by_run(list(same), groups)
            features.append(self.backbone(self.normalize(together)))
        if groups > 1:  # from (size, run, crop, image) to (run, crop, image), the order in which the head sees rows
            runs = [torch.tensor_split(f, _borders(batch, groups, len(f) // batch)) for f in features]
            features = [part for run in zip(*runs, strict=True) for part in run]
        rows = self.head(torch.cat(features))
        if groups == 1:
            every: Tensor = rows.view(count, batch, -1)
            return every
        parts = torch.tensor_split(rows, _borders(batch, groups, count))
        return torch.cat([part.view(count, -1, rows.shape[-1]) for part in parts], 1)


def _by_run(crops: list[Tensor], groups: int) -> Tensor:
    """Crops [B, …] joined to [V·B, …]: all crops of the first run of images, then all of the next."""
    if groups == 1:
        return crops[0] if len(crops) == 1 else torch.cat(crops)
    return torch.cat([part for run in zip(*(c.tensor_split(groups) for c in crops), strict=True) for part in run])


def _borders(batch: int, groups: int, crops: int) -> list[int]:
    """Where the runs of images end when each comes with all its crops."""
    sizes = [len(part) * crops for part in torch.arange(batch).tensor_split(groups)]
    return list(itertools.accumulate(sizes))[:-1]


def unit(projection: Tensor) -> Tensor:
    """Unit rows, in fp32 at least."""
    return F.normalize(projection.to(torch.promote_types(projection.dtype, torch.float32)), dim=-1)


def linear_head(width: int, dim: int) -> nn.Module:
    """One linear layer (MoCo v1, REFERENCE §2.1)."""
    return nn.Linear(width, dim)


def mlp_head(width: int, dim: int) -> nn.Module:
    """linear width -> width, ReLU, linear width -> dim; biases, no batch-norm (MoCo v2, REFERENCE §2.1)."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))


def normalized_head(width: int, hidden: int, dim: int) -> nn.Module:
    """linear width -> hidden, batch-norm, ReLU, linear hidden -> dim; biases (SwAV, REFERENCE §4.1)."""
    norm, last = nn.BatchNorm1d(hidden), nn.Linear(hidden, dim)
    return nn.Sequential(nn.Linear(width, hidden), norm, nn.ReLU(inplace=True), last)
