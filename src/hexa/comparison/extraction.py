"""Features of a backbone for a comparison, of as many images as the time allows."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison.labelled import labels_of
from hexa.data import Source
from hexa.data.sources.decode import DecodeError
from hexa.evaluation.features import extract_together, for_inference
from hexa.evaluation.split import draw_classes, draw_images
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

#: Fewest images that are looked at, however short the time is.
_LEAST = 100
#: Told how many of how many images are done.
Tell = Callable[[int, int], object]
#: The share of the time that networks may take, so that a machine that becomes slower keeps to it.
_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How features are extracted."""

    seconds: float = 600.0
    """For reading images and extracting features; fewer images are looked at where that is short."""
    most: int | None = None
    """The most images that are looked at."""
    seed: int = 0
    """Draws images, folds and labels."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: precisions.Precision = "auto"
    """auto, fp32 or bf16."""
    num_workers: int | None = None
    """Processes that decode; chosen for the machine if None."""


def affordable(
    backbones: Sequence[Backbone],
    source: Source,
    how: Extraction,
    device: torch.device,
) -> NDArray[np.int64]:
    """Positions of as many labelled images as fit into the time, a like share of every class.

    An image costs a decoding for each backbone and two to look for its twins, and one pass through each network.
    Judging and the page come on top.
    """
    most = min(len(source), how.most or len(source))
    if math.isfinite(how.seconds):
        seconds = sum(1 / images_per_second(one, device) for one in backbones)
        seconds += (len(backbones) + 2) * seconds_to_read(source)
        most = min(most, max(_LEAST, int(_SHARE * how.seconds / seconds)))
    stream = Stream(how.seed).child("affordable")
    if most < len(source):
        return draw_classes(labels_of(source), most, stream)
    return draw_images(len(source), most, stream)


def seconds_to_read(source: Source, count: int = 4) -> float:
    """What decoding an image takes, by some that are evenly spread."""
    begin = time.perf_counter()
    for place in range(count):
        with contextlib.suppress(DecodeError):
            source.decode(place * len(source) // count)
    return (time.perf_counter() - begin) / count


@torch.no_grad()
def images_per_second(backbone: Backbone, device: torch.device) -> float:
    """The speed of a forward pass at the network's own image size, measured on 8 images, or 32 on a GPU."""
    size = backbone.image_size
    count = 32 if device.type == "cuda" else 8
    pixels = torch.rand(count, len(backbone.mean), size, size, device=device)
    network = for_inference(backbone, device)
    network(pixels if pixels.is_cuda else pixels[:1]).sum().item()  # chooses algorithms
    seconds = []
    for _ in range(2):  # the faster counts: another program may have slowed one
        begin = time.perf_counter()
        network(pixels).sum().item()
        seconds.append(time.perf_counter() - begin)
    return count / max(min(seconds), 1e-6)


def features_of(
    backbone: Backbone,
    images: Source,
    how: Extraction,
    device: torch.device,
    tell: Tell | None = None,
) -> tuple[Tensor, Tensor]:
    """Features [N, D] and positions [N] of the readable images; each process extracts a share, the main one has all."""
    settings = {"device": device, "precision": how.precision, "num_workers": how.num_workers}
    return extract_together(backbone, images, 1.0, progress=tell, **settings)


def common(features: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
    """Of features [N_b, D_b] at ascending positions [N_b] those at the positions that all share, and these."""
    shared = features[0][1]
    for _, positions in features[1:]:
        shared = shared[torch.isin(shared, positions)]
    return [x[torch.isin(positions, shared)] for x, positions in features], shared
