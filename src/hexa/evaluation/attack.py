"""Attacks on a classifier of pixels: how far images may be moved before they are misclassified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.runtime.random import Stream

#: Pixels in [0, 1], [B, C, H, W] -> class scores [B, K], differentiable.
Scores = Callable[[Tensor], Tensor]


def projected_gradient(
    scores: Scores, images: Tensor, labels: Tensor, start: Tensor, radius: float, step: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Images [B, C, H, W] within `radius` of `images`, and whether each is misclassified, bool [B].

    x_t+1 = clip(Π(x_t + step · sign ∂ℓ/∂x(x_t))), x_0 = start, with the cross-entropy ℓ, Π onto the box
    |x − image| ≤ radius and clip to [0, 1] (Madry et al. 2018, arXiv 1706.06083). All of x_0 … x_steps count: an image
    stays at the first that is misclassified, and costs no further pass. Lengths are in the unit of pixels.
    """
    low, high = (images - radius).clamp_(min=0), (images + radius).clamp_(max=1)
    moved = start.clamp(low, high)
    wrong = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    rows = torch.arange(len(images), device=images.device)  # of images that are still classified correctly
    for number in range(steps + 1):
        views = moved[rows].contiguous(memory_format=torch.channels_last).requires_grad_(number < steps)
        with torch.set_grad_enabled(number < steps):
            logits = scores(views)
            loss = F.cross_entropy(logits, labels[rows], reduction="sum")
        right = logits.argmax(1) == labels[rows]
        wrong[rows] = ~right
        if number == steps or not right.any():
            break
        (gradient,) = torch.autograd.grad(loss, views)
        rows = rows[right]
        moved[rows] = torch.clamp(views.detach()[right] + step * gradient[right].sign(), low[rows], high[rows])
    return moved, wrong


def smallest_radius(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radii: Sequence[float],
    steps: int,
    relative_step: float,
    restarts: int,
    streams: Sequence[Stream],
) -> Tensor:
    """For each image the smallest of `radii` at which an attack succeeds, float64 [B]: 0 if the image itself is
    misclassified, infinity if no attack does.

    Each attack starts at a random point of the box, `restarts` times, and steps by relative_step · radius / steps. The
    box of a radius lies in that of a larger one, so an image is no longer attacked once an attack has succeeded: the
    worst of all restarts and of all smaller radii, at the lowest cost. streams: of each image; what is drawn for it
    does not depend on the batch it is in.
    """
    result = torch.full((len(images),), torch.inf, dtype=torch.float64)
    _, wrong = projected_gradient(scores, images, labels, images, 0.0, 0.0, 0)
    result[wrong.cpu()] = 0.0
    for radius in sorted(radii):
        for restart in range(restarts):
            rows = result.isinf().nonzero()[:, 0]
            if not len(rows):
                return result
            here, known = images[rows.to(images.device)], labels[rows.to(labels.device)]
            noise = torch.stack([_uniform(here.shape[1:], streams[row], restart) for row in rows.tolist()])
            start = here + radius * noise.to(here.device)
            step = relative_step * radius / steps
            _, wrong = projected_gradient(scores, here, known, start, radius, step, steps)
            result[rows[wrong.cpu()]] = radius
    return result


def _uniform(shape: torch.Size, stream: Stream, restart: int) -> Tensor:
    """Numbers in [−1, 1)."""
    return 2 * torch.rand(shape, generator=stream.child("start", restart).generator()) - 1
