"""The four attacks of AutoAttack (Croce & Hein 2020, arXiv 2003.01690): APGD on two losses, FAB-T and Square."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hexa.evaluation.attack import (
    Attack,
    Scores,
    Streams,
    channels_last,
    cross_entropy,
    margin,
    noise,
)
from hexa.evaluation.corruptions.per_image import PerImage

#: Square's share of the pixels at first.
_SHARE = 0.8
#: Square's queries, of 10,000, after which it halves (Andriushchenko et al. 2020, section 4.1 and its code).
_HALVES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
#: APGD's first checkpoint as a share of the steps (algorithm 1).
_FIRST_CHECK = 0.22
#: Share of the steps by which the distances between checkpoints shrink.
_CLOSER = 0.03
#: The last distance, as a share of the steps.
_LAST_CHECK = 0.06
#: Share of steps since the last checkpoint that must raise the loss, or APGD halves the step size.
_RISES = 0.75
#: Weight of the new step in APGD's momentum.
_MOMENTUM = 0.75
#: FAB's steps are this much longer than to the plane (η).
_OVERSHOOT = 1.05
#: Largest weight of FAB's steps from the image itself (α).
_BIAS = 0.1
#: Share of the way to the image by which FAB goes back from a misclassified view.
_BACK = 0.1

#: Views [b, C, H, W] and their places in the batch -> what an ascent raises [b], and whether a view is enough, bool [b].
Aim = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def apgd(
    steps: int,
    targets: int,
    classes: int,
) -> list[Attack]:
    """APGD on the cross-entropy, then on the targeted DLR loss against each of the most likely other classes."""
    others = range(min(targets, classes - 1))
    aimed = [partial(auto_pgd, steps=steps, other=other) for other in others]
    return [partial(auto_pgd, steps=steps), *aimed]


def apgd_name(
    steps: int,
    targets: int,
    classes: int,
) -> str:
    """The name of `apgd`, such as APGD-CE and APGD-T (20 steps, 3 targets)."""
    used = min(targets, classes - 1)
    return f"APGD-CE and APGD-T ({steps} steps, {used} target{'s' if used != 1 else ''})"


def auto_attack(
    steps: int,
    targets: int,
    classes: int,
    queries: int,
) -> list[Attack]:
    """`apgd`, FAB against the same targets, and Square."""
    others = range(min(targets, classes - 1))
    boundary = [partial(fab_t, steps=steps, other=other) for other in others]
    return [*apgd(steps, targets, classes), *boundary, partial(square, queries=queries)]


@torch.no_grad()
def likely_class(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    other: int,
) -> Tensor:
    """A wrong class of each image, int64 [B]. other: 0 for the one with the highest score, 1 for the next …"""
    logits = scores(channels_last(images)).scatter(1, labels[:, None], -torch.inf)
    return logits.argsort(1, descending=True)[:, other]


def auto_pgd(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    steps: int,
    other: int | None = None,
) -> Tensor:
    """Attack by APGD from a random point: on the cross-entropy or, against a `likely_class`, on the targeted DLR loss."""
    start = images + radius * noise(images, streams, 0 if other is None else 1 + other)
    targets = None if other is None else likely_class(scores, images, labels, other)

    def aim(views: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = scores(views)
        if targets is None:
            loss = cross_entropy(logits, labels[rows])
        else:
            loss = targeted_dlr(logits, labels[rows], targets[rows])
        return loss, logits.argmax(1) != labels[rows]

    return ascend(aim, images, radius, start, steps)[1]


def targeted_dlr(
    logits: Tensor,
    labels: Tensor,
    targets: Tensor,
) -> Tensor:
    """(z_t − z_y) / (z_π1 − (z_π3 + z_π4) / 2), [B] (section 4.1).

    z_π1 ≥ z_π2 ≥ … are the sorted scores: scaled scores give the same. With fewer than four classes nothing divides.
    """
    label = logits.gather(1, labels[:, None])[:, 0]
    target = logits.gather(1, targets[:, None])[:, 0]
    if logits.shape[1] < 4:
        return target - label
    top = logits.topk(4).values
    return (target - label) / (top[:, 0] - top[:, 2:].mean(1) + 1e-12)


def ascend(
    aim: Aim,
    images: Tensor,
    radius: float,
    start: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Return the view with the largest loss of each image [B, C, H, W], and whether one was enough, bool [B].

    z = Π(x_k + η·sign ∂ℓ/∂x), x_k+1 = Π(x_k + ¾·(z − x_k) + ¼·(x_k − x_k−1)), with η = 2·radius at first (algorithm 1).
    At checkpoints, which grow closer, η is halved and x goes back to where ℓ was largest, for images whose ℓ rose in at
    most three quarters of the steps since the last one, or whose largest ℓ is the same and η, too. What is enough is
    not moved further: its view is the last one.
    """
    low = (images - radius).clamp(min=0)
    high = (images + radius).clamp(max=1)
    view = before = best_view = start.clamp(low, high)
    slope = best_slope = torch.zeros_like(view)
    none = torch.zeros_like(images[:, 0, 0, 0])
    loss = none + torch.inf
    best_loss = none - torch.inf
    checked_loss = best_loss  # at the last checkpoint
    rises = none  # steps since the last checkpoint that raised the loss
    step_size = none + 2 * radius
    halved = torch.ones_like(none, dtype=torch.bool)  # by the last checkpoint
    enough = torch.zeros_like(halved)
    length = max(int(_FIRST_CHECK * steps), 1)
    check = length
    for number in range(steps + 1):
        # look at the views that are not enough yet
        rows = (~enough).nonzero()[:, 0]
        if not len(rows):
            break
        views = channels_last(view[rows]).requires_grad_()
        with torch.enable_grad():
            losses, done = aim(views, rows)
        (slopes,) = torch.autograd.grad(losses.sum(), views)
        latest = loss.index_copy(0, rows, losses.detach())
        slope = slope.index_copy(0, rows, slopes)
        enough = enough.index_copy(0, rows, done)
        # keep the best ones
        rises = rises + (latest > loss)
        loss = latest
        best = loss > best_loss
        best_loss = torch.where(best, loss, best_loss)
        best_view = torch.where(_wide(best), view, best_view)
        best_slope = torch.where(_wide(best), slope, best_slope)
        if number in (0, check):
            if number:
                # halve the step size and go back, where the last steps were of little use
                few = rises <= _RISES * length
                halved = few | (~halved & (checked_loss >= best_loss))
                step_size = torch.where(halved, step_size / 2, step_size)
                view = torch.where(_wide(halved & ~enough), best_view, view)
                slope = torch.where(_wide(halved), best_slope, slope)
                length = max(length - max(int(_CLOSER * steps), 1), int(_LAST_CHECK * steps), 1)
                check += length
            checked_loss = best_loss
            rises = torch.zeros_like(rises)
        if number < steps:
            momentum = _MOMENTUM if number else 1.0
            ahead = torch.clamp(view + _wide(step_size) * slope.sign(), low, high)
            moved = view + momentum * (ahead - view) + (1 - momentum) * (view - before)
            before = view
            view = torch.where(_wide(enough), view, torch.clamp(moved, low, high))
    return torch.where(_wide(enough), view, best_view), enough


