"""Examples: views, the mixture of pseudo-labels to predict, and the batch-norm branch to use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import cast

import torch
from torch import Tensor

from hexa.config import UserError
from hexa.core.batch import MAIN, Branch, Index, PseudoLabels
from hexa.core.method import Method
from hexa.core.micro_batches import MicroBatches

Autocast = Callable[[], AbstractContextManager[object]]
Mixture = tuple[tuple[PseudoLabels, Tensor], ...]


class Score:
    """score(example) = Σ_i weight_i · loss(embed(crops, branch), labels_i), [V, B]: one forward for
    any mixture.

    Hard examples of every method use it to measure difficulty.
    clean: use the method's `clean_loss` instead of its `loss`.
    accumulate: number of micro-batches in which gradients are computed.
    """

    def __init__(
        self,
        method: Method,
        autocast: Autocast = nullcontext,
        clean: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.method = method
        self.autocast = autocast
        self.accumulate = accumulate
        self.loss = method.clean_loss if clean else method.loss

    def embed(self, crops: tuple[Tensor, ...], branch: Branch) -> Tensor:
        """Return the embedding [V, B, D] of crops, computed in the run's precision."""
        with self.autocast():
            return self.method.embed(crops, branch)

    def of(self, embedding: Tensor, mixture: Mixture) -> Tensor:
        """Return the score [V, B] of an embedding. Raises UserError if the method's loss has
        another shape."""
        terms = [(self.loss(embedding, labels), weight) for labels, weight in mixture]
        for value, weight in terms:
            shape = getattr(value, "shape", None)
            if shape != weight.shape:  # it would be broadcast silently
                found = type(value).__name__ if shape is None else list(shape)
                raise UserError(
                    f"{type(self.method).__name__}.loss returned {found}; "
                    f"return one loss per crop and image, [V, B] = {list(weight.shape)}"
                )
        return sum_weighted(terms)

    def __call__(self, example: Example) -> Tensor:
        return self.of(self.embed(example.crops, example.branch), example.mixture)

    def gradient(
        self,
        example: Example,
        branch: Branch,
        measure: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Return ∂ measure(embedding) / ∂ crops from an extra pass, by default ∂ mean(score) / ∂
        crops.

        The pass changes neither the gradients of parameters nor running statistics.
        """
        crops = tuple(crop.detach().requires_grad_() for crop in example.crops)
        still = replace(branch, update=False, learns=False)
        measure = measure or (lambda embedding: self.of(embedding, example.mixture).mean())
        with torch.enable_grad():
            batches = MicroBatches(self, crops, still)
            embedding = batches.embedding()
            value = measure(embedding)
            if not batches.several:
                return torch.autograd.grad(value, crops)
            value.backward(inputs=[embedding])  # type: ignore[no-untyped-call]
            for replay in batches.replays(embedding):
                replay.backward(inputs=crops)  # type: ignore[no-untyped-call]
        return tuple(cast(Tensor, crop.grad) for crop in crops)


def sum_weighted(terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return Σ value · weight."""
    return reduce(torch.add, (value * weight for value, weight in terms))


@dataclass(frozen=True, eq=False)
class Example:
    """Views in [0, 1] and the pseudo-labels to predict from them.

    crops: V tensors [B, 3, S_v, S_v].
    mixture: (pseudo-labels, weight [V, B]) pairs; the weights sum to one.
    score: the loss that trains on this example, as a measure of its difficulty.
    branch: batch-norms of the pass that trains on this example.
    facts: 0-d tensors for the logs (|δ|, λ …).
    shared_gradient: ∂loss/∂crops up to a positive factor, if the training pass on this example kept
    it.
    """

    crops: tuple[Tensor, ...]
    mixture: Mixture
    score: Score
    branch: Branch = MAIN
    facts: dict[str, Tensor] = field(default_factory=dict)
    shared_gradient: tuple[Tensor, ...] | None = None

    def gradient(self, branch: Branch | None = None) -> tuple[Tensor, ...]:
        """Return ∂ loss / ∂ crops, up to a positive factor, through `branch` (default: the
        example's own).

        Costs nothing if the backward pass that trained on this example kept the gradient (F18).
        Otherwise it costs one pass that differentiates by the inputs alone.
        """
        branch = branch or self.branch
        if self.shared_gradient is not None and branch.normalizes_as(self.branch):
            return self.shared_gradient
        return self.score.gradient(self, branch)

    def score_at(self, crops: tuple[Tensor, ...], branch: Branch | None = None) -> Tensor:
        """Return the loss [V, B] of other crops with the same pseudo-labels, through `branch`
        (default: the example's own).

        Runs an extra pass that does not update running statistics.
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
        """Mix each image with its partner in `permutation`, int64 [B]; `kept` [V, B] is the weight
        of the original.

        crops: the mixed views.
        branch: name of the batch-norms for the mixed views; "source" keeps this example's.
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
        """Return the same example with other crops, and therefore without a shared gradient."""
        return replace(self, crops=crops, shared_gradient=None, facts={})

    def select(self, index: Index = slice(None), crops: int | None = None) -> Example:
        """Return the example of some images and of the first `crops` crops (None: all crops)."""
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
