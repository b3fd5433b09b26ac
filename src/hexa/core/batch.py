"""Inputs and targets of a method: batches of crops, the batch-norm branch of a pass, and
pseudo-labels."""

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

    crops: V tensors [B, 3, S_v, S_v], float in [0, 1].
    index: [B], position of each image in the data set.
    stream: random stream of the step, the same on every process.
    step: number of steps of the run before this one.
    known: True if the images belong to the training set, so that `index` is valid. If False, a
    method that stores pseudo-labels by image derives them from the embedding instead.
    Raises UserError if crops and index do not match, or if pixels are integers.
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
        """Raise UserError unless all pixels are in [0, 1] up to rounding. Synchronises with the
        GPU."""
        for crop in self.crops:
            low, high = map(float, crop.aminmax())
            if not (low >= -1e-3 and high <= 1 + 1e-3):  # also true of nan
                raise UserError(
                    f"batch: pixels range from {low:g} to {high:g}; expected 0 to 1: divide "
                    "8-bit images by 255; the network normalises"
                )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def rows(self) -> slice:
        """Rows of these images in the global batch, which joins the batches of all processes."""
        begin = processes.rank() * len(self)
        return slice(begin, begin + len(self))


def run_sizes(images: int, groups: int) -> list[int]:
    """Return the number of images in each of `groups` runs; if there is a remainder, the first runs
    have one more."""
    least = images // groups  # torch.compile does not support divmod
    more = images - groups * least
    return [least + 1] * more + [least] * (groups - more)


@dataclass(frozen=True)
class Branch:
    """The set of batch-norms that a pass uses, and its mode (F14).

    name: "main" is the set that is exported; any other name is a separate set ("aux" for
    adversarial views).
    training: normalise with batch statistics; otherwise with running statistics.
    update: let this pass update the running statistics; extra passes of an attack must not.
    learns: compute the gradients of scale and shift; attacks need the gradient of the crops alone.
    part, parts: this pass sees micro-batch `part` of `parts`, with batch statistics of its own.
    """

    name: str = "main"
    training: bool = True
    update: bool = True
    learns: bool = True
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, text: str, update: bool = True) -> Branch:
        """Parse a branch from a text such as `main_train` or `aux_eval`."""
        name, _, mode = text.partition("_")
        training = mode != "eval"
        return cls(name, training, update and training)

    def normalizes_as(self, other: Branch) -> bool:
        """True if a pass through `other` gives the same result."""
        return (self.name, self.training) == (other.name, other.training)

    def momentum(self, momentum: float) -> float:
        """Return the momentum of running statistics for this pass, so that all parts together equal one pass.

        m_k = (m / K) / (1 − m + k·m / K), k = 1 … K:  r ← (1 − m)·r + m · mean of the parts' statistics

        This holds if a pass uses a batch-norm once. If a pass uses a batch-norm several times (crops one by one, or of
        several sizes), r keeps the same share, but earlier parts weigh less than later ones, by a share of order m.
        """
        if self.parts == 1:
            return momentum
        share = momentum / self.parts
        return share / (1 - momentum + (self.part + 1) * share)


MAIN = Branch("main")


class PseudoLabels(ABC):
    """Targets of a batch's anchors: keys, clusters, codes … Frozen; only the method that made them
    looks inside."""

    @abstractmethod
    def __getitem__(self, index: Index) -> Self:
        """Return the pseudo-labels of the selected or reordered images."""

    def mixed(self, permutation: Tensor) -> tuple[Self, Self]:
        """Return the two pseudo-labels of images that are mixed with their `permutation`: own and
        partner's.

        A method whose label set grows by mixing overrides this (MoCo's shared dictionaries, D11).
        """
        return self, self[permutation]
