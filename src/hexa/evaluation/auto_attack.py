"""The four attacks of AutoAttack (Croce & Hein 2020, arXiv 2003.01690): APGD on two losses, FAB-T and Square."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from hexa.evaluation.attack import Attack, Scores, Streams, cross_entropy, margin, noise
from hexa.evaluation.corruptions.per_image import PerImage

#: Square's share of the pixels at first.
_SHARE = 0.8
#: Square's queries, of 10,000, after which it halves (Andriushchenko et al. 2020, section 4.1 and its code).
_HALVES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
#: APGD's first checkpoint as a share of the steps, and by how much the distances between checkpoints shrink, down to
#: the last (algorithm 1).
_FIRST_CHECK = 0.22
_CLOSER = 0.03
_LAST_CHECK = 0.06
#: Share of steps since the last checkpoint that must raise the loss, or APGD halves the step size.
_RISES = 0.75
#: Weight of the new step in APGD's momentum.
_MOMENTUM = 0.75

#: Views [b, C, H, W] and their places in the batch -> what an ascent raises [b], and whether a view is enough, bool [b].
Aim = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def apgd(steps: int, targets: int) -> list[Attack]:
    """APGD on the cross-entropy, then on the targeted DLR loss against each of the most likely other classes."""
    return [
        partial(apgd_ce, steps=steps),
        *(partial(apgd_t, steps=steps, number=number) for number in range(targets)),
    ]


def apgd_name(steps: int, targets: int, classes: int) -> str:
    """The name of `apgd` for this number of classes, such as APGD-CE and APGD-T (20 steps, 3 targets)."""
    used = min(targets, classes - 1)
    return f"APGD-CE and APGD-T ({steps} steps, {used} target{'s' if used != 1 else ''})"


def auto_attack(steps: int, targets: int, queries: int) -> list[Attack]:
    """`apgd`, FAB against the same targets, and Square."""
    boundary = [partial(fab_t, steps=steps, number=number) for number in range(targets)]
    return [*apgd(steps, targets), *boundary, partial(square_attack, queries=queries)]


def apgd_ce(
    scores: Scores, images: Tensor, labels: Tensor, radius: float, streams: Streams, steps: int
) -> Tensor:
    """Attack by APGD on the cross-entropy, from a random point."""
    start = images + radius * noise(images, streams, 0)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        return cross_entropy(logits, labels[rows])

    return auto_pgd(scores, images, labels, radius, start, steps, loss)


def apgd_t(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    steps: int,
    number: int,
) -> Tensor:
    """Attack by APGD on the targeted DLR loss, from a random point. number: 0 is the most likely other class."""
    targets = likely_class(scores, images, labels, number)
    if targets is None:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device)
    start = images + radius * noise(images, streams, 1 + number)

    def loss(logits: Tensor, rows: Tensor) -> Tensor:
        return targeted_dlr(logits, labels[rows], targets[rows])

    return auto_pgd(scores, images, labels, radius, start, steps, loss)


def fab_t(
    scores: Scores,
    images: Tensor,
    labels: Tensor,
    radius: float,
    streams: Streams,
    steps: int,
    number: int,
) -> Tensor:
    """Attack by FAB against one class. number: 0 is the most likely other class."""
    targets = likely_class(scores, images, labels, number)
    if targets is None:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device)
    both = torch.stack([labels, targets], 1)
    return fast_adaptive_boundary(scores, images, both, radius, steps)


@torch.no_grad()
def likely_class(scores: Scores, images: Tensor, labels: Tensor, number: int) -> Tensor | None:
    """The other class with the highest score of each image [B], or the one `number` below it; None if there is none."""
    logits = scores(images.contiguous(memory_format=torch.channels_last))
    if number >= logits.shape[1] - 1:
        return None
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.argsort(1, descending=True)[:, number]


def targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """(z_t − z_y) / (z_π1 − (z_π3 + z_π4) / 2), [B] (section 4.1).

    z_π1 ≥ z_π2 ≥ … are the sorted scores: scaled scores give the same. With fewer than four classes nothing divides.
    """
    label = logits.gather(1, labels[:, None])[:, 0]
    target = logits.gather(1, targets[:, None])[:, 0]
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
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Attack images [B, C, H, W] by APGD; True for those misclassified on the way from `start`, bool [B].

    loss: class scores [b, K] and places in the batch [b] -> what the attack raises, [b].
    """

    def aim(views: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = scores(views)
        return loss(logits, rows), logits.argmax(1) != labels[rows]

    return ascend(aim, images, radius, start, steps)[1]


@dataclass
class _Climb:
    """What APGD knows of each image that it still moves, [b] or [b, C, H, W]."""

    #: Place in the batch.
    row: Tensor
    view: Tensor
    #: The view before `view`.
    before: Tensor
    #: Gradient at `view`.
    slope: Tensor
    #: Loss at `view`.
    loss: Tensor
    best_view: Tensor
    best_slope: Tensor
    best_loss: Tensor
    #: `best_loss` at the last checkpoint.
    checked_loss: Tensor
    step_size: Tensor
    #: Whether the last checkpoint halved the step size.
    halved: Tensor
    #: Steps since the last checkpoint that raised the loss.
    rises: Tensor

    def of(self, kept: Tensor) -> _Climb:
        """The images of `kept`, bool [b]."""
        return _Climb(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})

    def look(self, views: Tensor, loss: Tensor, slope: Tensor) -> None:
        """Take the loss [b] and its gradient at the view."""
        self.rises = self.rises + (loss > self.loss)
        self.loss = loss
        self.slope = slope
        best = loss > self.best_loss
        self.best_loss = torch.where(best, loss, self.best_loss)
        self.best_view = torch.where(_wide(best), views, self.best_view)
        self.best_slope = torch.where(_wide(best), slope, self.best_slope)

    def check(self, length: int) -> None:
        """Halve the step size and go back to the best view, where the last `length` steps were of little use."""
        few = self.rises <= _RISES * length
        stuck = ~self.halved & (self.checked_loss >= self.best_loss)
        self.halved = few | stuck
        self.step_size = torch.where(self.halved, self.step_size / 2, self.step_size)
        self.view = torch.where(_wide(self.halved), self.best_view, self.view)
        self.slope = torch.where(_wide(self.halved), self.best_slope, self.slope)
        self.begin_check()

    def begin_check(self) -> None:
        """Count from here to the next checkpoint."""
        self.checked_loss = self.best_loss
        self.rises = torch.zeros_like(self.rises)

    def move(self, low: Tensor, high: Tensor, momentum: float) -> None:
        """Take a step within the box."""
        ahead = self.view + _wide(self.step_size) * self.slope.sign()
        ahead = torch.clamp(ahead, low[self.row], high[self.row])
        moved = self.view + momentum * (ahead - self.view)
        moved = moved + (1 - momentum) * (self.view - self.before)
        self.before = self.view
        self.view = torch.clamp(moved, low[self.row], high[self.row])


