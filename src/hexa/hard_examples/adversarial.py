"""Adversarial views: a step against the method's own loss (F13, F14)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import pydantic
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from hexa.core import Branch, Example, HardExample
from hexa.core.hard_example import mean_change
from hexa.ops import draws
from hexa.runtime.random import Stream

#: The largest ε in grey levels, a quarter of the range.
_FARTHEST = 64
#: The least ε in grey levels to which networks were seen to overfit.
_FEARED = 2
#: Steps of the attack that shows overfitting to one step.
_JUDGED_BY = 10


class Adversarial(HardExample):
    """x_adv = clip(x + δ), after n steps of δ ← Π_ε(δ + η·sign ∂L/∂x(x + δ)), the pseudo-labels held fixed.

    With one step and no random start this is x + min(ε, η)·sign ∂L/∂x, in grey levels. It is data from then on: no
    gradient flows through the attack. The pixels are in [0, 1], so one radius serves all channels of any data set.
    Costs n input-gradient passes, the first of them free if the source's own pass left its gradient (F18).
    Projected gradient ascent on the source's loss. The default is the published one: 1 step, ε = η = 1. N-FGSM (de
    Jorge et al., NeurIPS 2022, algorithm 1) is x + n + ε·sign ∂L/∂x(x + n) for noise n uniform in [−2ε, 2ε].
    """

    is_static: ClassVar = True

    kind: Literal["adversarial"] = "adversarial"
    norm: Literal["linf", "l2"] = "linf"
    """linf: sign steps in a box; l2: steps along the gradient in a ball, per image and crop (D1)."""
    epsilon: (
        NonNegativeFloat | Annotated[tuple[NonNegativeFloat, ...], pydantic.Field(min_length=1)]
    ) = 1.0
    """Radius of the ball, in grey levels of 255, 0.25 for instance; of a list, each image draws one."""
    step_size: NonNegativeFloat = 1.0
    """Length of a step, η, in grey levels. With one step only min(ε, η) matters."""
    unit: Literal["grey", "pixel", "rms"] = "grey"
    """grey: ε and η are multiples of 1/255; pixel: of 1, the whole range, usual for l2 (D2). rms, for l2: root mean
    squares over an image in grey levels, so that a step is as long as a sign step of the same η, at every size."""
    steps: PositiveInt = 1
    """Steps of the attack; the first is free where the gradient is shared."""
    random_start: NonNegativeFloat = 0.0
    """Start from a random point of the ball of this multiple of ε (true is 1); then no step is free (D4)."""
    project: bool = True
    """Keep views in the ball, Π_ε; false leaves them where the step from a random start ends, as N-FGSM does, which is
    random_start 2 and step_size ε."""
    clip: bool = True
    """Keep pixels in [0, 1] (D3)."""
    generation: Literal["main_train", "aux_train", "aux_eval", "main_eval"] = "main_train"
    """The batch-norms the attack goes through; main_train shares the gradient of the clean pass (D5)."""
    crops: Literal["all", "large"] = "all"
    """all: every crop is attacked and trained on; large: only the crops of the first one's size, which come first and
    cost the most (D21)."""
    branch: Literal["aux", "main"] = "aux"
    """The batch-norms the adversarial views are trained through (F14)."""

    @pydantic.model_validator(mode="after")
    def _reaches_its_radii(self) -> Self:
        if self.unit == "rms" and self.norm == "linf":
            raise ValueError("unit rms measures an l2 ball: give norm l2, or unit grey")
        several = isinstance(self.epsilon, tuple)
        largest = max(self.epsilon) if isinstance(self.epsilon, tuple) else self.epsilon
        if (self.norm, self.unit) == ("linf", "grey") and largest > _FARTHEST:
            problem = f"epsilon {largest:g} is in grey levels of 255, and such views show nothing"
            remedy = f"give at most {_FARTHEST}, or unit pixel for parts of the whole range"
            raise ValueError(f"{problem}; {remedy}")
        if not self.project and not self.random_start:
            raise ValueError("without projection a random start is needed; give random_start 2")
        if not largest and self.random_start:
            raise ValueError(
                "a random start within epsilon 0 is the clean view; give epsilon above 0"
            )
        # a single radius, as published, means the smaller of both
        if several and self.steps * self.step_size < largest:
            problem = (
                f"{self.steps} x step_size {self.step_size:g} never reaches epsilon {largest:g}"
            )
            raise ValueError(f"{problem}; give step_size {largest / self.steps:g} or more")
        return self

    def judge(self) -> Self | None:
        """Ten steps of ε / 4 in the same ball, for one sign step of 2 grey levels and more."""
        radius = self.epsilon
        in_grey = (self.norm, self.unit) == ("linf", "grey")
        if isinstance(radius, tuple) or self.steps > 1 or radius < _FEARED or not in_grey:
            return None
        return self.but(steps=_JUDGED_BY, step_size=radius / 4, random_start=1.0, project=True)

    def branches(self) -> tuple[str, ...]:
        return (self.branch, Branch.of(self.generation).name)

    @property
    def gradient_of_source(self) -> Branch | None:
        return None if self.random_start else Branch.of(self.generation)

    def __call__(self, source: Example, stream: Stream) -> Example:
        clean = tuple(crop.detach() for crop in source.crops)
        count = len(clean) if self.crops == "all" else _first_of_one_size(clean)
        epsilon = self._radii(clean[0], stream)
        # start at the clean views, or at random ones
        views = self._start(clean, epsilon, stream)
        at = source.at(views) if self.random_start else source
        zeros: list[Tensor] = []
        for _ in range(self.steps):
            # climb the loss of the source's pseudo-labels; crops beyond `count` stay clean
            gradient = at.gradient(Branch.of(self.generation))
            zeros = zeros or [(g == 0).float().mean() for g in gradient[:count]]
            attacked = zip(clean[:count], views, gradient, strict=False)
            stepped = [self._step(crop, view, g, epsilon) for crop, view, g in attacked]
            views = (*stepped, *clean[count:])
            at = source.at(views)
        views = views[:count]
        facts = {
            "perturbation": mean_change(views, clean),
            "zero_gradient": torch.stack(zeros).mean(),
        }
        made = source.at(source.crops).select(crops=count)
        return replace(made, crops=views, branch=Branch(self.branch), facts=facts)

    def _radii(self, crop: Tensor, stream: Stream) -> float | Tensor:
        """ε, or that of each image [B, 1, 1, 1], alike for all its crops; not scaled to pixels."""
        if not isinstance(self.epsilon, tuple):
            return self.epsilon
        count = len(crop)
        dtype = crop.dtype

        def draw(own: Stream) -> Tensor:
            radii = torch.tensor(self.epsilon, dtype=dtype)
            return radii[draws.integers(count, len(radii), own)].view(-1, 1, 1, 1)

        return draws.drawn(draw, stream.child("epsilon"), crop.device)

    def _scale(self, crop: Tensor) -> float:
        """Pixel values, of 1, for one unit of ε and η in crops [B, 3, S, S]."""
        if self.unit == "pixel":
            return 1.0
        return math.sqrt(crop[0].numel()) / 255 if self.unit == "rms" else 1 / 255

    def _start(
        self, clean: tuple[Tensor, ...], epsilon: float | Tensor, stream: Stream
    ) -> tuple[Tensor, ...]:
        if not self.random_start:
            return clean
        views = []
        for number, crop in enumerate(clean):
            radius = self.random_start * self._scale(crop) * epsilon
            noise = 2 * draws.uniform_like(crop, stream.child("start", number)) - 1
            views.append(self._inside(crop, noise * radius, radius))
        return tuple(views)

    def _step(
        self, clean: Tensor, view: Tensor, gradient: Tensor, epsilon: float | Tensor
    ) -> Tensor:
        # a gradient that is not finite leaves its pixels alone: one bad batch must not poison the running statistics
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        direction = gradient.sign() if self.norm == "linf" else gradient / _norms(gradient)
        scale = self._scale(clean)
        delta = (view - clean) + scale * self.step_size * direction
        return self._inside(clean, delta, scale * epsilon if self.project else None)

    def _inside(self, clean: Tensor, delta: Tensor, radius: float | Tensor | None) -> Tensor:
        """clean + δ with δ projected to the ball, unless the radius is None, and pixels to [0, 1]."""
        if radius is not None and self.norm == "linf":
            delta = delta.clamp(-radius, radius)  # type: ignore[arg-type]  # both numbers or both tensors
        elif radius is not None:
            delta = delta * (radius / _norms(delta)).clamp(max=1.0)
        view = clean + delta
        return view.clamp(0, 1) if self.clip else view


def _norms(images: Tensor) -> Tensor:
    """The Euclidean norm of each image, above 0, [B, 1, 1, 1]; scaled first, since squares of tiny gradients underflow."""
    tiny = torch.finfo(images.dtype).tiny
    largest = images.abs().amax((1, 2, 3), keepdim=True)
    scaled = images / largest.clamp_min(tiny)
    norms = largest * scaled.square().sum((1, 2, 3), keepdim=True).sqrt()
    return norms.clamp_min(tiny)


def _first_of_one_size(crops: tuple[Tensor, ...]) -> int:
    """The number of crops at the beginning that have the size of the first."""
    sizes = [crop.shape[-1] == crops[0].shape[-1] for crop in crops]
    return [*sizes, False].index(False)
