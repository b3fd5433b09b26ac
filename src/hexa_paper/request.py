"""What is asked for of an experiment, checked: images to learn from and to measure on, seeds, epochs, rates, fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.sources.known import known_as
from hexa.runtime.parsing import from_option
from hexa_paper.storage import refuse

#: Training images of ImageNet, and of sources not in `_CIFAR`, if a full scale is planned without them.
_IMAGENET = 1_281_167
#: Training images of other data sets.
_CIFAR = {"cifar10": 50_000, "cifar100": 50_000}
#: Fields that options of their own set.
_DECIDED = {"data", "seed", "epochs", "optimizer.learning_rate", "monitor.until"}
#: Sources identified by name.
_CALLED = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "voc": "VOC07"}


class Target(NamedTuple):
    """Labelled images that backbones are measured on. several: whether an image may show more than one class.

    known_as: the data set of published numbers that it is, if any.
    """

    source: str
    several: bool = False
    known_as: str | None = None


@dataclass(frozen=True)
class Request:
    """What was asked for, besides the experiment. None leaves a thing to the study, or to the recipes.

    data: the images to learn from.
    scale: small, or full, with the published settings.
    method: moco or dcluster, in tables also swav or compared; by default the published one.
    out: the folder; by default below runs/.
    seeds: every arm is trained with each of them.
    epochs: of every arm.
    rates: the learning rates that every arm chooses from; a single one is used without a search.
    evaluate_on: labelled sources to measure on; by default `data`.
    data_voc: VOC2007, for the tables and the column that are of it.
    label_lists: the folder of SimCLR's lists, for table 3.
    one_run: learning curves as published.
    fields: of every arm's experiment, by path.
    targets, num_images: the images to measure on, and how many there are to learn from; `opened` adds them.
    shared: the folder of the runs that several studies share, from each one's.
    """

    data: str
    scale: str = "small"
    method: str | None = None
    out: Path | str | None = None
    seeds: Sequence[int] = (0, 1, 2)
    epochs: int | None = None
    rates: Sequence[float] | None = None
    evaluate_on: Sequence[str] = ()
    data_voc: str | None = None
    label_lists: Path | str | None = None
    one_run: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    num_images: int = 0
    shared: str = ""

    def opened(self, sources: Sequence[str]) -> Request:
        """With the images to learn from and those of `sources` to measure on. Raises UserError for what is wrong."""
        seeds = self.seeds
        taken = sorted(_DECIDED & set(self.fields))
        refuse(
            self.epochs is not None and self.epochs < 1, f"epochs must be ≥ 1, got {self.epochs}"
        )
        wrong = not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0
        refuse(wrong, "seeds: give one or more different numbers from 0, such as 0 1 2")
        options = "--data, --seeds, --epochs or --rates"
        refuse(taken, f"{''.join(taken[:1])} is what a study decides; use {options}")
        images = self.images(self.data)
        targets = tuple(map(self._target, sources))
        absent = _CIFAR.get(self.data.partition(":")[0], _IMAGENET)
        return replace(self, targets=targets, num_images=absent if images is None else len(images))

    def images(self, source: str) -> Source | None:
        """The images of a source; None at the full scale if they are not here, where it can be planned all the same."""
        try:
            return open_source(source, "train")
        except UserError:
            if self.scale == "full":
                return None
            raise

    def _target(self, source: str) -> Target:
        """The labelled images of a source. Raises UserError if it has none."""
        opened = self.images(source)
        if opened is None:
            return Target(
                source,
                several=source.startswith("voc:"),
                known_as=_CALLED.get(source.partition(":")[0]),
            )
        remedy = "name labelled images with --evaluate-on SOURCE"
        refuse(opened.labels is None, f"data '{source}' has no labels to measure with; {remedy}")
        return Target(source, several=opened.classes is None, known_as=known_as(opened))

    @property
    def folder(self) -> Path:
        """Where it is carried out."""
        assert self.out is not None, "begun"
        return Path(self.out)

    @property
    def plain_fields(self) -> dict[str, Any]:
        """The fields as JSON, however an option spelled them."""
        plain = {
            name: from_option(value) if isinstance(value, str) else value
            for name, value in self.fields.items()
        }
        return dict(json.loads(json.dumps(plain)))

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of its folder have in common whatever the experiment."""
        measured_on = [target.source for target in self.targets]
        return {
            "data": self.data,
            "measured_on": measured_on,
            "epochs": self.epochs,
            "fields": self.plain_fields,
        }
