"""What a folder of images holds, as far as a plan needs to know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.config import UserError
from hexa.data import Source
from hexa.data.decode import DecodeError
from hexa.ops.photometric import unit
from hexa.runtime.random import Stream

#: Images that are opened, and the fewest that training makes sense with.
_SAMPLE, FEWEST, _FEWEST_DISTINCT = 500, 64, 32
#: Side of the thumbnails by which near-duplicates are found, and how far two of them may be apart: the root mean square
#: of their differences in grey levels, each brought to mean 0 and deviation 1.
_THUMB, _ALIKE = 16, 0.1
#: A pixel is grey if its channels differ by less than this share of the range; a page is what is nearly black or white.
_GREY, _EXTREME = 0.04, 0.15


@dataclass(frozen=True)
class Seen:
    """A source of `count` images, by a sample of them.

    size: the median of the shorter sides in pixels. grey, pages: shares of images without colour, and of those nearly
    all of whose pixels are black or white. duplicates: the share that is nearly the same as another of the sample.
    classes: 0 without labels. unreadable: share.
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
        """The preset of views that suits: documents, medical-grey or photos."""
        if self.grey < 0.9:
            return "photos"
        return "documents" if self.pages > 0.5 else "medical-grey"


def look(source: Source, seed: int = 0) -> Seen:
    """Open a sample. Raises UserError if there are too few images, or nearly all are the same."""
    if len(source) < FEWEST:
        raise UserError(f"{source!r}: {len(source)} images are too few to learn from; give at least {FEWEST}")
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
        raise UserError(f"{source!r}: {len(order) - len(sides)} of {len(order)} images cannot be read; mend the data")
    distinct = _distinct(torch.stack(thumbs))
    if distinct < _FEWEST_DISTINCT:
        raise UserError(
            f"{source!r}: of {len(thumbs)} images looked at only {distinct} differ, the others are near-duplicates; "
            "give images of more variety"
        )
    classes = 0 if source.classes is None else len(np.unique(source.classes))
    share = 1 - len(sides) / len(order)
    return Seen(
        len(source),
        int(np.median(sides)),
        float(np.mean(grey)),
        float(np.mean(pages)),
        1 - distinct / len(thumbs),
        classes,
        share,
    )


def _distinct(thumbs: Tensor) -> int:
    """How many of N thumbnails [N, P] have no earlier one that is alike."""
    flat = thumbs - thumbs.mean(1, keepdim=True)
    flat = flat / flat.std(1, keepdim=True).clamp_min(1e-3)
    apart = torch.cdist(flat, flat) / flat.shape[1] ** 0.5
    earlier = torch.ones(len(flat), len(flat), dtype=torch.bool).tril(-1)
    return int((~((apart < _ALIKE) & earlier).any(1)).sum())
