"""An example: views, the mixture of pseudo-labels they should be recognised as, and the branch they go through."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core.batch import MAIN, Branch, Index, PseudoLabels
from hexa.core.method import Method

Autocast = Callable[[], AbstractContextManager[object]]
Mixture = tuple[tuple[PseudoLabels, Tensor], ...]


class Score:
    """score(example) = Σ_i weight_i · loss(embed(crops, branch), labels_i), [V, B]: one forward for any mixture.

    The same for every method; this is how a hard example asks how hard it is. clean: by the method's `clean_loss`.
    """

    def __init__(
        self, method: Method, autocast: Autocast = nullcontext, clean: bool = False
    ) -> None:
        self.method = method
        self.autocast = autocast
        self.loss = method.clean_loss if clean else method.loss

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """The embedding [V, B, D] of a pass, in the run's precision."""
        with self.autocast():
            return self.method.embed(crops, branch)

    def of(self, embedding: Tensor, mixture: Mixture) -> Tensor:
        """The score [V, B] of a given embedding. Raises UserError if the method's loss has another shape."""
        terms = [(self.loss(embedding, labels), weight) for labels, weight in mixture]
        for value, weight in terms:
            if value.shape != weight.shape:  # it would be broadcast silently
                given = f"{type(self.method).__name__}.loss gave {list(value.shape)}"
                needed = f"a loss for each crop and image is needed, [V, B] = {list(weight.shape)}"
                raise UserError(f"{given}; {needed}")
        return sum_weighted(terms)

    def __call__(self, example: Example) -> Tensor:
        return self.of(self.embed(example.crops, example.branch), example.mixture)

    def gradient(self, example: Example, branch: Branch) -> tuple[Tensor, ...]:
        """∂ mean(score) / ∂ crops by a pass of its own, which leaves parameters' gradients and statistics alone."""
        crops = tuple(crop.detach().requires_grad_() for crop in example.crops)
        still = replace(branch, update=False, learns=False)
        with torch.enable_grad():
            loss = self(replace(example, crops=crops, branch=still)).mean()
            return torch.autograd.grad(loss, crops)


def sum_weighted(terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Σ value · weight; a single term of weight one is returned as it is."""
    return reduce(torch.add, (value * weight for value, weight in terms))


@dataclass(frozen=True, eq=False)
class Example:
    """Views in [0, 1], with what they should be recognised as.

    crops: V tensors [B, 3, S_v, S_v]. mixture: (pseudo-labels, weight [V, B]) pairs whose weights sum to one.
    score: how hard it is, by the loss that learns from it.
    branch: the batch-norms of the pass that learns from it. facts: 0-d tensors for the logs (|δ|, λ …).
    shared_gradient: ∂loss/∂crops up to a positive factor, where the pass that trained on this example left it behind.
    """

    crops: tuple[Tensor, ...]
    mixture: Mixture
    score: Score
    branch: Branch = MAIN
    facts: dict[str, Tensor] = field(default_factory=dict)
    shared_gradient: tuple[Tensor, ...] | None = None

    def gradient(self, branch: Branch | None = None) -> tuple[Tensor, ...]:
        """∂ loss / ∂ crops, up to a positive factor, through `branch` (default: the example's own).

        Costs nothing where the backward pass that trained on this example already yielded it (F18), and
        otherwise one pass for the inputs alone.
        """
        branch = branch or self.branch
        if self.shared_gradient is not None and branch.normalizes_as(self.branch):
            return self.shared_gradient
        return self.score.gradient(self, branch)

    def score_at(self, crops: tuple[Tensor, ...], branch: Branch | None = None) -> Tensor:
        """The loss [V, B] of other views in the place of these, through `branch` (default: the example's own).

        A pass of its own, which leaves the statistics of batch-norms alone.
        """
        still = replace(branch or self.branch, update=False)
        return self.score(replace(self.at(crops), branch=still))

    def mixed(
        self,
        crops: tuple[Tensor, ...],
        permutation: Tensor,
        kept: Tensor,
        branch: str = "source",
        update_statistics: bool = True,
    ) -> Example:
        """This example with the share 1 − kept [V, B] of each crop given up to another of its images.

        crops: the mixed views. permutation: int64 [B], the other image. branch: "source" is this example's own.
        """
        mixture = []
        for labels, weight in self.mixture:
            own, other = labels.mixed(permutation)
            mixture.append((own, weight * kept))
            mixture.append((other, weight[:, permutation] * (1 - kept)))
        name = self.branch.name if branch == "source" else branch
        return replace(
            self.at(crops),
            mixture=tuple(mixture),
            branch=Branch(name, update=update_statistics),
            facts={"lambda": kept.mean()},
        )

    def at(self, crops: tuple[Tensor, ...]) -> Example:
        """The same example elsewhere in view space, so without a shared gradient."""
        return replace(self, crops=crops, shared_gradient=None, facts={})

    def select(self, index: Index = slice(None), crops: int | None = None) -> Example:
        """The example of a selection of its images, and of its first `crops` crops; None: of all crops."""
        mixture = ((labels[index], weight[:crops, index]) for labels, weight in self.mixture)
        shared = self.shared_gradient
        if shared is not None:
            shared = tuple(gradient[index] for gradient in shared[:crops])
        return replace(
            self,
            crops=tuple(crop[index] for crop in self.crops[:crops]),
            mixture=tuple(mixture),
            shared_gradient=shared,
        )

    def __len__(self) -> int:
        return len(self.crops[0])
