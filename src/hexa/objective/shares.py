"""Which hard examples there are in a step, and which images of the batch each term is computed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pydantic

from hexa.config import Config, ConfigError, nearest
from hexa.core.hard_example import HardExample
from hexa.core.method import Method

STD = "std"


class ObjectiveConfig(Config):
    """How the terms are weighed and which images they see."""

    reduction: Literal["sum", "mean"] = "sum"
    """sum as published; mean divides by the sum of the weights, so that a scheme does not change the learning rate."""
    clean_fraction: float = pydantic.Field(default=1.0, gt=0, le=1)
    """The share of the batch on which the clean term is computed."""
    split: bool = False
    """The terms take disjoint parts of the batch; those of one batch-norm branch go through the network together.

    Weights of 1 then make the loss the mean over the batch (but for the rounding of shares to whole images)."""

    def shares(self, hard_examples: Mapping[str, HardExample]) -> dict[str, float]:
        """The share of the batch of each term, when all hard examples have set in."""
        return {STD: self.clean_fraction} | {
            name: hard_examples[name].fraction for name in trained(hard_examples)
        }

    def check(self, hard_examples: Mapping[str, HardExample], method: Method) -> None:
        """Raise ConfigError for shares that do not fit each other or the method."""
        shares = self.shares(hard_examples)
        if self.split and sum(shares.values()) > 1 + 1e-6:
            listed = " + ".join(f"{name} {share:g}" for name, share in shares.items())
            message = f"split terms take disjoint parts of the batch, but their fractions ({listed}) exceed 1"
            raise ConfigError([("objective.split", message)])
        if method.labels_from_embedding and (self.split or self.clean_fraction < 1):
            message = "this method makes its pseudo-labels of the clean embedding of all images; use 1, without split"
            raise ConfigError(
                [("objective.split" if self.split else "objective.clean_fraction", message)]
            )

    def rows(self, shares: Mapping[str, float], batch_size: int) -> dict[str, slice]:
        """The images of each term: the first ones of the batch, or with `split` one part after another.

        Raises ConfigError if the batch is too small.
        """
        rows = {}
        taken = 0.0
        for name, share in shares.items():
            begin, end = (taken, taken + share) if self.split else (0.0, share)
            start = round(begin * batch_size)
            rows[name] = slice(start, min(max(round(end * batch_size), start + 1), batch_size))
            taken += share
        if any(part.start >= part.stop for part in rows.values()):
            message = f"{batch_size} images a process are too few for parts of {', '.join(rows)}"
            raise ConfigError([("batch_size", message)])
        return rows


def onsets(hard_examples: Mapping[str, HardExample]) -> dict[str, float]:
    """When each hard example sets in, as a share of the training, every source before what is made from it.

    One that is made from another waits for that. Raises ConfigError if a source does not exist or is a circle.
    """
    found = {STD: 0.0}
    while pending := [name for name in hard_examples if name not in found]:
        ready = next((name for name in pending if hard_examples[name].source in found), None)
        if ready is None:
            name = next(
                (name for name in pending if hard_examples[name].source not in hard_examples),
                pending[0],
            )
            source = hard_examples[name].source
            others = {STD, *hard_examples} - {name}
            circle = "hard examples take each other as source"
            unknown = f"no hard example '{source}'; {nearest(source, others)}"
            raise ConfigError(
                [(f"hard_examples.{name}.source", circle if source in hard_examples else unknown)]
            )
        found[ready] = max(hard_examples[ready].start, found[hard_examples[ready].source])
    del found[STD]
    return found


def trained(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """The hard examples that have a term."""
    return [name for name, hard in hard_examples.items() if hard.weight > 0]


def needed(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """The hard examples that have a term, and those they are made from, which may have weight 0."""
    wanted = []
    for name in trained(hard_examples):
        while name != STD and name not in wanted:
            wanted.append(name)
            name = hard_examples[name].source
    return wanted


def branches(hard_examples: Mapping[str, HardExample]) -> list[str]:
    """The batch-norm sets that they need beyond the main one."""
    sets = (branch for name in needed(hard_examples) for branch in hard_examples[name].branches())
    return [branch for branch in dict.fromkeys(sets) if branch != "main"]
