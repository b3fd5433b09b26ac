"""Which images of a batch each term of the objective is computed on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import pydantic

from hexa.config import Config, ConfigError
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


class Shares:
    """The rows of every term: the first ones of the batch, or with `split` one part after another.

    fractions: the share of each hard example that is trained on, in the order of the terms. Raises ConfigError for
    shares that do not fit.
    """

    def __init__(self, config: ObjectiveConfig, fractions: Mapping[str, float], method: Method) -> None:
        self.split = config.split
        self.shares = {STD: config.clean_fraction, **fractions}
        if self.split and sum(self.shares.values()) > 1 + 1e-6:
            listed = " + ".join(f"{name} {share:g}" for name, share in self.shares.items())
            message = f"split terms take disjoint parts of the batch, but their fractions ({listed}) exceed 1"
            raise ConfigError([("objective.split", message)])
        if method.labels_from_embedding and (self.split or config.clean_fraction < 1):
            message = "this method makes its pseudo-labels of the clean embedding of all images; use 1, without split"
            raise ConfigError([("objective.split" if self.split else "objective.clean_fraction", message)])

    def present(self, hard: Collection[str]) -> dict[str, float]:
        """The share of each term, given the hard examples that have started.

        Before the first starts, the whole batch is clean. With `split`, a hard example that has not started yet gives
        its part of the batch to the clean term.
        """
        missing = self.shares.keys() - {STD, *hard}
        shares = {name: share for name, share in self.shares.items() if name not in missing}
        if missing and not hard:
            shares[STD] = 1.0
        elif self.split:
            shares[STD] += sum(self.shares[name] for name in self.shares if name in missing)
        return shares

    def rows(self, batch_size: int, hard: Collection[str]) -> dict[str, slice]:
        """The images of each term in a batch of this size, as `present`. Raises ConfigError if it is too small."""
        rows, taken = {}, 0.0
        for name, share in self.present(hard).items():
            begin, end = (taken, taken + share) if self.split else (0.0, share)
            start = round(begin * batch_size)
            rows[name] = slice(start, min(max(round(end * batch_size), start + 1), batch_size))
            taken += share
        if any(part.start >= part.stop for part in rows.values()):
            message = f"{batch_size} images a process are too few for parts of {', '.join(map(str, rows))}"
            raise ConfigError([("batch_size", message)])
        return rows
