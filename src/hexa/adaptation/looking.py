"""Inspects a source of images, also with the eyes of a start, as far as a plan needs to know it."""

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
from hexa.data.sources.decode import DecodeError
from hexa.data.views.evaluation import EvaluationTransform
from hexa.ops.photometric import unit
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Images that are opened, at most.
_SAMPLE = 150
#: Seconds for that once there are as many as training needs.
_SECONDS = 1.0
#: Fewest images with which training makes sense.
FEWEST = 64
#: Fewest distinct images with which training makes sense.
_FEWEST_DISTINCT = 32
#: A pixel is grey if its channels differ by less than this share of the range.
_GREY = 0.04
#: A pixel is extreme if it is this near to an end of the range.
_EXTREME = 0.15


@dataclass(frozen=True)
class Seen:
    """What a sample shows of a source of `count` images.

    size: median of the shorter sides in pixels. grey, duplicates, unreadable: shares of the sample without colour,
    nearly equal to another image, unreadable. classes: 0 without labels. domain: the preset of views that suits the
    images, or the one that the user names.
    """

    count: int
    size: int
    grey: float
    duplicates: float
    classes: int
    unreadable: float
    domain: str

    def __str__(self) -> str:
        facts = [f"{self.count:,} images, shorter side {self.size} px"]
        facts += [f"{self.grey:.0%} grey"] if self.grey > 0.05 else []
        facts += (
            [f"{self.duplicates:.0%} near-duplicates in a sample"]
            if self.duplicates >= 0.01
            else []
        )
        facts += (
            [f"{self.unreadable:.1%} unreadable (see --training.max_corrupt_share)"]
            if self.unreadable
            else []
        )
        facts.append(f"{self.classes} classes" if self.classes else "no labels of their own")
        return ", ".join(facts)


def look(source: Source, size: int, seed: int = 0, limit: float = 1 / 6) -> tuple[Seen, Tensor]:
    """Inspect a sample; returns also its images as evaluation sees them at this size, float [n, C, S, S] in [0, 1].

    Those without a near-duplicate before them come first.
    Raises UserError if there are too few distinct images, or far more can't be read than training allows, `limit`.
    """
    order = torch.randperm(len(source), generator=Stream(seed).child("looking").generator())[
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
        classes=0 if source.classes is None else len(np.unique(source.classes)),
        unreadable=1 - len(sides) / tried,
        domain="photos"
        if np.mean(grey) < 0.9
        else "documents"
        if np.mean(pages) > 0.5
        else "medical-grey",
    )
    return seen, torch.stack([kept[row] for row in np.argsort(twins, kind="stable")])


def all_whole(transform: EvaluationTransform, *sources: Source) -> bool:
    """True if evaluation takes each of some images whole; looking ends at the first that it does not."""
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
    """Features of images [n, C, S, S] at the size of the backbone, on the CPU."""
    size = backbone.image_size
    device = next(backbone.parameters()).device
    same = pixels.shape[-1] == size
    small = (
        pixels
        if same
        else functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    )
    return torch.cat([backbone(some.to(device)).float().cpu() for some in torch.split(small, 16)])
