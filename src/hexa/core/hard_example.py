"""Hard examples: functions from one example to another whose pseudo-label is harder to predict
(F12)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from hexa.config import Config, PositiveShare, Share, UserError
from hexa.core.batch import Branch
from hexa.core.example import Example
from hexa.core.method import MethodConfig
from hexa.runtime.random import Stream


class HardExample(Config):
    """A kind of hard example: the fields configure it, and calling it makes views.

    A sub-class gives `kind` a default; configurations and the command line select the class by it.
    """

    #: True if a view combines two images and both pseudo-labels.
    mixes: ClassVar[bool] = False
    #: True if all steps call torch in the same way; see `Method.is_static`.
    is_static: ClassVar[bool] = False

    kind: str
    weight: NonNegativeFloat = 1.0
    """Loss weight α in the objective (F12). With 0 the run is identical to one without this hard
    example."""
    source: str = "std"
    """Example to start from: std (the clean views), or the name of another hard example (Cmx_A:
    adversarial)."""
    fraction: PositiveShare = 1.0
    """Share of the batch for which the term is computed."""
    start: Share = 0.0
    """First epoch of use, as a share of all epochs; 1 means never. Until then the run is identical
    to one without this hard example, at the same cost."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        """Return the hard example of `source`; its crops carry no gradient. `stream` is the
        randomness of this hard example in this step."""
        raise NotImplementedError

    @property
    def gradient_of_source(self) -> Branch | None:
        """Branch in which the source's input gradient is needed; None if no gradient is needed.

        If the training pass on the source uses the same branch, the gradient is shared and costs
        nothing.
        """
        return None

    def judge(self) -> Self | None:
        """Return a stronger attack that reveals overfitting to this one; None if no such check
        applies."""
        return None

    def but(self, **fields: Any) -> Self:
        """Return a copy with other values of some fields; the values are not validated."""
        return self.model_copy(update=fields)

    def branches(self) -> tuple[str, ...]:
        """Return the names of the batch-norm sets that this hard example needs in addition to its
        source's."""
        return ()

    def refusal(self, method: MethodConfig) -> str:
        """Return the reason why this hard example does not work with the method, as half a
        sentence; empty if it works."""
        return method.unmixable if self.mixes else ""


def mean_change(views: tuple[Tensor, ...], clean: tuple[Tensor, ...]) -> Tensor:
    """Return the mean |view − clean| over all crops, in units of 1/255; 0-d, for the logs."""
    pairs = zip(views, clean, strict=False)
    return 255 * torch.stack([(view - crop).abs().mean() for view, crop in pairs]).mean()


def check_made(
    name: str, made: object, source: Example, branches: Collection[str], values: bool
) -> None:
    """Raise UserError unless a hard example fits its source: same shapes, a known batch-norm
    branch, and no gradient attached.

    branches: names of the batch-norm sets of the run.
    values: also check that pixels are valid and weights sum to one; this synchronises with the GPU.
    """
    if not isinstance(made, Example) or not made.crops or len(made.crops) > len(source.crops):
        raise _broken(name, "must return an Example with all crops of its source, or the first few")
    given = [list(crop.shape) for crop in made.crops]
    needed = [list(crop.shape) for crop in source.crops[: len(given)]]
    if given != needed:
        raise _broken(name, f"returned crops {given}; keep the shapes of its source, {needed}")
    if any(crop.requires_grad for crop in made.crops):
        raise _broken(name, "returned crops with a gradient attached; detach them")
    branch = made.branch.name
    if branch not in branches:
        raise _broken(name, f"returned the branch '{branch}'; return it from `branches` too")
    size = [len(made.crops), len(made)]
    if any(list(weight.shape) != size for _, weight in made.mixture):
        raise _broken(name, f"returned weights of another shape than [V, B] = {size}")
    if not values:
        return
    # without clipping, an attack leaves the range by ε
    if any(float(crop.min()) < -1 or float(crop.max()) > 2 for crop in made.crops):
        raise _broken(name, "returned pixels far outside 0 … 1")
    total = torch.stack([weight for _, weight in made.mixture]).sum(0)
    if float((total - 1).abs().max()) > 1e-3:
        raise _broken(name, "returned weights that do not sum to one")


def _broken(name: str, problem: str) -> UserError:
    return UserError(f"hard example '{name}' {problem}")
