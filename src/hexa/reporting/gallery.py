"""The grid of hard examples: view | perturbation | adversarial | cut-mixed …, one row per image.

Columns follow from the objective: a hard example that reports a perturbation gets a column of it, magnified around
mid-grey, with its mean |δ| in 1/255; one that mixes pseudo-labels says in what shares. Below each view is its
loss, which is what makes it hard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hexa.core import Batch, Example
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.sources.decode import unit
from hexa.objective import STD, Objective
from hexa.reporting.pictures import MID_GREY, Gallery, Pixels
from hexa.training.overfitting import unchanged


class Column(NamedTuple):
    """A column of the grid."""

    head: str
    tiles: Pixels
    """uint8 [N, S, S, 3]."""
    captions: Sequence[str]
    """N texts, perhaps empty."""


@torch.no_grad()
def gallery(objective: Objective, batch: Batch, num_images: int = 8) -> Gallery:
    """The clean view and every hard example of the first `num_images` of a batch, made with the objective's method.

    Everything is made from the whole batch, as in training: batch-norm and cut-mix see all of its images. Of a method
    with several anchors the first is shown. Perturbations are magnified around mid-grey, by the power of two that uses
    the grey scale best. The method's parameters, statistics and memory are left as they are.
    """
    losses = {}
    shown = {}
    with unchanged(objective.method):
        for name, example in objective.examples(batch).items():
            # of the first anchor of each image, through the batch-norms that it is trained through
            scores = example.score_at(example.crops)  # [V, B]
            losses[name] = scores[0, :num_images].tolist()
            shown[name] = example.select(slice(0, num_images))
    columns = [_column("view", shown[STD], losses[STD])]
    if not objective.hard_examples:
        columns += _other_views(batch, num_images)
    for name, hard_example in objective.hard_examples.items():
        example = shown[name]
        source = shown[hard_example.source]
        # where images were mixed on the way, the difference is not what was added to a view
        as_mixed = len(example.mixture) == len(source.mixture)
        if "perturbation" in example.facts and as_mixed:
            delta = example.crops[0] - source.crops[0]
            columns.append(_perturbation(delta))
        of_other = "" if hard_example.source == STD else f" of {hard_example.source}"
        columns.append(_column(name + of_other, example, losses[name]))
    tiles = np.stack([column.tiles for column in columns], 1)
    by_column = [column.captions for column in columns]
    captions = list(zip(*by_column, strict=True))
    has_text = any(any(row) for row in captions)
    heads = tuple(column.head for column in columns)
    return Gallery(tiles, heads, captions if has_text else ())


def _other_views(batch: Batch, num_images: int) -> list[Column]:
    """The further views of a batch; small crops are shown as large as the first."""
    size = batch.crops[0].shape[-2:]
    columns = []
    for number, crop in enumerate(batch.crops[1:], start=2):
        resized = functional.interpolate(crop[:num_images], size)
        tiles = as_pixels(255 * resized.double())
        columns.append(Column(f"view {number}", tiles, [""] * len(tiles)))
    return columns


def _perturbation(delta: Tensor) -> Column:
    """The perturbation δ [N, C, S, S], magnified: 128 + gain·255·δ, with its mean |δ| in 1/255."""
    gain = automatic_gain(delta)
    levels = 255 * delta.double()
    means = levels.abs().flatten(1).mean(1)
    captions = [f"|δ| {mean:.2f}" for mean in means.tolist()]
    magnified = as_pixels(MID_GREY + gain * levels)
    return Column(f"perturbation × {gain:g}", magnified, captions)


def automatic_gain(perturbation: Tensor) -> float:
    """The largest power of two by which no pixel leaves the grey scale; 1 for no perturbation at all."""
    largest = 255 * perturbation.abs().max().item()
    if largest <= 1e-6:
        return 1.0
    magnification = (MID_GREY - 1) / largest
    return 2.0 ** math.floor(math.log2(magnification) + 1e-6)


def _column(
    title: str,
    example: Example,
    losses: list[float],
) -> Column:
    """The views of an example, each with its loss and, if pseudo-labels are mixed, their weights but the last."""
    of_first = [weight[0] for _, weight in example.mixture]
    weights = torch.stack(of_first, 1)  # [N, pseudo-labels]
    captions = []
    for row, loss in zip(weights.tolist(), losses, strict=True):
        # exactly 0: its own pseudo-label is missing, such as the cluster of an image that the last epoch left out
        caption = f"loss {loss:.2f}" if loss else "no pseudo-label"
        if len(row) > 1:
            shares = " + ".join(f"{share:.2f}" for share in row[:-1])
            caption = f"λ {shares} · {caption}"
        captions.append(caption)
    return Column(title, as_pixels(255 * example.crops[0].double()), captions)


def class_of(source: Source, place: int) -> str:
    """The name of the class of the image at this place; empty if it has none, or several."""
    if source.classes is None or source.classes[place] < 0:
        return ""
    label = source.classes[place]
    return source.class_names[label] if source.class_names else str(label)


def tiles_of(
    source: Source,
    places: Iterable[int],
    transform: EvaluationTransform,
) -> Pixels:
    """Images at these places as a transform of evaluation makes them, uint8 [K, S, S, 3]."""
    images = [unit(transform(source.decode(int(place)))) for place in places]
    return as_pixels(255 * torch.stack(images))


def as_pixels(images: Tensor) -> Pixels:
    """Values from 0 to 255, [N, C, S, S], as uint8 [N, S, S, 3]: the first three channels, or the first as grey."""
    shown = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    levels = shown.round().clamp(0, 255).to("cpu", torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().numpy()