def _wide(values: Tensor) -> Tensor:
    """Values [b] for pixels, [b, 1, 1, 1]."""
    return values[:, None, None, None]


def fab_t(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    steps: int,
    other: int,
) -> Tensor:
    """Attack images [B, C, H, W] by FAB against a `likely_class`; True for those misclassified, bool [B].

    FAB looks for the nearest point where the target's score is the label's (Croce & Hein 2020, arXiv 1907.02044,
    algorithm 1): x_k+1 = (1 − α)(x_k + η·d) + α·(x_0 + η·d_0), clipped to [0, 1]. d and d_0 lead from x_k and x_0 to
    the plane where both scores, linearised at x_k, are equal; α = min(0.1, ‖d‖ / (‖d‖ + ‖d_0‖)), η = 1.05. What is
    misclassified goes back to x_0 by a tenth.
    """
    targets = likely_class(scores, images, labels, other)
    wrong = torch.zeros_like(labels, dtype=torch.bool)
    rows = torch.arange(len(images), device=images.device)
    view = images
    for _ in range(steps):
        # linearise the difference of both scores
        views = channels_last(view).requires_grad_()
        with torch.enable_grad():
            logits = scores(views)
            label = logits.gather(1, labels[rows, None])
            gap = label - logits.gather(1, targets[rows, None])  # [b, 1]
        (slope,) = torch.autograd.grad(-gap.sum(), views)
        # move to where it is zero, from the view and from the image
        own = images[rows].flatten(1)
        at = view.detach().flatten(1)
        slopes = slope.flatten(1)
        move = least_move(at, slopes, gap.detach())
        gap_own = gap.detach() + (slopes * (at - own)).sum(1, keepdim=True)
        move_own = least_move(own, slopes, gap_own)
        far = move.abs().amax(1, keepdim=True).clamp(min=1e-8)
        far_own = move_own.abs().amax(1, keepdim=True).clamp(min=1e-8)
        share = (far / (far + far_own)).clamp(max=_BIAS)
        moved = (1 - share) * (at + _OVERSHOOT * move) + share * (own + _OVERSHOOT * move_own)
        view = moved.clamp(0, 1).view_as(view)
        # keep what is misclassified within the radius, and go on with the others
        with torch.no_grad():
            away = scores(channels_last(view)).argmax(1) != labels[rows]
        offset = view - images[rows]
        done = away & (offset.abs().amax((1, 2, 3)) <= radius)
        wrong[rows[done]] = True
        view = torch.where(_wide(away), images[rows] + (1 - _BACK) * offset, view)[~done]
        rows = rows[~done]
        if not len(rows):
            break
    return wrong


