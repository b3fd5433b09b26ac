"""The four attacks of AutoAttack (Croce & Hein 2020, arXiv 2003.01690): APGD on two losses, FAB-T and Square."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hexa.evaluation.attack import Attack, Loss, Scores, Streams, cross_entropy, margin, noise
from hexa.evaluation.corruptions.per_image import PerImage

#: Square's share of the pixels at first, and the queries of 10,000 after which it halves (Andriushchenko et al. 2020,
#: section 4.1 and its code).
_SHARE, _HALVES = 0.8, (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def auto_attack(steps: int, targets: int, queries: int) -> list[Attack]:
    """APGD on the cross-entropy; targeted APGD and FAB, each against the most likely other classes; Square."""

    def untargeted(s: Scores, x: Tensor, y: Tensor, radius: float, streams: Streams) -> Tensor:
        return auto_pgd(s, x, y, radius, x + radius * noise(x, streams, 0), steps, cross_entropy)

    def targeted(
        fab: bool, number: int, s: Scores, x: Tensor, y: Tensor, radius: float, streams: Streams
    ) -> Tensor:
        with torch.no_grad():
            logits = s(x.contiguous(memory_format=torch.channels_last))
        if number >= logits.shape[1] - 1:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        # the target goes through beside the label, as the attack leaves out images on its way
        both = torch.stack(
            [y, logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)[:, number]], 1
        )
        if fab:
            return fast_adaptive_boundary(s, x, both, radius, steps)
        return auto_pgd(
            s, x, both, radius, x + radius * noise(x, streams, 1 + number), steps, targeted_dlr
        )

    at_targets = [
        partial(targeted, fab, number) for fab in (False, True) for number in range(targets)
    ]
    return [untargeted, *at_targets, partial(square_attack, queries=queries)]


def targeted_dlr(logits: Tensor, both: Tensor) -> Tensor:
    """(z_t − z_y) / (z_π1 − (z_π3 + z_π4) / 2), [B], for labels and targets `both` [B, 2] (section 4.1).

    z_π1 ≥ z_π2 ≥ … are the sorted scores: scaled scores give the same. With fewer than four classes nothing divides.
    """
    label, target = logits.gather(1, both).unbind(1)
    if logits.shape[1] < 4:
        return target - label
    top = logits.topk(4).values
    return (target - label) / (top[:, 0] - top[:, 2:].mean(1) + 1e-12)


def auto_pgd(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    start: Tensor,
    steps: int,
    loss: Loss,
) -> Tensor:
    """Whether images [B, C, H, W] are misclassified on the way from `start` within `radius`, bool [B] (algorithm 1).

    z = Π(x_k + η·sign ∂ℓ/∂x), x_k+1 = Π(x_k + ¾·(z − x_k) + ¼·(x_k − x_k−1)), with η = 2·radius at first. At
    checkpoints, which grow closer, η is halved and x goes back to where ℓ was largest, for images whose ℓ rose in at
    most three quarters of the steps since the last one, or whose largest ℓ is the same and η, too. labels: [B], or
    labels and targets [B, 2], as `loss` takes them.
    """
    wrong = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    rows = torch.arange(
        len(images), device=images.device
    )  # of images that are still classified correctly
    low, high = (images - radius).clamp(min=0), (images + radius).clamp(max=1)
    view = start.clamp(low, high)
    none = torch.zeros(len(images), device=images.device, dtype=images.dtype)
    now = {
        "view": view,
        "before": view,
        "best": view,
        "slope": torch.zeros_like(view),
        "best slope": view,
    }
    now |= {"low": low, "high": high, "labels": labels, "step": none + 2 * radius, "risen": none}
    now |= {
        "value": none - torch.inf,
        "largest": none - torch.inf,
        "checked": none - torch.inf,
        "halved": none + 1,
    }
    length, since = max(int(0.22 * steps), 1), 0
    for number in range(steps + 1):
        views = now["view"].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        with torch.enable_grad():
            logits = scores(views)
            values = loss(logits, now["labels"])
        (slope,) = torch.autograd.grad(values.sum(), views)
        right = logits.argmax(1) == (now["labels"] if labels.ndim == 1 else now["labels"][:, 0])
        wrong[rows] = ~right
        values = values.detach()
        now["risen"] = now["risen"] + (values > now["value"])
        grown = values > now["largest"]
        now |= {
            "value": values,
            "slope": slope,
            "largest": torch.where(grown, values, now["largest"]),
        }
        wide = grown[:, None, None, None]
        now |= {"best": torch.where(wide, views.detach(), now["best"])}
        now |= {"best slope": torch.where(wide, slope, now["best slope"])}
        rows, now = rows[right], {name: value[right] for name, value in now.items()}
        if number == steps or not len(rows):
            break
        if number == 0:
            now |= {"risen": torch.zeros_like(now["risen"]), "checked": now["largest"]}
        elif (since := since + 1) == length:
            halve = (now["risen"] <= 0.75 * length) | (now["halved"] == 0) & (
                now["checked"] >= now["largest"]
            )
            back = halve[:, None, None, None]
            now |= {
                "step": torch.where(halve, now["step"] / 2, now["step"]),
                "halved": halve.to(now["step"].dtype),
            }
            now |= {"view": torch.where(back, now["best"], now["view"]), "checked": now["largest"]}
            now |= {"slope": torch.where(back, now["best slope"], now["slope"])}
            now["risen"] = torch.zeros_like(now["risen"])
            length, since = max(length - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1)), 0
        view, share = now["view"], 0.75 if number else 1.0
        ahead = torch.clamp(
            view + now["step"][:, None, None, None] * now["slope"].sign(), now["low"], now["high"]
        )
        moved = view + share * (ahead - view) + (1 - share) * (view - now["before"])
        now |= {"before": view, "view": torch.clamp(moved, now["low"], now["high"])}
    return wrong


def fast_adaptive_boundary(
    scores: Scores, images: Tensor, both: Tensor, radius: float, steps: int
) -> Tensor:
    """Attack images [B, C, H, W] by targeted FAB; True for those misclassified within `radius`, bool [B].

    FAB looks for the nearest point where the target's score is the label's (Croce & Hein 2020, arXiv 1907.02044,
    algorithm 1): x_k+1 = (1 − α)(x_k + η·d) + α·(x_0 + η·d_0), clipped to [0, 1]. d and d_0 lead from x_k and x_0 to
    the plane where both scores, linearised at x_k, are equal; α = min(0.1, ‖d‖ / (‖d‖ + ‖d_0‖)), η = 1.05. What is
    misclassified goes back to x_0 by a tenth. both: labels and targets, [B, 2].
    """
    wrong = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    rows, view = torch.arange(len(images), device=images.device), images
    for _ in range(steps):
        views = view.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        with torch.enable_grad():
            label, target = scores(views).gather(1, both).unbind(1)
        (slope,) = torch.autograd.grad(target.sum() - label.sum(), views)
        at, own, slopes = (pixels.detach().flatten(1) for pixels in (views, images, slope))
        gap = (label - target).detach()[:, None]
        move = least_move(at, slopes, gap)
        move_own = least_move(own, slopes, gap + (slopes * (at - own)).sum(1, keepdim=True))
        far, far_own = (
            moves.abs().amax(1, keepdim=True).clamp(min=1e-8) for moves in (move, move_own)
        )
        share = (far / (far + far_own)).clamp(max=0.1)
        view = (
            ((1 - share) * (at + 1.05 * move) + share * (own + 1.05 * move_own))
            .clamp(0, 1)
            .view_as(images)
        )
        with torch.no_grad():
            away = (
                scores(view.contiguous(memory_format=torch.channels_last)).argmax(1) != both[:, 0]
            )
        done = away & ((view - images).abs().amax((1, 2, 3)) <= radius)
        wrong[rows[done]] = True
        view = torch.where(away[:, None, None, None], images + 0.9 * (view - images), view)
        rows, images, both, view = (one[~done] for one in (rows, images, both, view))
        if not len(rows):
            break
    return wrong


def least_move(points: Tensor, slopes: Tensor, gap: Tensor) -> Tensor:
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
    tau = (gap.abs() - full.gather(1, place)) / rest.gather(1, place).clamp(
        min=torch.finfo(rest.dtype).tiny
    )
    return signs * torch.minimum(rooms, tau)


@torch.no_grad()
def square_attack(
    scores: Scores, images: Tensor, labels: Tensor, radius: float, streams: Streams, queries: int
) -> Tensor:
    """Whether images [B, C, H, W] are misclassified by one of `queries` views without gradients, bool [B].

    Stripes of ±radius at first; then, one square of pixels after another, ±radius of each channel, kept where the
    margin grows (Andriushchenko et al. 2020, arXiv 1912.00049, algorithms 1 and 2).
    """
    (channels, height, width), side = images.shape[1:], min(images.shape[2:])
    low, high = (images - radius).clamp(min=0), (images + radius).clamp(max=1)
    squares, stripes = (
        PerImage([s.child(name) for s in streams], images.device) for name in ("square", "stripes")
    )
    drawn = squares.uniform(queries, 2 + channels)  # [B, queries, 2 + C]
    best = torch.clamp(
        images + radius * (stripes.uniform(channels, 1, width) - 0.5).sign(), low, high
    )
    logits = scores(best.contiguous(memory_format=torch.channels_last))
    wrong, largest = logits.argmax(1) != labels, margin(logits, labels)
    y, x = (torch.arange(n, device=images.device).view(1, -1) for n in (height, width))
    for number in range(1, queries):
        rows = (~wrong).nonzero()[:, 0]
        if not len(rows):
            break
        halvings = sum(number / queries * 10000 > query for query in _HALVES)
        size = min(max(round(math.sqrt(_SHARE / 2**halvings * height * width)), 1), side)
        top, left, *signs = drawn[rows, number].unbind(1)
        first = [(at * (n - size + 1)).floor()[:, None] for at, n in ((top, height), (left, width))]
        tall, wide = (
            (at >= start) & (at < start + size) for at, start in zip((y, x), first, strict=True)
        )
        square = (tall[:, :, None] & wide[:, None, :])[:, None]
        ends = radius * (torch.stack(signs, 1) - 0.5).sign()[:, :, None, None]
        view = torch.where(
            square, torch.clamp(images[rows] + ends, low[rows], high[rows]), best[rows]
        )
        logits = scores(view.contiguous(memory_format=torch.channels_last))
        values = margin(logits, labels[rows])
        grown = values > largest[rows]
        best[rows[grown]], largest[rows[grown]] = view[grown], values[grown]
        wrong[rows] = logits.argmax(1) != labels[rows]
    return wrong
