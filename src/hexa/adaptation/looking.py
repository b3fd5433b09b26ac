"""Inspects a sample of images for a plan: sizes, colours, near-duplicates, kind of images."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.comparison import leakage
from hexa.config import UserError
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.sources.decode import DecodeError, unit
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Maximum number of images that are opened.
_SAMPLE = 150
#: Time limit in seconds, once `FEWEST` images are open.
_SECONDS = 1.0
#: Minimum number of images for a training.
FEWEST = 64
#: Minimum number of distinct images for a training.
_FEWEST_DISTINCT = 32
#: A pixel is grey if its channels differ by less than this share of the value range.
_GREY = 0.04
#: A pixel is extreme if it is closer than this to black or white, as a share of the value range.
_EXTREME = 0.15


@dataclass(frozen=True)
class Seen:
    """Facts about a source of `count` images, estimated from a sample.

    size: median of the shorter sides in pixels. grey, duplicates, unreadable: share of the sample without colour, with
    a near-duplicate, unreadable. domain: the preset of views for the images, by their look or by --domain.
    """

    count: int
    size: int
    grey: float
    duplicates: float
    unreadable: float
    domain: str

    def __str__(self) -> str:
        facts = [f"{self.count:,} images, shorter side {self.size} px"]
        if self.grey > 0.05:
            facts.append(f"{self.grey:.0%} grey")
        if self.duplicates >= 0.01:
            facts.append(f"{self.duplicates:.0%} near-duplicates in a sample")
        if self.unreadable:
            facts.append(f"{self.unreadable:.1%} unreadable (see --training.max_corrupt_share)")
        return ", ".join(facts)


def look(source: Source, size: int, limit: float = 1 / 6) -> tuple[Seen, Tensor]:
    """Inspect a sample; also return its images as evaluation prepares them at `size`, float [n, C, S, S] in [0, 1].

    Near-duplicates of earlier images come last. Raises UserError if there are too few distinct images, or if the
    unreadable share is far above `limit`, the share that training accepts.
    """
    order = torch.randperm(len(source), generator=Stream(0).child("looking").generator())[
        :_SAMPLE
    ].tolist()
    sides = list[int]()
    grey = []
    pages = []
    thumbs = []
    kept = []
    transform = EvaluationTransform(size)
    begin = time.perf_counter()
    tried = 0
    why = ""
    for position in order:
        if len(sides) >= FEWEST and time.perf_counter() - begin > _SECONDS:
            break
        tried += 1
        try:
            decoded = source.decode(position)
        except DecodeError as error:
            why = f"such as {source.paths[position]}: {error}; remove these, or raise --training.max_corrupt_share"
            continue
        kept.append(unit(transform(decoded)))
        image = unit(decoded)  # [C, H, W]
        sides.append(min(image.shape[1:]))
        small = functional.interpolate(image[None], 2 * (leakage.THUMB,), mode="area")[0]
        grey.append(bool((small.amax(0) - small.amin(0) < _GREY).float().mean() > 0.98))
        mid = image.mean(0)
        pages.append(bool(((mid < _EXTREME) | (mid > 1 - _EXTREME)).float().mean() > 0.8))
        thumbs.append(small.mean(0).flatten())
    if tried - len(sides) > min(0.5, 3 * limit) * tried:
        raise UserError(f"{source!r}: {tried - len(sides)} of {tried} images cannot be read, {why}")
    twins = leakage.duplicates(leakage.standardised(torch.stack(thumbs))) >= 0
    distinct = int((~twins).sum())
    if distinct < _FEWEST_DISTINCT:
        raise UserError(
            f"{source!r}: only {distinct} of {len(thumbs)} sampled images are distinct, the "
            "others are near-duplicates; give more varied images"
        )
    seen = Seen(
        count=len(source),
        size=int(np.median(sides)),
        grey=float(np.mean(grey)),
        duplicates=1 - distinct / len(thumbs),
        unreadable=1 - len(sides) / tried,
        domain="photos"
        if np.mean(grey) < 0.9
        else "documents"
        if np.mean(pages) > 0.5
        else "medical-grey",
    )
    return seen, torch.stack([kept[row] for row in np.argsort(twins, kind="stable")])


def all_whole(transform: EvaluationTransform, *sources: Source) -> bool:
    """True if evaluation crops none of a sample of images."""
    for source in sources:
        order = torch.randperm(len(source), generator=Stream(0).child("sizes").generator())
        for place in order[:_SAMPLE].tolist():
            with suppress(DecodeError):
                height, width = source.decode(place).shape[1:]
                if not transform.takes_whole(height, width):
                    return False
    return True


@torch.no_grad()
def features_of(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Return features [n, D] of images [n, C, S, S] at the image size of the backbone, on the CPU."""
    size = backbone.image_size
    device = next(backbone.parameters()).device
    same = pixels.shape[-1] == size
    small = (
        pixels
        if same
        else functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    )
    return torch.cat([backbone(some.to(device)).float().cpu() for some in torch.split(small, 16)])