def ascend(
    aim: Aim, images: Tensor, radius: float, start: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Return the view with the largest loss of each image [B, C, H, W], and whether one was enough, bool [B].

    z = Π(x_k + η·sign ∂ℓ/∂x), x_k+1 = Π(x_k + ¾·(z − x_k) + ¼·(x_k − x_k−1)), with η = 2·radius at first (algorithm 1).
    At checkpoints, which grow closer, η is halved and x goes back to where ℓ was largest, for images whose ℓ rose in at
    most three quarters of the steps since the last one, or whose largest ℓ is the same and η, too. What is enough is
    not moved further: its view is the last one.
    """
    low = (images - radius).clamp(min=0)
    high = (images + radius).clamp(max=1)
    found = start.clamp(low, high)
    enough = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    none = torch.zeros(len(images), dtype=images.dtype, device=images.device)
    climb = _Climb(
        row=torch.arange(len(images), device=images.device),
        view=found,
        before=found,
        slope=torch.zeros_like(found),
        loss=none + torch.inf,
        best_view=found,
        best_slope=torch.zeros_like(found),
        best_loss=none - torch.inf,
        checked_loss=none,
        step_size=none + 2 * radius,
        halved=torch.ones_like(enough),
        rises=none,
    )
    found = found.clone()
    length = max(int(_FIRST_CHECK * steps), 1)
    since = 0
    for number in range(steps + 1):
        views = climb.view.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        with torch.enable_grad():
            loss, done = aim(views, climb.row)
        (slope,) = torch.autograd.grad(loss.sum(), views)
        climb.look(views.detach(), loss.detach(), slope)
        found[climb.row] = torch.where(_wide(done), views.detach(), climb.best_view)
        enough[climb.row] = done
        climb = climb.of(~done)
        if number == steps or not len(climb.row):
            break
        if number == 0:
            climb.begin_check()
        elif since == length:
            climb.check(length)
            length = max(length - max(int(_CLOSER * steps), 1), max(int(_LAST_CHECK * steps), 1))
            since = 0
        climb.move(low, high, _MOMENTUM if number else 1.0)
        since += 1
    return found, enough


def _wide(values: Tensor) -> Tensor:
    """Values [b] for pixels, [b, 1, 1, 1]."""
    return values[:, None, None, None]


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
    rows = torch.arange(len(images), device=images.device)
    view = images
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
    low = (images - radius).clamp(min=0)
    high = (images + radius).clamp(max=1)
    squares, stripes = (
        PerImage([s.child(name) for s in streams], images.device) for name in ("square", "stripes")
    )
    drawn = squares.uniform(queries, 2 + channels)  # [B, queries, 2 + C]
    best = torch.clamp(
        images + radius * (stripes.uniform(channels, 1, width) - 0.5).sign(), low, high
    )
    logits = scores(best.contiguous(memory_format=torch.channels_last))
    wrong = logits.argmax(1) != labels
    largest = margin(logits, labels)
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
