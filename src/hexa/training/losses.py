"""Losses between two log lines, kept on the device: their means, and the first non-finite value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hexa.objective import Part
from hexa.runtime import processes
from hexa.training.monitor import effective_rank, feature_std

_NEVER = 2**62


class NonFiniteError(ArithmeticError):
    """A loss or the weights became NaN or infinite: the run ends, and the last good checkpoint is
    kept. All processes raise it; `speaks` is True in the main one. Exit code 1."""

    exit_code = 1

    def __init__(self, step: int, term: str, learning_rate: float, checkpoint: Path | None) -> None:
        self.step = step
        self.term = term
        self.speaks = processes.is_main()
        self.what = "the weights are" if term == "weights" else f"the loss of '{term}' is"
        kept = "no checkpoint exists yet"
        if checkpoint:
            kept = f"the last good checkpoint is {checkpoint}"
        super().__init__(
            f"step {step}: {self.what} not finite at learning rate {learning_rate:g}; "
            f"{kept}; start a new run with a lower optimizer.learning_rate (muon: also "
            "other_rate), or check the images with hexa visualize"
        )


class LossWindow:
    """Sums of each term's loss and of the weighted total since the last log line.

    names: of all terms, including terms that start later. All values, also the position of the
    first non-finite one, stay on the device until they are read.
    """

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        self._names = [*names, "total"]
        self._counts = torch.zeros(len(self._names), dtype=torch.long)  # on the CPU
        self._sums = torch.zeros(len(self._names), device=device)
        self._first_bad = torch.full((len(self._names),), _NEVER, dtype=torch.long, device=device)

    def add(self, parts: Mapping[str, Tensor], total: Tensor, step: int) -> None:
        """Add the losses of the terms of a step, 0-d each; `step` counts from 1."""
        given = {**parts, "total": total}
        absent = torch.zeros_like(total)
        values = torch.stack([given.get(name, absent) for name in self._names]).float()
        self._counts += torch.tensor([name in given for name in self._names])
        self._sums += values
        self._first_bad.clamp_(max=torch.where(values.isfinite(), _NEVER, step))

    @property
    def count(self) -> int:
        """Number of steps since the last log line."""
        return int(self._counts.max())

    def means(self) -> dict[str, Tensor]:
        """Return the mean losses on the device by their names in the log; each mean is over the
        steps that had the term."""
        means = self._sums / self._counts.clamp_min(1).to(self._sums.device)
        found = {}
        for name, count, mean in zip(self._names, self._counts.tolist(), means, strict=True):
            if count:
                found["loss" if name == "total" else f"loss/{name}"] = mean
        return found

    def first_non_finite(self) -> tuple[int, str] | None:
        """Return the first step with a non-finite loss on any process, and the term; synchronises
        with the device."""
        steps = (-processes.all_reduce_max(-self._first_bad)).tolist()
        step = min(steps)
        return None if step == _NEVER else (step, self._names[steps.index(step)])

    def clear(self) -> None:
        """Start the next window."""
        self._sums.zero_()
        self._counts.zero_()

    @property
    def state(self) -> dict[str, Any]:
        """State for a checkpoint: the sums of every process, [W, n], so that the next log line is
        the same after a resume.

        A collective: every process reads this property.
        """
        return {
            "sums": processes.all_gather(self._sums[None]).clone(),
            "count": self._counts.tolist(),
        }

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        sums = state["sums"]
        same = len(state["sums"]) == processes.world_size()
        self._sums.copy_(sums[processes.rank()] if same else sums.mean(0))
        self._counts = torch.tensor(state["count"], dtype=torch.long)


@dataclass
class StepFacts:
    """Metrics of a step for the log; empty at steps that are not logged, so that no image outlives
    its term."""

    wanted: bool
    """True if this step is logged."""
    facts: dict[str, Tensor] = field(default_factory=dict)
    """0-d tensors by name: accuracies and the terms' own facts."""
    embedding: Tensor | None = None
    """Embedding of the largest part, [V, b, D]."""

    def look(self, name: str, part: Part) -> None:
        """Record the metrics of a part of a term, if this step is logged."""
        if not self.wanted:
            return
        if (accuracy := part.accuracy()) is not None:
            self.facts[f"accuracy/{name}"] = accuracy
        for fact, value in part.example.facts.items():
            self.facts[f"{fact}/{name}"] = value.detach()
        # use the largest part: few images always look collapsed
        if self.embedding is None or part.embedding.shape[1] > self.embedding.shape[1]:
            self.embedding = part.method.directions(part.embedding)

    @property
    def directions(self) -> int:
        """The largest possible effective rank."""
        if self.embedding is None:
            return 0
        _, images, width = self.embedding.shape
        return min(width, images - 1)

    def spread(self) -> dict[str, Tensor]:
        """Return standard deviation and effective rank of the embedding; synchronises with the
        GPU."""
        if self.embedding is None:
            return {}
        std = feature_std(self.embedding)
        return {"feature_std": std, "effective_rank": effective_rank(self.embedding)}


def is_finite(state: object) -> bool:
    """Return whether all floating-point tensors of a nested state on the host are finite."""
    tensors = (leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    floating = (tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel())
    # both extremes of a tensor with a NaN are NaN; ten times as fast as asking every value
    return all(bool(extreme.isfinite()) for one in floating for extreme in one.aminmax())
