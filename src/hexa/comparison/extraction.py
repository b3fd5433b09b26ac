"""Features of a backbone for a comparison, on as many images as fit into the time."""

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

#: Minimum number of images, even if the time is short.
_LEAST = 100
#: Number of images that are timed.
_TIMED = 4
#: Progress callback: (done, total).
Tell = Callable[[int, int], object]
#: Share of the time that is planned; the rest is a reserve for a machine that becomes slower.
_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Options of feature extraction."""

    seconds: float = 600.0
    """Time limit to read images and extract features; if it is short, fewer images are drawn."""
    most: int | None = None
    """Maximum number of images; None sets no limit."""
    seed: int = 0
    """Seed of images, folds and labels."""
    device: str = "auto"
    """Device: auto, cpu, cuda or cuda:N."""
    precision: precisions.Precision = "auto"
    """Precision: auto, fp32 or bf16."""
    num_workers: int | None = None
    """Number of processes that decode images (default: chosen for the machine)."""


def affordable(
    backbones: Sequence[Backbone],
    source: Source,
    how: Extraction,
    device: torch.device,
) -> NDArray[np.int64]:
    """Return the positions of as many images as fit into the time, with an equal share of every class.

    Per image, the time covers one decoding and one forward pass for each backbone, and two decodings to find
    near-duplicates. It does not cover the scores and the report.
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


def seconds_to_read(source: Source) -> float:
    """Return the seconds to decode an image, the mean of evenly spread images."""
    begin = time.perf_counter()
    for place in range(_TIMED):
        with contextlib.suppress(DecodeError):
            source.decode(place * len(source) // _TIMED)
    return (time.perf_counter() - begin) / _TIMED


@torch.no_grad()
def images_per_second(backbone: Backbone, device: torch.device) -> float:
    """Return the throughput of the network at its native resolution, measured on 8 images, or 32 on a GPU."""
    size = backbone.image_size
    count = 32 if device.type == "cuda" else 8
    pixels = torch.rand(count, len(backbone.mean), size, size, device=device)
    network = for_inference(backbone, device)
    network(pixels if pixels.is_cuda else pixels[:1]).sum().item()  # warm-up: selects algorithms
    seconds = []
    for _ in range(2):  # the faster one counts, because another program may have slowed the other
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
    """Return features [N, D] and positions [N] of the readable images; processes share the work, rank 0 gathers it."""
    settings = {"device": device, "precision": how.precision, "num_workers": how.num_workers}
    return extract_together(backbone, images, 1.0, progress=tell, **settings)


def common(features: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], Tensor]:
    """Restrict features [N_b, D_b] at ascending positions [N_b] to the common positions; return both."""
    shared = features[0][1]
    for _, positions in features[1:]:
        shared = shared[torch.isin(shared, positions)]
    return [x[torch.isin(positions, shared)] for x, positions in features], shared
