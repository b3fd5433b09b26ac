"""What is asked for of an experiment: images to learn from and to measure on, seeds, epochs, rates, fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.sources.known import known_as

#: The published name by the beginning of a source, for a full scale that is planned without the images.
_PUBLISHED_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "voc": "VOC07"}
#: Fields of an experiment that options of `reproduce` set.
_DECIDED = {"data", "seed", "epochs", "optimizer.learning_rate", "monitor.until"}


def refuse(when: object, message: str) -> None:
    """Raise UserError with a message if `when` is true."""
    if when:
        raise UserError(message)


class Target(NamedTuple):
    """Labelled images that backbones are measured on.

    several: whether an image may show more than one class. known_as: the data set of published numbers, if any.
    """

    source: str
    several: bool = False
    known_as: str | None = None


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
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every arm's experiment, by path."""
    targets: tuple[Target, ...] = ()
    """The images to measure on; `opened` adds them."""
    num_images: int = 0
    """The number of images to learn from, 0 if they are not here; `opened` adds it."""

    def opened(self, sources: Sequence[str]) -> Request:
        """The request with the images of `data` counted and those of `sources` checked. Raises UserError."""
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
        images = self.images(self.data)
        targets = []
        for source in sources:
            target = self.labelled(source)
            remedy = "name labelled images with --evaluate-on SOURCE"
            if target is None:
                raise UserError(f"data '{source}' has no labels to measure with; {remedy}")
            targets.append(target)
        return replace(self, targets=tuple(targets), num_images=len(images or ()))

    def images(self, source: str) -> Source | None:
        """The training images of a source; None if a full scale is planned without them."""
        try:
            return open_source(source, "train")
        except UserError:
            if self.scale == "full":
                return None
            raise

    def labelled(self, source: str) -> Target | None:
        """The labelled images of a source; None if it has no labels."""
        opened = self.images(source)
        if opened is None:
            kind = source.partition(":")[0]
            return Target(source, kind == "voc", _PUBLISHED_NAMES.get(kind))
        if opened.labels is None:
            return None
        return Target(source, opened.classes is None, known_as(opened))

    @property
    def folder(self) -> Path:
        """The folder of the experiment."""
        assert self.out is not None, "set when the experiment begins"
        return Path(self.out)