def least_move(
    points: Tensor,
    slopes: Tensor,
    gap: Tensor,
) -> Tensor:
    """The least δ in L∞ with ⟨slopes, δ⟩ = gap and points + δ in [0, 1], [B, N]; as near as the bounds let it.

    Each coordinate moves by the same τ, or as far as there is room: the sum over coordinates of |slope|·min(τ, room)
    grows with τ and is linear between rooms. points, slopes: [B, N]. gap: [B, 1].
    """
    signs = slopes.sign() * gap.sign()
    rooms = torch.where(signs > 0, 1 - points, points)
    ordered, order = rooms.sort(1)
    weights = slopes.abs().gather(1, order)
    full = (weights * ordered).cumsum(1) - weights * ordered  # by coordinates with less room
    rest = weights.flip(1).cumsum(1).flip(1)
    place = torch.searchsorted(full + rest * ordered, gap.abs()).clamp(max=points.shape[1] - 1)
    tiny = torch.finfo(rest.dtype).tiny
    tau = (gap.abs() - full.gather(1, place)) / rest.gather(1, place).clamp(min=tiny)
    return signs * torch.minimum(rooms, tau)


@torch.no_grad()
def square(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    queries: int,
) -> Tensor:
    """True for each image [B, C, H, W] that one of `queries` views gets misclassified, without gradients; bool [B].

    Stripes of ±radius at first; then, one square of pixels after another, ±radius of each channel, kept where the
    margin grows (Andriushchenko et al. 2020, arXiv 1912.00049, algorithms 1 and 2).
    """
    channels, height, width = images.shape[1:]
    low = (images - radius).clamp(min=0)
    high = (images + radius).clamp(max=1)
    squares = PerImage([stream.child("square") for stream in streams], images.device)
    stripes = PerImage([stream.child("stripes") for stream in streams], images.device)
    drawn = squares.uniform(queries, 2 + channels)  # [B, queries, 2 + C]
    signs = (stripes.uniform(channels, 1, width) - 0.5).sign()
    best = torch.clamp(images + radius * signs, low, high)
    logits = scores(channels_last(best))
    wrong = logits.argmax(1) != labels
    largest = margin(logits, labels)
    for number in range(1, queries):
        rows = (~wrong).nonzero()[:, 0]
        if not len(rows):
            break
        # draw a square and a sign of each channel
        halvings = sum(number / queries * 10000 > query for query in _HALVES)
        side = round(math.sqrt(_SHARE / 2**halvings * height * width))
        side = min(max(side, 1), height, width)
        top, left = drawn[rows, number, :2].unbind(1)
        square = _interval(top, side, height)[:, :, None] & _interval(left, side, width)[:, None]
        ends = radius * (drawn[rows, number, 2:] - 0.5).sign()[:, :, None, None]
        view = torch.clamp(images[rows] + ends, low[rows], high[rows])
        view = torch.where(square[:, None], view, best[rows])
        # keep the view if the margin grows
        logits = scores(channels_last(view))
        margins = margin(logits, labels[rows])
        grown = margins > largest[rows]
        best[rows[grown]] = view[grown]
        largest[rows[grown]] = margins[grown]
        wrong[rows] = logits.argmax(1) != labels[rows]
    return wrong


def _interval(
    at: Tensor,
    length: int,
    size: int,
) -> Tensor:
    """True within intervals of `length` among `size` pixels, bool [b, size]; at: [b] in [0, 1), where they lie."""
    first = (at * (size - length + 1)).floor()[:, None]
    places = torch.arange(size, device=at.device)
    return (places >= first) & (places < first + length)
