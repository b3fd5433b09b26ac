"""Features of a backbone for a comparison: of as many images as the time allows and, without labels, of their views."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison.unlabelled import Passes
from hexa.data import Source
from hexa.data.views.config import ViewsConfig
from hexa.data.views.making import Views
from hexa.evaluation.features import batches, nothing_read
from hexa.evaluation.split import draw_share
from hexa.evaluation.transforms import transform_of
from hexa.ops.boxes import cut_boxes, kept_share, paste
from hexa.recipes import domains
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Fewest images that tell anything, and the most that views are made of.
FEWEST, MOST_VIEWS = 10, 1000
#: The share of the time that networks may take; probes, neighbours and the page take the rest.
_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How features are extracted."""

    seconds: float = 600.0
    """About how long the whole comparison may take; fewer images are looked at where that is short."""
    domain: str = "photos"
    """The preset of views."""
    seed: int = 0
    """Draws images, folds, labels and views."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: precisions.Precision = "auto"
    """auto, fp32 or bf16."""
    num_workers: int | None = None
    """Processes that decode; chosen for the machine if None."""


def affordable(
    backbones: Sequence[Backbone], source: Source, how: Extraction, passes: int, device: torch.device
) -> NDArray[np.int64]:
    """Positions of as many images as all backbones can look at in the time, of every class a like share."""
    seconds = sum(passes / images_per_second(one, device) for one in backbones)
    most = max(FEWEST, int(_SHARE * how.seconds / seconds))
    if passes > 1:
        most = min(most, MOST_VIEWS)
    if most >= len(source):
        return np.arange(len(source))
    stream = Stream(how.seed).child("affordable")
    labels = np.zeros(len(source), np.int64) if source.classes is None else source.classes
    return draw_share(labels, most / len(source), stream)


@torch.no_grad()
def images_per_second(backbone: Backbone, device: torch.device, count: int = 8) -> float:
    """How many images of its size the network takes a second, forward."""
    size = backbone.image_size
    pixels = torch.rand(count, len(backbone.mean), size, size, device=device)
    precisions.place(backbone.eval(), device)
    backbone(pixels[:1])  # the first pass chooses algorithms
    begin = time.perf_counter()
    backbone(pixels).sum().item()
    return count / max(time.perf_counter() - begin, 1e-6)


def passes_of(
    backbone: Backbone,
    images: Source,
    how: Extraction,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Passes, NDArray[np.int64]]:
    """Features of images, of two views of each and of mixtures, all made of one decoding; and positions."""
    size = backbone.image_size
    batch = max(8, min(256, 256 * 64**2 // size**2))
    stream, shares, partners = Stream(how.seed).child("comparison views"), list[Tensor](), list[Tensor]()
    fields = {name.removeprefix("views."): value for name, value in domains.changes(how.domain).items()}
    views = Views(ViewsConfig(size=size, **fields))

    def four(pixels: Tensor) -> Tensor:
        """Features [B, 4 D]. A batch is mixed within itself, each image with the one before it."""
        at, count = stream.child(len(shares)), len(pixels)
        first, second = views(pixels, at)
        drawn = 0.2 + 0.6 * torch.rand(count, generator=at.child("shares").generator())
        boxes = cut_boxes(drawn, size, True, at.child("boxes").generator())
        partner = torch.arange(count).roll(1)
        mixed = paste(pixels, partner.to(pixels.device), boxes)
        partners.append(sum(map(len, partners)) + partner)
        shares.append(kept_share(boxes, size))
        return torch.cat([backbone(one) for one in (pixels, first, second, mixed)], 1)

    made, positions = [], []
    transform, workers = transform_of(backbone), how.num_workers
    for part, _, index in batches(backbone, four, images, transform, batch, device, how.precision, workers, {}, 1.0):
        made.append(part)
        positions.append(index)
        progress(int(index[-1]) + 1, len(images))
    if not made:
        raise nothing_read(images)
    clean, first, second, mixed = torch.cat(made).chunk(4, 1)
    return Passes(clean, first, second, mixed, torch.cat(partners), torch.cat(shares)), torch.cat(positions).numpy()
