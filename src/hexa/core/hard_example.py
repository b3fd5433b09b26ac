"""A hard example: a function from one example to another whose pseudo-label is harder to predict (F12)."""

from __future__ import annotations

from typing import Any, Self

import pydantic
import torch

from hexa.config import Config, UserError
from hexa.core.batch import Branch
from hexa.core.example import Example
from hexa.core.method import MethodConfig
from hexa.runtime.random import Stream


class HardExample(Config):
    """Makes hard examples: its fields are its configuration, and calling it makes views.

    A sub-class gives `kind` a default, by which configurations and the command line find it.
    """

    kind: str
    weight: float = pydantic.Field(default=1.0, ge=0)
    """The α of the objective (F12); 0 leaves the run exactly as it would be without."""
    source: str = "std"
    """What it is made from: std, the clean views, or the name of another hard example (Cmx_A: adversarial)."""
    fraction: float = pydantic.Field(default=1.0, gt=0, le=1)
    """The share of the batch on which the term is computed."""
    start: float = pydantic.Field(default=0.0, ge=0, le=1)
    """When it sets in, as a share of the training's epochs; until then a run is the one without it, and as cheap. 1
    means never."""

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
        """Why this can't be made for that method, as half a sentence; empty where it can."""
        return ""


def check_made(name: str, made: object, source: Example, values: bool) -> None:
    """Raise UserError unless a hard example keeps its contract with its source: shapes, and no gradient attached.

    values: that pixels are valid and weights sum to one too, for which a GPU has to be waited for.
    """
    problem = ""
    if not isinstance(made, Example) or not made.crops or len(made.crops) > len(source.crops):
        problem = "must give an Example with the crops of its source, or the first of them"
    elif any(
        crop.shape != before.shape for crop, before in zip(made.crops, source.crops, strict=False)
    ):
        problem = f"gave crops {[list(crop.shape) for crop in made.crops]}, those of its source are needed: "
        problem += f"{[list(crop.shape) for crop in source.crops]}"
    elif any(crop.requires_grad for crop in made.crops):
        problem = "gave crops with a gradient attached; detach them"
    elif any(list(weight.shape) != [len(made.crops), len(made)] for _, weight in made.mixture):
        problem = f"gave weights of another shape than [V, B] = {[len(made.crops), len(made)]}"
    elif values and not all(
        float(crop.min()) >= -1 and float(crop.max()) <= 2 for crop in made.crops
    ):
        problem = "gave pixels far outside 0 … 1"  # an attack that is not clipped leaves it by ε
    elif (
        values
        and float((torch.stack([weight for _, weight in made.mixture]).sum(0) - 1).abs().max())
        > 1e-3
    ):
        problem = "gave weights that do not sum to one"
    if problem:
        raise UserError(f"hard example '{name}' {problem}")
