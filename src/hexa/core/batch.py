"""What goes through a method: batches of crops, the BN branch of a pass, and the pseudo-labels that are predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from hexa.config import UserError
from hexa.runtime import processes
from hexa.runtime.random import Stream

Index = Tensor | slice


@dataclass(frozen=True, eq=False)
class Batch:
    """The views of one step.

    crops: V tensors [B, 3, S_v, S_v], float in [0, 1]. index: [B], position of each image in the data set.
    stream: names the step's randomness, the same on every process. step: how many steps of the run came before.
    known: whether these are images of the data set that is trained on, so that `index` means something; else a method
    that remembers pseudo-labels by image derives them from the embedding.
    Raises UserError for crops and an index that do not belong together, and for integer pixels.
    """

    crops: tuple[Tensor, ...]
    index: Tensor
    stream: Stream
    step: int = 0
    known: bool = True

    ranks: ClassVar[tuple[int, ...]] = (4,)
    """Accepted numbers of dimensions of the crops."""

    def __post_init__(self) -> None:
        count = self.index.shape
        fits = [crop.ndim in self.ranks and crop.shape[:1] == count for crop in self.crops]
        if not fits or not all(fits):
            shapes = [list(crop.shape) for crop in self.crops]
            expected = "expected crops [B, C, S, S], and index [B] with the position of each image"
            raise UserError(f"batch: crops {shapes} with an index {list(count)}; {expected}")
        if not all(crop.is_floating_point() for crop in self.crops):
            expected = "expected floats from 0 to 1 (divide by 255)"
            raise UserError(f"batch: pixels of type {self.crops[0].dtype}; {expected}")

    def check_values(self) -> None:
        """Raise UserError unless all pixels are in [0, 1], give or take rounding; waits for a GPU."""
        for crop in self.crops:
            low, high = map(float, crop.aminmax())
            if not (low >= -1e-3 and high <= 1 + 1e-3):  # also true of nan
                expected = "expected 0 to 1: divide 8-bit images by 255, and leave normalisation to the network"
                raise UserError(f"batch: pixels range from {low:g} to {high:g}; {expected}")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def rows(self) -> slice:
        """The rows of these images in the batch of all processes."""
        begin = processes.rank() * len(self)
        return slice(begin, begin + len(self))


@dataclass(frozen=True)
class Branch:
    """Which set of batch-norms a pass uses, and how (F14).

    name: "main" is the set that is kept; any other name is a set of its own ("aux" for adversarial views).
    training: normalise with batch statistics; else with running ones.
    update: let this pass move the running statistics; extra passes of an attack must not.
    learns: batch-norms get gradients of scale and shift; attacks, which ask for the crops' gradient alone, throw them away.
    """

    name: str = "main"
    training: bool = True
    update: bool = True
    learns: bool = True

    @classmethod
    def of(cls, text: str, update: bool = True) -> Branch:
        """The branch that a text such as `main_train` or `aux_eval` names."""
        name, _, mode = text.partition("_")
        training = mode != "eval"
        return cls(name, training, update and training)

    def normalizes_as(self, other: Branch) -> bool:
        """True if a pass through either gives the same result."""
        return (self.name, self.training) == (other.name, other.training)


MAIN = Branch("main")


class PseudoLabels(ABC):
    """What a method predicts for the anchors of a batch: keys, clusters, codes … Frozen, opaque to all others."""

    @abstractmethod
    def __getitem__(self, index: Index) -> Self:
        """The pseudo-labels of a selection or a reordering of the images."""

    def mixed(self, permutation: Tensor) -> tuple[Self, Self]:
        """The two pseudo-labels of images mixed with `permutation` of themselves: their own, and their partner's.

        A method whose label set grows by mixing overrides this (MoCo's shared dictionaries, D11).
        """
        return self, self[permutation]
