"""The plan of a step: the hard examples in use, the images that each sees, and the loss weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hexa.config import Config, ConfigError, PositiveShare, field_error, nearest
from hexa.core.hard_example import HardExample
from hexa.core.method import Method

STD = "std"
#: Names of the log that a hard example cannot have: the clean term, and the sum of all terms.
_TAKEN = (STD, "total")


@dataclass(frozen=True)
class StepPlan:
    """The terms of a step by name: std first, then the hard examples, each after its source."""

    present: Mapping[str, HardExample]
    """The hard examples that have started, including those of weight 0."""
    shares: Mapping[str, float]
    """Share of the batch for each term."""
    weights: Mapping[str, float]
    """Factor of each term in the sum of losses."""


class ObjectiveConfig(Config):
    """Weights of the terms, and the images that each term sees."""

    reduction: Literal["sum", "mean"] = "sum"
    """sum: as published. mean: divide by the sum of the weights, so that hard examples do not
    change the effective learning rate."""
    clean_fraction: PositiveShare = 1.0
    """Share of the batch for which the clean term is computed."""
    split: bool = False
    """Give each term a disjoint part of the batch; terms with the same batch-norm branch share a
    pass. If all weights are 1, the loss is the mean over the batch (up to rounding the shares to
    whole images)."""

    def plan(
        self, present: Mapping[str, HardExample], every: Mapping[str, HardExample]
    ) -> StepPlan:
        """Return the plan of a step.

        present: the hard examples that have started.
        every: all hard examples of the run.
        """
        # before the first hard example starts, the whole batch is clean
        there = trained(present)
        if not there:
            return StepPlan(present, {STD: 1.0}, {STD: 1.0})
        # with `split` the clean term also takes the parts of hard examples that start later
        later = [name for name in trained(every) if name not in there]
        shares = {STD: self.clean_fraction}
        if self.split:
            shares[STD] += sum(every[name].fraction for name in later)
        shares |= {name: present[name].fraction for name in there}
        # with `split` weights of 1 give the mean over the batch
        weights = {STD: 1.0} | {name: present[name].weight for name in there}
        if self.split:
            taken = sum(shares.values())
            weights = {name: weight * shares[name] / taken for name, weight in weights.items()}
        if self.reduction == "mean":
            total = sum(weights.values())
            weights = {name: weight / total for name, weight in weights.items()}
        return StepPlan(present, shares, weights)

    def check(self, hard_examples: Mapping[str, HardExample], method: Method) -> None:
        """Raise ConfigError if the shares exceed the batch or do not fit the method."""
        shares = self.plan(hard_examples, hard_examples).shares
        if self.split and sum(shares.values()) > 1 + 1e-6:
            listed = " + ".join(f"{name} {share:g}" for name, share in shares.items())
            message = f"the fractions of split terms ({listed}) exceed 1; make them smaller"
            raise field_error("objective.split", message)
        if method.labels_from_embedding and (self.split or self.clean_fraction < 1):
            field = "split" if self.split else "clean_fraction"
            message = "this method embeds all clean images; use clean_fraction 1 and split false"
            raise field_error(f"objective.{field}", message)

    def rows(self, shares: Mapping[str, float], batch_size: int) -> dict[str, slice]:
        """Return the rows of each term: the first rows of the batch, or with `split` one part after
        another.

        Raises ConfigError if the batch is too small.
        """
        rows = {}
        begin = 0.0
        end = 0
        for name, share in shares.items():
            start = end if self.split else 0
            end = min(max(round((begin + share) * batch_size), start + 1), batch_size)
            rows[name] = slice(start, end)
            if self.split:
                begin += share
        if any(part.start >= part.stop for part in rows.values()):
            raise field_error(
                "batch_size",
                f"{batch_size} images per process are too few for parts of {', '.join(rows)}",
            )
        return rows


def onsets(hard_examples: Mapping[str, HardExample]) -> dict[str, float]:
    """Return the start of each hard example as a share of the training, every source before what is
    made from it.

    A hard example never starts before its source. Raises ConfigError if a name is taken, if a
    source does not exist or if sources form a cycle.
    """
    for name in _TAKEN:
        if name in hard_examples:
            message = "the log uses this name for another term; give the hard example another name"
            raise field_error(f"hard_examples.{name}", message)
    found = {STD: 0.0}
    while pending := [name for name in hard_examples if name not in found]:
        ready = [name for name in pending if hard_examples[name].source in found]
        if not ready:
            raise _unfounded(pending, hard_examples)
        hard = hard_examples[ready[0]]
        found[ready[0]] = max(hard.start, found[hard.source])
    del found[STD]
    return found


def _unfounded(pending: list[str], hard_examples: Mapping[str, HardExample]) -> ConfigError:
    """Return the error for hard examples without a valid source: an unknown name, or a cycle."""
    for name in pending:
        source = hard_examples[name].source
        if source not in hard_examples:
            others = {STD, *hard_examples} - {name}
            message = f"no hard example '{source}'; {nearest(source, others)}"
            return field_error(f"hard_examples.{name}.source", message)
    message = "the sources of hard examples form a cycle; start one of them from std"
    return field_error(f"hard_examples.{pending[0]}.source", message)


def trained(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """Return the names of the hard examples that have a term (weight above 0)."""
    return [name for name, hard in hard_examples.items() if hard.weight > 0]


def needed(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """Return the names of the hard examples that have a term, and of their sources, which may have
    weight 0."""
    wanted = []
    for name in trained(hard_examples):
        while name != STD and name not in wanted:
            wanted.append(name)
            name = hard_examples[name].source
    return wanted


def branches(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """Return the batch-norm sets that the hard examples need in addition to the main one."""
    sets = (branch for name in needed(hard_examples) for branch in hard_examples[name].branches())
    return [branch for branch in dict.fromkeys(sets) if branch != "main"]
