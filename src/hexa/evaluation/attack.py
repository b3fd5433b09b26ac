"""Attacks on a classifier of pixels: how far images may be moved before they are misclassified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.evaluation.corruptions.per_image import PerImage
from hexa.runtime.random import Stream

#: Pixels in [0, 1], [B, C, H, W] -> class scores [B, K], differentiable.
Scores = Callable[[Tensor], Tensor]
#: Class scores [B, K] and labels [B] -> −log softmax(z)_y, [B].
cross_entropy = partial(F.cross_entropy, reduction="none")
#: Of each image.
Streams = Sequence[Stream]
#: (scores, images, labels, radius, streams of the images) -> whether each is misclassified somewhere, bool [B].
Attack = Callable[[Scores, Tensor, Tensor, float, Streams], Tensor]

#: Length of a step of PGD, as a multiple of ε / steps (Madry et al. 2018).
_RELATIVE_STEP = 2.5


def together(device: torch.device, pixels: int) -> int:
    """The number of images of this many pixels that are attacked together: the gradients of more take gigabytes."""
    return max(1, (2**20 if device.type == "cpu" else 2**22) // pixels)


def channels_last(images: Tensor) -> Tensor:
    """Images without a graph, in the memory layout that convolutions prefer."""
    return images.detach().contiguous(memory_format=torch.channels_last)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """max_j≠y z_j − z_y, [B]: above 0 where misclassified (Carlini & Wagner 2017)."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.amax(1) - logits.gather(1, labels[:, None])[:, 0]


def projected_gradient(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    steps: int,
    restart: int,
) -> Tensor:
    """True for each image [B, C, H, W] that has a misclassified view within `radius`, bool [B].

    x_t+1 = clip(Π(x_t + step · sign ∂ℓ/∂x(x_t))) from a random x_0, with step = 2.5 · radius / steps, the cross-entropy
    ℓ, Π onto the box |x − image| ≤ radius and clip to [0, 1] (Madry et al. 2018, arXiv 1706.06083). All of x_0 … x_steps
    count: an image costs no further pass once one is misclassified. Lengths are in the unit of pixels.
    """
    low = (images - radius).clamp_(min=0)
    high = (images + radius).clamp_(max=1)
    moved = (images + radius * noise(images, streams, restart)).clamp(low, high)
    step = _RELATIVE_STEP * radius / steps
    wrong = torch.zeros_like(labels, dtype=torch.bool)
    # places of images that are still classified correctly
    rows = torch.arange(len(images), device=images.device)
    for number in range(steps + 1):
        views = channels_last(moved).requires_grad_()
        logits = scores(views)
        right = logits.argmax(1) == labels[rows]
        wrong[rows] = ~right
        if number == steps or not right.any():
            break
        loss = cross_entropy(logits, labels[rows]).sum()
        (gradient,) = torch.autograd.grad(loss, views)
        rows = rows[right]
        ahead = views.detach()[right] + step * gradient[right].sign()
        moved = torch.clamp(ahead, low[rows], high[rows])
    return wrong


def smallest_radius(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radii: Sequence[float],
    attacks: Sequence[Attack],
    streams: Streams,
) -> Tensor:
    """For each image the smallest of `radii` at which an attack succeeds, float64 [B]: 0 if the image itself is
    misclassified, infinity if no attack does.

    The box of a radius lies in that of a larger one, so an image is not attacked again after an attack has succeeded:
    the worst of all attacks and of all smaller radii, at the lowest cost. streams: of each image.
    """
    result = torch.full((len(images),), torch.inf, dtype=torch.float64)
    with torch.no_grad():
        wrong = scores(channels_last(images)).argmax(1) != labels
    result[wrong.cpu()] = 0.0
    for radius in sorted(radii):
        for attack in attacks:
            rows = result.isinf().nonzero()[:, 0]
            if not len(rows):
                return result
            here = images[rows.to(images.device)]
            known = labels[rows.to(labels.device)]
            wrong = attack(scores, here, known, radius, [streams[row] for row in rows.tolist()])
            result[rows[wrong.cpu()]] = radius
    return result


def noise(images: Tensor, streams: Streams, number: int) -> Tensor:
    """Numbers in [−1, 1), in the shape of the images [B, C, H, W], each image's from its stream."""
    draws = PerImage([stream.child("start", number) for stream in streams], images.device)
    return draws.uniform(*images.shape[1:], low=-1, high=1)
