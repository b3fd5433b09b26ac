"""A hard example: a function from one example to another whose pseudo-label is harder to predict (REFERENCE §5)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pydantic

from hexa.config import Config
from hexa.core.batch import Branch
from hexa.core.example import Example
from hexa.core.method import MethodConfig
from hexa.runtime.random import Stream


class HardExampleConfig(Config):
    """The fields of every kind of hard example. A sub-class gives `kind` a default, by which configurations find it."""

    kind: str
    weight: float = pydantic.Field(default=1.0, ge=0)
    """The α of the objective (REFERENCE §5.1); 0 leaves the run exactly as it would be without."""
    source: str = "std"
    """What it is made from: std, the clean views, or the name of another hard example (Cmx_A: adversarial)."""
    fraction: float = pydantic.Field(default=1.0, gt=0, le=1)
    """The share of the batch on which the term is computed."""

    def build(self) -> HardExample:
        """The hard example with these fields."""
        raise NotImplementedError

    def refusal(self, method: MethodConfig) -> str:
        """Why this can't be made for that method, as half a sentence; empty where it can."""
        return ""

    def branches(self) -> tuple[str, ...]:
        """The batch-norm sets that making it and training on it need, beyond its source's."""
        return ()


class HardExample(ABC):
    """Makes hard examples. `config` holds its weight, its source and its share of the batch."""

    config: HardExampleConfig

    @property
    def gradient_of_source(self) -> Branch | None:
        """The branch through which it needs its source's input gradient; None if it needs none.

        Where that is the pass that trains on the source, the gradient is shared and costs nothing.
        """
        return None

    @abstractmethod
    def __call__(self, source: Example, stream: Stream) -> Example:
        """The hard example of `source`. Its crops carry no gradient; `stream` names its randomness in this step."""
