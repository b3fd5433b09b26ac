"""Losses between two log lines, kept on the device: their means, and where the first one stopped being finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.objective import Part
from hexa.runtime import processes
from hexa.training.monitor import effective_rank, feature_std

_NEVER = 2**62


class NonFiniteError(ArithmeticError):
    """A loss, or the weights, stopped being finite: the run ends with the last good checkpoint kept. Exit code 1."""

    exit_code = 1

    def __init__(self, step: int, term: str, learning_rate: float, checkpoint: Path | None) -> None:
        self.step, self.term, self.learning_rate, self.checkpoint = step, term, learning_rate, checkpoint
        self.what = "the weights are" if term == "weights" else f"the loss of '{term}' is"
        kept = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written yet"
        remedy = "lower optimizer.learning_rate and start anew"
        if step == 1 and term != "weights":
            kept = "nothing was learned before it, so the learning rate is not the cause"
            remedy = "look at the images with hexa visualize, or try --precision fp32, and start anew"
        super().__init__(f"step {step}: {self.what} not finite at learning rate {learning_rate:g}; {kept}; {remedy}")


class LossWindow:
    """Sums of each part's loss and of the weighted total since the last log line.

    Nothing is read from the device until asked for: where the first non-finite value occurred is remembered there too.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self._sums = torch.zeros(0, device=device)
        self._first_bad = torch.zeros(0, dtype=torch.long, device=device)
        self._counts: list[int] = []

    def add(self, parts: Mapping[str, Tensor], total: Tensor, step: int) -> None:
        """The losses of a step, 0-d each; `step` counts from 1."""
        values = torch.stack([*parts.values(), total]).float()
        if self._names != [*parts, "total"]:
            self._follow([*parts, "total"])
        self._sums += values
        self._counts = [count + 1 for count in self._counts]
        self._first_bad.clamp_(max=torch.where(values.isfinite(), _NEVER, step))

    def _follow(self, names: list[str]) -> None:
        """Add terms that begin at this step."""
        assert set(self._names) <= set(names), "no term of an objective goes away"
        places = [names.index(name) for name in self._names]
        sums, bad = torch.zeros(len(names)), torch.full((len(names),), _NEVER)
        sums[places], bad[places] = self._sums.cpu(), self._first_bad.cpu()
        counts = dict(zip(self._names, self._counts, strict=True))
        self._names, self._counts = names, [counts.get(name, 0) for name in names]
        self._sums, self._first_bad = sums.to(self._device), bad.to(self._device)

    @property
    def count(self) -> int:
        """Steps since the last log line."""
        return max(self._counts, default=0)

    def means(self) -> tuple[list[str], Tensor]:
        """Names as the journal has them, and the means on the device over the steps that had each."""
        counts = torch.tensor([max(1, count) for count in self._counts], device=self._device)
        return [*(f"loss/{name}" for name in self._names[:-1]), "loss"], self._sums / counts

    def first_non_finite(self) -> tuple[int, str] | None:
        """The first step with a loss that was not finite, on any process, and the term; reads the device."""
        if not self._names:
            return None
        steps = (-processes.all_reduce_max(-self._first_bad)).tolist()
        step = min(steps)
        return None if step == _NEVER else (step, self._names[steps.index(step)])

    def clear(self) -> None:
        """Start the next window."""
        self._sums.zero_()
        self._counts = [0] * len(self._names)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next log line to come out the same: the sums of every process, [W, n].

        Every process asks for it.
        """
        return {
            "names": list(self._names),
            "sums": processes.all_gather(self._sums[None]).clone(),
            "count": self._counts,
        }

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self._names, self._counts, sums = list(state["names"]), list(state["count"]), state["sums"]
        same = len(sums) == processes.world_size()
        self._sums = (sums[processes.rank()] if same else sums.mean(0)).to(self._device, copy=True)
        self._first_bad = torch.full((len(self._names),), _NEVER, dtype=torch.long, device=self._device)


@dataclass
class StepFacts:
    """What a log step keeps of its terms: nothing at other steps, so that no graph or image outlives its term."""

    wanted: bool
    facts: dict[str, Tensor] = field(default_factory=dict)
    embedding: Tensor | None = None  # [V, b, D], of the largest part

    def look(self, name: str, part: Part) -> None:
        """Record the metrics of a part of a term, if this is a log step."""
        if not self.wanted:
            return
        accuracy = part.accuracy()
        if accuracy is not None:
            self.facts[f"accuracy/{name}"] = accuracy
        self.facts |= {f"{fact}/{name}": value.detach() for fact, value in part.example.facts.items()}
        # a clean part of a few images would always seem to have collapsed
        if self.embedding is None or part.embedding.shape[1] > self.embedding.shape[1]:
            self.embedding = part.method.directions(part.embedding)

    @property
    def directions(self) -> int:
        """The highest effective rank there could be."""
        return 0 if self.embedding is None else min(self.embedding.shape[-1], self.embedding.shape[1] - 1)

    def spread(self) -> dict[str, Tensor]:
        """How the embedding fills its space; on a GPU this makes the host wait."""
        if self.embedding is None:
            return {}
        return {"feature_std": feature_std(self.embedding), "effective_rank": effective_rank(self.embedding)}


def is_finite(state: object) -> bool:
    """Whether every floating-point tensor of a nested state is finite; reads the device once."""
    flags = [tensor.isfinite().all() for tensor in _tensors(state) if tensor.is_floating_point()]
    by_device: dict[torch.device, list[Tensor]] = {}
    for flag in flags:
        by_device.setdefault(flag.device, []).append(flag)
    return all(bool(torch.stack(same).all()) for same in by_device.values())


def _tensors(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)
