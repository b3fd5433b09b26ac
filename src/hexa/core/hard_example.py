"""A hard example: a function from one example to another whose pseudo-label is harder to predict (F12)."""

from __future__ import annotations

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
    """Makes hard examples: its fields are its configuration, and calling it makes views.

    A sub-class gives `kind` a default, by which configurations and the command line find it.
    """

    #: True if it shows parts of two images, each of which keeps its pseudo-label.
    mixes: ClassVar[bool] = False
    #: True if every step makes the same calls, as `Method.is_static` says.
    is_static: ClassVar[bool] = False

    kind: str
    weight: NonNegativeFloat = 1.0
    """The α of the objective (F12); 0 leaves the run exactly as it would be without."""
    source: str = "std"
    """What it is made from: std, the clean views, or the name of another hard example (Cmx_A: adversarial)."""
    fraction: PositiveShare = 1.0
    """The share of the batch on which the term is computed."""
    start: Share = 0.0
    """When it starts, as a share of the training's epochs. Until then a run equals the one without it, and costs as
    much; 1 means never."""

    def __call__(self, source: Example, stream: Stream) -> Example:
        """The hard example of `source`. Its crops carry no gradient; `stream` names its randomness in this step."""
        raise NotImplementedError

    @property
    def gradient_of_source(self) -> Branch | None:
        """The branch through which it needs its source's input gradient; None if it needs none.

        Where that is the pass that trains on the source, the gradient is shared and costs nothing.
        """
        return None

    def judge(self) -> Self | None:
        """A stronger attack, to show whether the network resists this one alone; None if there is nothing to show."""
        return None

    def but(self, **fields: Any) -> Self:
        """This with other values of some fields, which are valid."""
        return self.model_copy(update=fields)

    def branches(self) -> tuple[str, ...]:
        """The batch-norm sets that making it and training on it need, beyond its source's."""
        return ()

    def refusal(self, method: MethodConfig) -> str:
        """The reason why it cannot be made for that method, as half a sentence; empty if it can."""
        return method.unmixable if self.mixes else ""


def mean_change(views: tuple[Tensor, ...], clean: tuple[Tensor, ...]) -> Tensor:
    """The mean of |view − clean| over all crops, in grey levels of 255; 0-d, for the logs."""
    pairs = zip(views, clean, strict=False)
    return 255 * torch.stack([(view - crop).abs().mean() for view, crop in pairs]).mean()


def check_made(name: str, made: object, source: Example, values: bool) -> None:
    """Raise UserError unless a hard example keeps its contract with its source: shapes, and no gradient attached.

    values: also check that pixels are valid and weights sum to one, which waits for a GPU.
    """
    if not isinstance(made, Example) or not made.crops or len(made.crops) > len(source.crops):
        raise _broken(
            name, "must give an Example with the crops of its source, or the first of them"
        )
    given = [list(crop.shape) for crop in made.crops]
    needed = [list(crop.shape) for crop in source.crops[: len(given)]]
    if given != needed:
        raise _broken(name, f"gave crops {given}, those of its source are needed: {needed}")
    if any(crop.requires_grad for crop in made.crops):
        raise _broken(name, "gave crops with a gradient attached; detach them")
    size = [len(made.crops), len(made)]
    if any(list(weight.shape) != size for _, weight in made.mixture):
        raise _broken(name, f"gave weights of another shape than [V, B] = {size}")
    if not values:
        return
    # an attack that is not clipped leaves the range by ε
    if any(float(crop.min()) < -1 or float(crop.max()) > 2 for crop in made.crops):
        raise _broken(name, "gave pixels far outside 0 … 1")
    total = torch.stack([weight for _, weight in made.mixture]).sum(0)
    if float((total - 1).abs().max()) > 1e-3:
        raise _broken(name, "gave weights that do not sum to one")


def _broken(name: str, problem: str) -> UserError:
    return UserError(f"hard example '{name}' {problem}")
