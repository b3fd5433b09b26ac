"""View space in two dimensions: where clean, adversarial and mixed views lie (Li et al., 2020, figure 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor

from hexa.config import UserError
from hexa.core import MAIN, Batch, Example
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.objective import STD
from hexa.reporting.gallery import tiles_of
from hexa.reporting.style import COLOURS, INK, MUTED, drawing
from hexa.run.visualize import Look
from hexa.runtime.random import Stream
from hexa.training.overfitting import unchanged
from hexa_paper.schemes import own_fields

Points = NDArray[np.float64]
Numbers = NDArray[np.int64]
#: Adversarial views that are drawn of each image: all would hide one another.
_ATTACKED = 3
#: Mixed views that are drawn of each image.
_MIXED = 3


class ViewSpace(NamedTuple):
    """N views of K images in two dimensions, and what the hard examples made of them are there."""

    clean: Points
    """[N, 2], the views."""
    adversarial: Points
    """[N, 2], the adversarial view of each."""
    mixed: Points
    """[N, 2], the mixed view of each."""
    image: Numbers
    """[N], which image each view is of, 0 … K − 1."""
    partner: Numbers
    """[N], which image is pasted into each mixed view."""
    tiles: NDArray[np.uint8]
    """The images, uint8 [K, S, S, 3]."""
    explained: float
    """The share of the variance that the two axes keep."""


@torch.no_grad()
def embed_views(
    look: Look,
    *,
    num_images: int = 6,
    num_views: int = 12,
    seed: int = 0,
) -> ViewSpace:
    """Embed `num_views` views of each of `num_images` images, their adversarial views, and mixtures of them.

    All go through the main batch-norms, so that one function maps views to points. The attack is the run's own (or the
    default one). The axes are the principal components of all points. Each image has a colour of its own, so there are at
    most as many as COLOURS. Raises UserError for a method that can't mix images.
    """
    if look.experiment.method.unmixable:
        raise UserError(
            f"view space is not for {look.experiment.method.name}: {look.experiment.method.unmixable}"
        )
    attack = {
        **own_fields(look.experiment, "adversarial"),
        "branch": "main",
        "generation": "main_train",
        "weight": 1.0,
    }
    mixing = {
        **own_fields(look.experiment, "cutmix"),
        "branch": "main",
        "weight": 1.0,
        "per_sample": True,
    }
    objective = look.objective({"adversarial": attack, "cutmix": mixing})
    batch = _views_of(look, num_images, num_views, Stream(seed).child("view space"))
    with unchanged(objective.method):
        examples = objective.examples(batch)
        points = [_embedding(look, examples[kind]) for kind in (STD, "adversarial", "cutmix")]
    every = np.concatenate(points)
    axes = PCA(2, svd_solver="full").fit(every)
    clean, adversarial, mixed = np.split(axes.transform(every), 3)
    image = np.arange(num_images).repeat(num_views)
    crops = examples[STD].crops[0]
    partner = image[partners(crops, examples["cutmix"].crops[0]).cpu().numpy()]
    tiles = tiles_of(
        look.source, batch.index[::num_views].tolist(), EvaluationTransform(crops.shape[-1])
    )
    return ViewSpace(
        clean,
        adversarial,
        mixed,
        image,
        partner,
        tiles,
        float(axes.explained_variance_ratio_.sum()),
    )


def partners(clean: Tensor, mixed: Tensor) -> Tensor:
    """The view each box was cut from, int64 [B], read off the pixels; the view itself where nothing was pasted.

    clean, mixed: [B, 3, S, S]. The pasted pixels are those that changed, and exactly those of one other view.
    """
    partner = []
    for own, mask in enumerate((clean != mixed).any(1, keepdim=True)):  # [1, S, S]
        distance = ((mixed[own] - clean).abs() * mask).sum((1, 2, 3))  # [B]
        distance[own] = torch.inf if mask.any() else -1.0
        partner.append(distance.argmin())
    return torch.stack(partner)


def _views_of(look: Look, num_images: int, num_views: int, stream: Stream) -> Batch:
    """Each image `num_views` times in a row, in views of their own."""
    batches = [
        look.batch(num_images, stream, stream.child("view", number)) for number in range(num_views)
    ]
    crops = tuple(
        torch.stack(same, 1).flatten(0, 1)
        for same in zip(*(batch.crops for batch in batches), strict=True)
    )
    return replace(batches[0], crops=crops, index=batches[0].index.repeat_interleave(num_views))


def _embedding(look: Look, example: Example) -> Points:
    """The embedding of the first crop of an example, [B, D]."""
    embedding = example.score.embed(example.crops, replace(MAIN, update=False))
    directions = look.method.directions(embedding)
    return (
        (embedding if directions is None else directions)[0]
        .float()
        .cpu()
        .numpy()
        .astype(np.float64)
    )


_READING = (
    "A colour is an image. A line joins an adversarial view to the clean one it was made from; a mixed view has around "
    "it the colour of the image that was pasted in. All through the main batch-norms."
)


def view_space(space: ViewSpace, *, title: str) -> Figure:
    """Circles are clean views, triangles adversarial ones, joined to the view they were made from, squares mixed ones.

    A colour is an image; a mixed view has that of its own image inside and that of the pasted one around it.
    """
    colours = [COLOURS[image] for image in space.image]
    with drawing(1, title, _READING, width=7.4, height=5.4) as (figure, (ax,)):
        ax.scatter(space.clean[:, 0], space.clean[:, 1], s=34, c=colours, alpha=0.55, linewidths=0)
        for image in range(len(space.tiles)):
            places = np.flatnonzero(space.image == image)
            for place in places[:_ATTACKED]:
                ax.plot(
                    *np.stack([space.clean[place], space.adversarial[place]]).T,
                    color=COLOURS[image],
                    linewidth=1,
                )
                x, y = space.adversarial[place]
                ax.scatter(
                    x, y, s=52, marker="^", color=COLOURS[image], edgecolors=INK, linewidths=0.7
                )
            for place in places[space.partner[places] != image][-_MIXED:]:
                edge = COLOURS[space.partner[place]]
                x, y = space.mixed[place]
                ax.scatter(
                    x, y, s=52, marker="s", color=COLOURS[image], edgecolors=edge, linewidths=2.2
                )
        share = f"{100 * space.explained:.0f} % of the variance in both"
        ax.set(xlabel=f"first principal component ({share})", ylabel="second principal component")
        ax.margins(0.06)
        _legend(ax, space)
    return figure


def _legend(ax: Axes, space: ViewSpace) -> None:
    """The three markers, and next to the axes the images in their colours."""
    marks = [
        Line2D([], [], marker="o", linestyle="", color=MUTED, alpha=0.6, label="clean view"),
        Line2D(
            [],
            [],
            marker="^",
            linestyle="-",
            color=MUTED,
            markeredgecolor=INK,
            label="adversarial view",
        ),
        Line2D(
            [], [], marker="s", linestyle="", color=MUTED, markeredgecolor=INK, label="mixed view"
        ),
    ]
    ax.legend(handles=marks, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    count = len(space.tiles)
    for image, tile in enumerate(space.tiles):
        inset = ax.inset_axes((1.03, 1 - (image + 1) / count + 0.02, 0.17, 0.92 / count))
        inset.imshow(tile, interpolation="nearest")
        inset.set(xticks=[], yticks=[])
        inset.spines[:].set(visible=True, color=COLOURS[image], linewidth=3)
