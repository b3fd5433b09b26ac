"""An encoder: normalisation, backbone and projection head, from pixels to an embedding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import Branch, Setting
from hexa.core.batch import run_sizes
from hexa.nn.activations import with_lean_activations
from hexa.nn.backbones import check_headless
from hexa.nn.branch_norm import convert, groups_here, keep_statistics, use_branch
from hexa.nn.momentum import twin_of
from hexa.nn.normalize import Normalize
from hexa.runtime.precision import at_least_fp32


class Encoder(nn.Module):
    """Pixels in [0, 1], [B, C, S, S] -> projection [B, D], not normalised (z of F2).

    groups: runs of images with separate batch statistics in this process.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        normalize: Normalize,
        groups: int = 1,
    ) -> None:
        super().__init__()
        check_headless(backbone)
        self.normalize = normalize
        self.backbone = backbone
        self.head = head
        self.groups = groups

    @classmethod
    def branched(
        cls,
        backbone: nn.Module,
        head: nn.Module,
        setting: Setting,
        bn_groups: int = 1,
    ) -> Encoder:
        """Build an encoder for `setting`; `convert` replaces all its batch-norms, including those
        of the head."""
        normalize = Normalize(setting.mean, setting.std)
        encoder = cls(backbone, head, normalize, groups_here(bn_groups))
        convert(encoder, setting.branches, bn_groups)
        with_lean_activations(encoder)
        if setting.keep_statistics:  # not in the head: its batch-norms are new
            keep_statistics(encoder.backbone)
        return encoder

    @classmethod
    def with_twin(
        cls,
        backbone: nn.Module,
        head: nn.Module,
        setting: Setting,
        bn_groups: int = 1,
    ) -> tuple[Encoder, Encoder]:
        """Build an encoder like `branched`, and its momentum twin: the same weights, main
        batch-norms only, no gradient."""
        main = replace(setting, branches=("main",))
        twin = cls.branched(twin_of(backbone), twin_of(head), main, bn_groups)
        return cls.branched(backbone, head, setting, bn_groups), twin

    def project(
        self,
        crops: tuple[Tensor, ...],
        through: Branch,
        together: bool = True,
        images: int = 0,
    ) -> Tensor:
        """V crops [B, C, S_v, S_v] in [0, 1] -> projections [V, B, D].

        together: crops of one size share a pass and its batch statistics; otherwise each crop has
        its own pass, and may consist of the tiles of `images`, [B·T, …], image after image.
        """
        with use_branch(self, through, images or len(crops[0])):
            if together:
                return self.multi_crop(crops, through.parts)
            return torch.stack([self(crop) for crop in crops])

    def embed(
        self,
        crops: tuple[Tensor, ...],
        through: Branch,
        together: bool = True,
    ) -> Tensor:
        """`project` followed by normalisation to unit rows."""
        return unit(self.project(crops, through, together))

    def features(self, pixels: Tensor) -> Tensor:
        """Features [B, F] of pixels in [0, 1], before the head."""
        return cast(Tensor, self.backbone(self.normalize(pixels)))

    def forward(self, pixels: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(pixels)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile `forward`, `features` and `multi_crop`."""
        super().compile(*args, **kwargs)
        self.features = torch.compile(self.features, *args, **kwargs)  # type: ignore[method-assign]
        self.multi_crop = torch.compile(self.multi_crop, *args, **kwargs)  # type: ignore[method-assign]

    def multi_crop(self, crops: tuple[Tensor, ...], micro_batches: int = 1) -> Tensor:
        """V crops [B, C, S_v, S_v] -> projections [V, B, D].

        Consecutive crops of one size go through the backbone together, so batch statistics are per
        size; the head sees all crops at once (F8). With groups, rows are ordered by run, so that a
        run has the same images in every crop.
        micro_batches: the crops are one of this number of micro-batches.
        """
        count = len(crops)
        batch = len(crops[0])
        sizes = run_sizes(batch, max(1, min(self.groups // micro_batches, batch)))
        # the backbone sees the crops of one size together (torch.compile knows no itertools.groupby)
        alike = [[crops[0]]]
        for crop in crops[1:]:
            if crop.shape[1:] == alike[-1][0].shape[1:]:
                alike[-1].append(crop)
            else:
                alike.append([crop])
        features = [self.features(_by_run(same, sizes)) for same in alike]
        if len(sizes) == 1:
            rows: Tensor = self.head(torch.cat(features))
            return rows.view(count, batch, -1)
        # the head sees all crops, from order (size, run, crop, image) to (run, crop, image)
        runs = [_runs(maps, sizes, len(maps) // batch) for maps in features]
        rows = self.head(_joined(runs))
        parts = _runs(rows, sizes, count)
        return torch.cat([part.view(count, -1, rows.shape[-1]) for part in parts], 1)


def _by_run(crops: list[Tensor], sizes: list[int]) -> Tensor:
    """Concatenate crops [B, …] to [V·B, …]: all crops of the first run of images, then all of the
    next."""
    if len(crops) == 1:
        return crops[0]
    if len(sizes) == 1:
        return torch.cat(crops)
    return _joined([_runs(crop, sizes, 1) for crop in crops])


def _runs(
    rows: Tensor,
    sizes: list[int],
    crops: int,
) -> tuple[Tensor, ...]:
    """Split rows by run of images; each run has the rows of all its crops."""
    return torch.split(rows, [crops * size for size in sizes])


def _joined(runs: list[tuple[Tensor, ...]]) -> Tensor:
    """Concatenate the first run of each, then the second of each …"""
    return torch.cat([part for run in zip(*runs, strict=True) for part in run])


def unit(projection: Tensor) -> Tensor:
    """Normalise to unit rows, in fp32 or better."""
    return F.normalize(at_least_fp32(projection), dim=-1)


def mlp_head(width: int, dim: int) -> nn.Module:
    """linear width -> width, ReLU, linear width -> dim; biases, no batch-norm (MoCo v2, F4)."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))


def normalized_head(
    width: int,
    hidden: int,
    dim: int,
) -> nn.Module:
    """linear width -> hidden, batch-norm, ReLU, linear hidden -> dim; biases (SwAV, F8; BYOL)."""
    norm = nn.BatchNorm1d(hidden)
    last = nn.Linear(hidden, dim)
    return nn.Sequential(nn.Linear(width, hidden), norm, nn.ReLU(inplace=True), last)


def normalized_layers(widths: Sequence[int], last_weight: bool) -> nn.Module:
    """Linear layers without bias, each followed by a batch-norm, and all but the last by a ReLU
    (SimCLR, SimSiam).

    The last batch-norm has no shift, and a scale only with `last_weight`.
    """
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [
            nn.Linear(before, after, bias=False),
            nn.BatchNorm1d(after),
            nn.ReLU(inplace=True),
        ]
    layers.pop()
    last = layers[-1]
    last.get_parameter("bias").requires_grad_(False)
    last.get_parameter("weight").requires_grad_(last_weight)
    return nn.Sequential(*layers)
