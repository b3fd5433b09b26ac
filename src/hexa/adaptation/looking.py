"""Inspects a source of images, as far as a plan needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.decode import DecodeError
from hexa.ops.photometric import unit
from hexa.runtime.random import Stream

#: Images that are opened, and the fewest images, and distinct ones, that training makes sense with.
_SAMPLE, FEWEST, _FEWEST_DISTINCT = 500, 64, 32
#: Side of the thumbnails that are compared, and the largest distance of near-duplicates: the root mean square
#: difference of grey levels, standardised per thumbnail to mean 0 and deviation 1.
_THUMB, _ALIKE = 16, 0.1
#: A pixel is grey if its channels differ by less than this share of the range, and extreme if this near to its ends.
_GREY, _EXTREME = 0.04, 0.15


@dataclass(frozen=True)
class Seen:
    """What a sample shows of a source of `count` images.

    size: median of the shorter sides in pixels. grey, pages, duplicates, unreadable: shares of the sample without
    colour, with almost only black and white pixels, nearly equal to another image, unreadable. classes: 0 without
    labels.
    """

    count: int
    size: int
    grey: float
    pages: float
    duplicates: float
    classes: int
    unreadable: float

    def __str__(self) -> str:
        facts = [f"{self.count:,} images, shorter side {self.size} px"]
        facts += [f"{self.grey:.0%} grey"] if self.grey > 0.05 else []
        facts += [f"{self.duplicates:.0%} near-duplicates in a sample"] if self.duplicates >= 0.01 else []
        facts += [f"{self.unreadable:.0%} unreadable"] if self.unreadable else []
        facts.append(f"{self.classes} classes" if self.classes else "no labels")
        return ", ".join(facts)

    @property
    def domain(self) -> str:
        """The suitable preset of views: documents, medical-grey or photos."""
        if self.grey < 0.9:
            return "photos"
        return "documents" if self.pages > 0.5 else "medical-grey"


def look(source: Source, seed: int = 0) -> Seen:
    """Inspect a sample. Raises UserError if there are too few images, or too few distinct ones."""
    if len(source) < FEWEST:
        raise UserError(f"{source!r}: too few images to learn from; give at least {FEWEST}")
    order = torch.randperm(len(source), generator=Stream(seed).child("looking").generator())[:_SAMPLE].tolist()
    sides, grey, pages, thumbs = [], [], [], []
    for position in order:
        try:
            image = unit(source.decode(position))  # [C, H, W]
        except DecodeError:
            continue
        sides.append(min(image.shape[1:]))
        small = functional.interpolate(image[None], (_THUMB, _THUMB), mode="area")[0]
        grey.append(bool((small.amax(0) - small.amin(0) < _GREY).float().mean() > 0.98))
        mid = image.mean(0)
        pages.append(bool(((mid < _EXTREME) | (mid > 1 - _EXTREME)).float().mean() > 0.8))
        thumbs.append(small.mean(0).flatten())
    if len(sides) < len(order) / 2:
        raise UserError(f"{source!r}: {len(order) - len(sides)} of {len(order)} images cannot be read; repair the data")
    distinct = _distinct(torch.stack(thumbs))
    if distinct < _FEWEST_DISTINCT:
        raise UserError(
            f"{source!r}: only {distinct} of {len(thumbs)} sampled images are distinct, the others are "
            "near-duplicates; give more varied images"
        )
    return Seen(
        count=len(source),
        size=int(np.median(sides)),
        grey=float(np.mean(grey)),
        pages=float(np.mean(pages)),
        duplicates=1 - distinct / len(thumbs),
        classes=0 if source.classes is None else len(np.unique(source.classes)),
        unreadable=1 - len(sides) / len(order),
    )


def _distinct(thumbs: Tensor) -> int:
    """How many of N thumbnails [N, P] are not near-duplicates of an earlier one."""
    flat = thumbs - thumbs.mean(1, keepdim=True)
    flat = flat / flat.std(1, keepdim=True).clamp_min(1e-3)
    apart = torch.cdist(flat, flat) / flat.shape[1] ** 0.5
    earlier = torch.ones(len(flat), len(flat), dtype=torch.bool).tril(-1)
    return int((~((apart < _ALIKE) & earlier).any(1)).sum())
