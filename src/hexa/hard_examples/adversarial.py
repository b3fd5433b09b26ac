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

#: Largest allowed ε in units of 1/255: a quarter of the range.
_FARTHEST = 64
#: Smallest ε, in units of 1/255, at which one-step overfitting was observed.
_FEARED = 2
#: Number of steps of the attack that reveals overfitting to one step.
_JUDGED_BY = 10


class Adversarial(HardExample):
    """x_adv = clip(x + δ), after n steps of δ ← Π_ε(δ + η·sign ∂L/∂x(x + δ)), with fixed
    pseudo-labels.

    Projected gradient ascent on the source's loss. With one step and no random start this is x +
    min(ε, η)·sign ∂L/∂x, with ε and η in units of 1/255. No gradient flows through the attack.
    Pixels are in [0, 1], so one radius fits all channels of any data set.
    Costs n input-gradient passes; the first is free if the source's own pass kept its gradient
    (F18).
    The default is the published attack: 1 step, ε = η = 1/255. N-FGSM (de Jorge et al., NeurIPS
    2022, algorithm 1) is x + n + ε·sign ∂L/∂x(x + n) with noise n uniform in [−2ε, 2ε].
    """

    is_static: ClassVar = True

    kind: Literal["adversarial"] = "adversarial"
    norm: Literal["linf", "l2"] = "linf"
    """linf: sign steps in a box. l2: steps along the gradient in a ball, per image and crop
    (D1)."""
    epsilon: (
        NonNegativeFloat | Annotated[tuple[NonNegativeFloat, ...], pydantic.Field(min_length=1)]
    ) = 1.0
    """Radius ε of the ball, in units of 1/255 (l2: see `unit`), such as 0.25. From a list, each
    image draws one."""
    step_size: NonNegativeFloat = 1.0
    """Step size η, in the same unit as `epsilon`. With one step only min(ε, η) matters."""
    unit: Literal["grey", "pixel", "rms"] | None = None
    """Unit of ε and η. grey: 1/255, the default for linf. pixel: the whole range 0 to 1, the default
    for l2 (D2). rms, l2 only: root mean square over an image in units of 1/255, so a step is as long
    as a sign step with the same η at every image size."""
    steps: PositiveInt = 1
    """Number of steps; the first is free if the gradient is shared."""
    random_start: bool | NonNegativeFloat = 0.0
    """Start from a random point of the ball (l2: of its surface) with radius `random_start` · ε
    (true is 1); then no step is free (D4)."""
    project: bool = True
    """Project views to the ball, Π_ε. With false, views stay where the step from a random start
    ends, as in N-FGSM (random_start 2, step_size ε)."""
    clip: bool = True
    """Clip pixels to [0, 1] (D3)."""
    generation: Literal["main_train", "aux_train", "aux_eval", "main_eval"] = "main_train"
    """Batch-norms for computing the attack; main_train shares the gradient of the clean pass
    (D5)."""
    crops: Literal["all", "large"] = "all"
    """all: attack and train on every crop. large: only the first crops that have the size of the
    first one, which cost the most (D21)."""
    branch: Literal["aux", "main"] = "aux"
    """Batch-norms for training on the adversarial views (F14)."""

    @pydantic.model_validator(mode="after")
    def _reaches_its_radii(self) -> Self:
        if self.unit_used == "rms" and self.norm == "linf":
            raise ValueError("unit rms needs an l2 ball; use norm l2 or unit grey")
        several = isinstance(self.epsilon, tuple)
        largest = max(self.epsilon) if isinstance(self.epsilon, tuple) else self.epsilon
        if (self.norm, self.unit_used) == ("linf", "grey") and largest > _FARTHEST:
            problem = f"epsilon is in units of 1/255, and {largest:g}/255 destroys the image"
            raise ValueError(
                f"{problem}; use at most {_FARTHEST}, or unit pixel for a share of the range 0 to 1"
            )
        if not self.project and not self.random_start:
            raise ValueError("project false needs a random start; use random_start 2")
        if not largest and self.random_start:
            raise ValueError("random_start with epsilon 0 changes nothing; use epsilon above 0")
        # for a single radius, the published attack uses min(ε, η)
        if several and self.steps * self.step_size < largest:
            problem = (
                f"{self.steps} x step_size {self.step_size:g} never reaches epsilon {largest:g}"
            )
            raise ValueError(f"{problem}; use step_size {largest / self.steps:g} or more")
        return self

    @property
    def unit_used(self) -> str:
        """The unit of ε and η: the field, or the default of the norm."""
        return self.unit or ("pixel" if self.norm == "l2" else "grey")

    def judge(self) -> Self | None:
        """Return ten steps of ε / 4 in the same ball, for a single sign step with ε ≥ 2/255;
        otherwise None."""
        radius = self.epsilon
        in_grey = (self.norm, self.unit_used) == ("linf", "grey")
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
        # all crops, or the first ones of one size
        others = [crop.shape[-1] != clean[0].shape[-1] for crop in clean]
        count = len(clean) if self.crops == "all" else [*others, True].index(True)
        epsilon = self._radii(clean[0], stream)
        # start at the clean views, or at random points around them
        views = (*self._start(clean[:count], epsilon, stream), *clean[count:])
        at = source.at(views) if self.random_start else source
        zeros: list[Tensor] = []
        for _ in range(self.steps):
            # raise the loss of the source's pseudo-labels; crops beyond `count` stay clean
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
        """Return ε, or one ε per image [B, 1, 1, 1] for all its crops; not yet scaled to pixels."""
        if not isinstance(self.epsilon, tuple):
            return self.epsilon
        count = len(crop)
        dtype = crop.dtype

        def draw(own: Stream) -> Tensor:
            radii = torch.tensor(self.epsilon, dtype=dtype)
            return radii[draws.integers(count, len(radii), own)].view(-1, 1, 1, 1)

        return draws.drawn(draw, stream.child("epsilon"), crop.device)

    def _scale(self, crop: Tensor) -> float:
        """Return the pixel value, in [0, 1], of one unit of ε and η for crops [B, 3, S, S]."""
        if self.unit_used == "pixel":
            return 1.0
        return math.sqrt(crop[0].numel()) / 255 if self.unit_used == "rms" else 1 / 255

    def _start(
        self, clean: tuple[Tensor, ...], epsilon: float | Tensor, stream: Stream
    ) -> tuple[Tensor, ...]:
        if not self.random_start:
            return clean
        views = []
        for number, crop in enumerate(clean):
            radius = self.random_start * self._scale(crop) * epsilon
            noise = 2 * draws.like(torch.rand, crop, stream.child("start", number)) - 1
            views.append(self._inside(crop, noise * radius, radius))
        return tuple(views)

    def _step(
        self, clean: Tensor, view: Tensor, gradient: Tensor, epsilon: float | Tensor
    ) -> Tensor:
        # keep pixels whose gradient is not finite: a bad batch must not spoil running statistics
        gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        direction = gradient.sign() if self.norm == "linf" else gradient / _norms(gradient)
        scale = self._scale(clean)
        delta = (view - clean) + scale * self.step_size * direction
        return self._inside(clean, delta, scale * epsilon if self.project else None)

    def _inside(self, clean: Tensor, delta: Tensor, radius: float | Tensor | None) -> Tensor:
        """Return clean + δ, with δ projected to the ball (radius None: not projected) and pixels
        clipped to [0, 1]."""
        if radius is not None and self.norm == "linf":
            delta = delta.clamp(-radius, radius)  # type: ignore[arg-type]  # both numbers or both tensors
        elif radius is not None:
            delta = delta * (radius / _norms(delta)).clamp(max=1.0)
        view = clean + delta
        return view.clamp(0, 1) if self.clip else view


def _norms(images: Tensor) -> Tensor:
    """Return the Euclidean norm of each image, above 0, [B, 1, 1, 1].

    Images are scaled first because squares of tiny gradients underflow.
    """
    tiny = torch.finfo(images.dtype).tiny
    largest = images.abs().amax((1, 2, 3), keepdim=True)
    scaled = images / largest.clamp_min(tiny)
    norms = largest * scaled.square().sum((1, 2, 3), keepdim=True).sqrt()
    return norms.clamp_min(tiny)
