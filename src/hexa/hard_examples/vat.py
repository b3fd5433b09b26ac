"""Virtual adversarial views (Miyato et al., 2018; F29): an attack on the network's own output,
without labels."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from hexa.core import Branch, Example, HardExample
from hexa.core.hard_example import mean_change
from hexa.core.micro_batches import MicroBatches
from hexa.ops import draws
from hexa.runtime.precision import at_least_fp32
from hexa.runtime.random import Stream


class VAT(HardExample):
    """x_vat = clip(x + ε·d), with d the direction in which the embedding changes fastest:

        d ← unit(∇_r D(x, x + r) at r = ξ·d), from a random d,   D = 1 − cos(z(x), z(x + r)).

    D is a KL divergence up to a factor, if embeddings are seen as von Mises–Fisher distributions of
    equal concentration. The direction does not depend on the pseudo-label; the loss of the view
    does. VAT is suited to noisy pseudo-labels (clusters early in training), because it does not
    raise the loss of a wrong label. If the pseudo-label is the network's own clean prediction p(x),
    `measure: loss` makes D the published KL(p(x) ‖ p(x + r)), up to a constant.
    The default is one power iteration and a perturbation with root mean square 1/255. Costs one
    forward pass, one input-gradient pass per iteration, and one full pass; no gradient is shared.
    """

    is_static: ClassVar = True

    kind: Literal["vat"] = "vat"
    epsilon: NonNegativeFloat = 1.0
    """Size of the perturbation: its root mean square over an image, in units of 1/255, at every
    image size. (As an L2 radius: ε·√(3·S·S)/255.)"""
    probe: PositiveFloat = 1.0
    """ξ: size of the perturbation while the direction is computed, in the unit of `epsilon`."""
    iterations: PositiveInt = 1
    """Number of power iterations."""
    measure: Literal["cosine", "loss"] = "cosine"
    """Distance D. cosine: one minus the cosine of embeddings; loss: the method's own loss."""
    generation: Literal["main_train", "aux_train", "aux_eval", "main_eval"] = "main_train"
    """Batch-norms for computing the direction."""
    branch: Literal["aux", "main"] = "aux"
    """Batch-norms for training on the views."""
    update_statistics: bool = True
    """Let the views update the running statistics of these batch-norms."""

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
                still = at_least_fp32(MicroBatches(source.score, clean, through).embedding())

        def distance(embedding: Tensor) -> Tensor:
            if still is None:
                return source.score.of(embedding, source.mixture).sum()
            return -torch.cosine_similarity(at_least_fp32(embedding), still, dim=-1).sum()

        noise = (
            draws.like(torch.randn, crop, stream.child(number)) for number, crop in enumerate(clean)
        )
        directions = tuple(_scaled(drawn, self.probe) for drawn in noise)
        for _ in range(self.iterations):
            views = tuple(crop + step for crop, step in zip(clean, directions, strict=True))
            found = source.score.gradient(source.at(views), through, distance)
            finite = (torch.nan_to_num(gradient, 0.0, 0.0, 0.0) for gradient in found)
            directions = tuple(_scaled(gradient, self.probe) for gradient in finite)
        views = tuple(
            (crop + _scaled(direction, self.epsilon)).clamp(0, 1)
            for crop, direction in zip(clean, directions, strict=True)
        )
        branch = Branch(self.branch, update=self.update_statistics)
        facts = {"perturbation": mean_change(views, clean)}
        return replace(source.at(views), branch=branch, facts=facts)


def _scaled(noise: Tensor, grey_levels: float) -> Tensor:
    """Return images [B, 3, S, S], each scaled to this root mean square, in units of 1/255.

    Images are scaled first because squares of tiny values underflow.
    """
    tiny = torch.finfo(noise.dtype).tiny
    noise = noise / noise.abs().amax((1, 2, 3), keepdim=True).clamp_min(tiny)
    mean_square = noise.square().mean((1, 2, 3), keepdim=True)
    return noise * (grey_levels / 255 / mean_square.sqrt().clamp_min(tiny))
