"""The options of an experiment, and what is known about its images."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.sources.known import known_as

#: The published name by the beginning of a source, for a full scale that is planned without the images.
_PUBLISHED_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "voc": "VOC07"}
#: Fields of an experiment that options of `reproduce` set.
_DECIDED = {"data", "seed", "epochs", "optimizer.learning_rate", "monitor.until"}


def refuse(when: object, message: str) -> None:
    """Raise UserError with a message if `when` is true."""
    if when:
        raise UserError(message)


class Images(NamedTuple):
    """The facts of a source that decide its evaluations."""

    source: str
    num_images: int = 0
    """The number of training images; 0 if they are not here."""
    labelled: bool = True
    several: bool = False
    """True if an image may show more than one class."""
    known_as: str | None = None
    """The data set of published numbers, if it is one."""


@functools.cache
def images_of(source: str, absent: bool = False) -> Images:
    """Look at the images of a source. absent: they need not be here. Raises UserError."""
    try:
        opened = open_source(source, "train")
    except UserError:
        if not absent:
            raise
        kind = source.partition(":")[0]
        return Images(source, several=kind == "voc", known_as=_PUBLISHED_NAMES.get(kind))
    several = opened.classes is None
    return Images(source, len(opened), opened.labels is not None, several, known_as(opened))


def check_test_images(source: str) -> None:
    """Raise UserError if a source has no test images to measure on."""
    try:
        open_source(source, "test")
    except UserError as error:
        remedy = "give a source with both with --evaluate-on SOURCE"
        raise UserError(f"{source}: needs training and test images ({error}); {remedy}") from None


@dataclass(frozen=True)
class Request:
    """The options of an experiment. None leaves a choice to the study, or to the recipes."""

    data: str
    """The images to learn from."""
    scale: str = "small"
    """small, or full, with the published settings."""
    method: str | None = None
    """moco or dcluster, in tables also swav or compared; by default the published one."""
    out: Path | str | None = None
    """The folder; by default below runs/."""
    seeds: Sequence[int] = (0, 1, 2)
    """Every arm is trained with each seed."""
    epochs: int | None = None
    """Epochs of every arm."""
    rates: Sequence[float] | None = None
    """The learning rates that every arm chooses from; a single one is used without a search."""
    evaluate_on: Sequence[str] = ()
    """Labelled sources to measure on; by default `data`."""
    data_voc: str | None = None
    """VOC2007, for the tables and the column that are measured on it."""
    label_lists: Path | str | None = None
    """The folder of SimCLR's lists, for table 3."""
    processes: int | None = None
    """Processes that train a run; by default one for each visible GPU at the full scale, and one at the small scale."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every arm's experiment, by path."""

    def check(self) -> None:
        """Raise UserError for numbers out of range, and for fields that have an option."""
        refuse(
            self.epochs is not None and self.epochs < 1, f"epochs must be ≥ 1, got {self.epochs}"
        )
        seeds = self.seeds
        wrong = not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0
        refuse(wrong, "seeds: give one or more different numbers from 0, such as 0 1 2")
        nonpositive = any(not rate > 0 for rate in self.rates or ())
        refuse(nonpositive, "rates: every learning rate must be above 0")
        for path in sorted(_DECIDED & set(self.fields)):
            options = "--data, --seeds, --epochs or --rates"
            raise UserError(f"{path} is what a study decides; use {options}")

    def images(self, source: str) -> Images:
        """Look at the images of a source, which a full scale is planned without if need be. Raises UserError."""
        return images_of(source, absent=self.scale == "full")

    @property
    def folder(self) -> Path:
        """The folder of the experiment."""
        assert self.out is not None, "set when the experiment begins"
        return Path(self.out)
