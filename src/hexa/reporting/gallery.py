"""The grid of hard examples: view | perturbation | adversarial | cut-mixed …, one row per image.

Columns follow from the objective: a hard example that reports a perturbation gets a column of it, magnified around
mid-grey, with its mean |δ| in grey levels; one that mixes pseudo-labels says in what shares. Below each view is its
loss, which is what makes it hard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.core import Batch, Example
from hexa.data import Source
from hexa.data.views.evaluation import EvaluationTransform
from hexa.objective import STD, Objective
from hexa.ops.photometric import unit
from hexa.reporting.pictures import MID_GREY, Gallery, Pixels
from hexa.training.overfitting import unchanged


@torch.no_grad()
def gallery(
    objective: Objective, batch: Batch, num_images: int = 8, gain: float | None = None
) -> Gallery:
    """The clean view and every hard example of the first `num_images` of a batch, made with the objective's method.

    Everything is made from the whole batch, as in training: batch-norm and cut-mix see all of its images. Of a method
    with several anchors the first is shown. gain: by how much perturbations are magnified around mid-grey; by default
    the power of two that uses the grey scale best. The method's parameters, statistics and memory are left as they are.
    """
    with unchanged(objective.method):
        examples = objective.examples(batch)
        # of the first anchor of each image, through the batch-norms that it is trained through
        losses = {
            name: example.score_at(example.crops)[0, :num_images].tolist()
            for name, example in examples.items()
        }
    shown = {name: example.select(slice(0, num_images)) for name, example in examples.items()}
    columns = [_column("view", shown[STD], losses[STD])]
    if not objective.hard_examples:
        # small crops are shown as large as the others
        others = (
            functional.interpolate(crop[:num_images], batch.crops[0].shape[-2:])
            for crop in batch.crops[1:]
        )
        columns += [
            (f"view {number}", _shown(crop), [""] * len(crop))
            for number, crop in enumerate(others, start=2)
        ]
    for name, hard_example in objective.hard_examples.items():
        example = shown[name]
        source = hard_example.source
        # where images were mixed on the way, the difference is not what was added to a view
        if "perturbation" in example.facts and len(example.mixture) == len(shown[source].mixture):
            delta = example.crops[0] - shown[source].crops[0]
            times = automatic_gain(delta) if gain is None else gain
            remarks = [
                f"|δ| {mean:.2f}"
                for mean in (255 * delta.abs().flatten(1).double()).mean(1).tolist()
            ]
            columns.append((f"perturbation × {times:g}", magnify(delta, times), remarks))
        columns.append(
            _column(name if source == STD else f"{name} of {source}", example, losses[name])
        )
    heads, tiles, captions = zip(*columns, strict=True)
    texts = list(zip(*captions, strict=True))
    return Gallery(np.stack(tiles, 1), heads, texts if any(map(any, texts)) else ())


def magnify(perturbation: Tensor, gain: float) -> Pixels:
    """128 + gain·255·δ, clipped, for δ in units of the pixel range [0, 1]; [N, C, S, S] -> uint8 [N, S, S, 3]."""
    return as_pixels(MID_GREY + gain * 255 * perturbation.double())


def automatic_gain(perturbation: Tensor) -> float:
    """The largest power of two by which no pixel leaves the grey scale; 1 for no perturbation at all."""
    largest = 255 * perturbation.abs().max().item()
    return 2.0 ** math.floor(math.log2((MID_GREY - 1) / largest) + 1e-6) if largest > 1e-6 else 1.0


def _shown(images: Tensor) -> Pixels:
    return as_pixels(255 * images.double())


def _column(title: str, example: Example, losses: list[float]) -> tuple[str, Pixels, Sequence[str]]:
    """A title, tiles, uint8 [N, S, S, 3], and a text below each tile, perhaps empty."""
    # exactly 0: its own pseudo-label is missing, such as the cluster of an image that the last epoch left out
    captions = [f"loss {loss:.2f}" if loss else "no pseudo-label" for loss in losses]
    if len(example.mixture) > 1:
        weights = torch.stack(
            [weight[0] for _, weight in example.mixture], 1
        ).tolist()  # [N, pseudo-labels]
        shares = ("λ " + " + ".join(f"{share:.2f}" for share in row[:-1]) for row in weights)
        captions = [f"{share} · {caption}" for share, caption in zip(shares, captions, strict=True)]
    return title, _shown(example.crops[0]), captions


def tiles_of(source: Source, places: Iterable[int], transform: EvaluationTransform) -> Pixels:
    """Images at these places as a transform of evaluation makes them, uint8 [K, S, S, 3]."""
    return as_pixels(
        255 * torch.stack([unit(transform(source.decode(int(place)))) for place in places])
    )


def as_pixels(images: Tensor) -> Pixels:
    """Values from 0 to 255, [N, C, S, S], as uint8 [N, S, S, 3]: the first three channels, or the first as grey."""
    shown = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    return (
        shown.round().clamp(0, 255).to("cpu", torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    )
