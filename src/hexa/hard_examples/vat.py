"""Virtual adversarial views (Miyato et al., 2018; F29): against the network's own output, without a label."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hexa.core import Branch, Example, HardExample
from hexa.core.hard_example import mean_change
from hexa.ops import draws
from hexa.runtime.random import Stream


class VAT(HardExample):
    """x_vat = clip(x + ε·d), d the direction in which the embedding turns fastest:

        d ← unit(∇_r D(x, x + r) at r = ξ·d), from a random d,   D = 1 − cos(z(x), z(x + r)).

    D is a KL divergence up to a factor, for embeddings seen as von Mises–Fisher distributions of one concentration. The
    direction knows no pseudo-label; the view is trained to be recognised as its own. Helps where pseudo-labels are
    noisy (clusters early in training), since it does not climb a wrong label's loss. Where the pseudo-label is the
    network's own clean prediction p(x), `measure: loss` makes D the published KL(p(x) ‖ p(x + r)), up to a constant.
    Costs one forward pass, one input-gradient pass an iteration, and one full pass; nothing is shared.
    One power iteration, a perturbation of root mean square 1 grey level.
    """

    is_static: ClassVar = True

    kind: Literal["vat"] = "vat"
    epsilon: NonNegativeFloat = 1.0
    """Length of the perturbation: its root mean square over an image, in grey levels, so that it means the same at
    every size. (An L2 radius of ε·√(3·S·S) grey levels.)"""
    probe: PositiveFloat = 1.0
    """ξ: the length at which the direction is probed, like `epsilon`."""
    iterations: PositiveInt = 1
    """Power iterations."""
    measure: Literal["cosine", "loss"] = "cosine"
    """What D is: one minus the cosine of embeddings, or the method's own loss."""
    generation: Literal["main_train", "aux_train", "aux_eval", "main_eval"] = "main_train"
    """The batch-norms the direction is sought through."""
    branch: Literal["aux", "main"] = "aux"
    """The batch-norms the views are trained through."""
    update_statistics: bool = True
    """Let the views move the running statistics of these batch-norms."""

    def branches(self) -> tuple[str, ...]:
        return (self.branch, Branch.of(self.generation).name)

    def __call__(
        self,
        source: Example,
        stream: Stream,
    ) -> Example:
        through = replace(Branch.of(self.generation), update=False, learns=False)
        clean = tuple(crop.detach() for crop in source.crops)
        still = None
        if self.measure == "cosine":
            with torch.no_grad():
                still = source.score.embed(clean, through)
        noise = (draws.normal_like(crop, stream.child(number)) for number, crop in enumerate(clean))
        directions = tuple(_scaled(drawn, self.probe) for drawn in noise)
        for _ in range(self.iterations):
            with torch.enable_grad():
                steps = tuple(direction.requires_grad_() for direction in directions)
                views = tuple(crop + step for crop, step in zip(clean, steps, strict=True))
                found = torch.autograd.grad(self._distance(source, views, still, through), steps)
            finite = (torch.nan_to_num(gradient, 0.0, 0.0, 0.0) for gradient in found)
            directions = tuple(_scaled(gradient, self.probe) for gradient in finite)
        views = tuple(
            (crop + _scaled(direction, self.epsilon)).clamp(0, 1)
            for crop, direction in zip(clean, directions, strict=True)
        )
        branch = Branch(self.branch, update=self.update_statistics)
        facts = {"perturbation": mean_change(views, clean)}
        return replace(source.at(views), branch=branch, facts=facts)

    def _distance(
        self,
        source: Example,
        views: tuple[Tensor, ...],
        still: Tensor | None,
        through: Branch,
    ) -> Tensor:
        """D up to a constant; a sum over images, so that the gradient of one does not shrink with the batch."""
        if still is None:
            return source.score_at(views, through).sum()
        moved = source.score.embed(views, through)
        return -torch.cosine_similarity(moved.float(), still.float(), dim=-1).sum()


def _scaled(noise: Tensor, grey_levels: float) -> Tensor:
    """Images [B, 3, S, S] scaled to this root mean square, each; scaled first, since squares underflow."""
    tiny = torch.finfo(noise.dtype).tiny
    noise = noise / noise.abs().amax((1, 2, 3), keepdim=True).clamp_min(tiny)
    mean_square = noise.square().mean((1, 2, 3), keepdim=True)
    return noise * (grey_levels / 255 / mean_square.sqrt().clamp_min(tiny))
