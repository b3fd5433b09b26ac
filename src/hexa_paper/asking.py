"""What is asked for of an experiment, checked: images to learn from and to measure on, seeds, epochs, rates, fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.sources.known import known_as
from hexa.evaluation.protocols.semi_supervised import rows_of
from hexa.runtime.parsing import from_option
from hexa.training.monitor import MonitorConfig
from hexa_paper.refusal import refuse
from hexa_paper.studies import EXPERIMENTS, Study

#: ImageNet's training images, where a full scale is planned without them.
_IMAGENET = 1_281_167
#: Fields that options of their own set.
_DECIDED = {"data", "seed", "epochs", "optimizer.learning_rate", "monitor.until"}
#: Sources identified by name.
_CALLED = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "voc": "VOC07"}


@dataclass(frozen=True)
class Target:
    """Labelled images that backbones are measured on. several: whether an image may show more than one class.

    known_as: the data set of published numbers that it is, if any.
    """

    source: str
    several: bool = False
    known_as: str | None = None


@dataclass(frozen=True)
class Request:
    """What was asked for, beside the study. None leaves a thing to the recipes.

    until: percent of k-NN on held-out training images at which a run ends. shared: the folder of the runs that several
    studies share, from each one's.
    """

    data: str
    targets: tuple[Target, ...]
    num_images: int
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None
    rates: tuple[float, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    until: float | None = None
    shared: str = ""


def requested(data: str, sources: Sequence[str], scale: str, workers: int, **asked: Any) -> Request:
    """The request of a study. sources: to measure on. asked: its other fields. Raises UserError."""
    request = Request(data, (), 0, **asked)
    seeds, epochs, taken = request.seeds, request.epochs, sorted(_DECIDED & set(request.fields))
    refuse(epochs is not None and epochs < 1, f"epochs must be ≥ 1, got {epochs}")
    wrong = not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0
    refuse(wrong, "seeds: give one or more different numbers from 0, such as 0 1 2")
    refuse(workers < 1, f"workers must be ≥ 1, got {workers}")
    options = "--data, --seeds, --epochs, --rates or --until"
    refuse(taken, f"{''.join(taken[:1])} is what a study decides; use {options}")
    images, targets = _opened(data, scale), tuple(_target(source, scale) for source in sources)
    return replace(request, targets=targets, num_images=_IMAGENET if images is None else len(images))


def plain_fields(request: Request) -> dict[str, Any]:
    """The fields by their values, however they were spelled."""
    return {name: from_option(value) if isinstance(value, str) else value for name, value in request.fields.items()}


def measured_on(experiment: str, sources: Sequence[str], data_voc: str | None) -> tuple[str, ...]:
    """The sources to measure on: what is of VOC2007 finds it, and finds nothing else."""
    where = EXPERIMENTS[experiment].get("images", "")
    if data_voc is None or not where:
        return tuple(sources)
    return (data_voc,) if where == "VOC07" else (*sources, data_voc)


def _opened(source: str, scale: str) -> Source | None:
    """The images of a source; None at the full scale if they are not here, where it can be planned all the same."""
    try:
        return open_source(source, "train")
    except UserError:
        if scale == "full":
            return None
        raise


def lists_of(chosen: Study) -> list[str]:
    """The files that name the labelled images."""
    return [measure.options["list_file"] for measure in chosen.measures if "list_file" in measure.options]


def check_lists(chosen: Study, request: Request) -> None:
    """Raises UserError if the images are here and a list names others."""
    opened = _opened(request.targets[0].source, chosen.scale)
    for file in lists_of(chosen):
        if opened is not None:
            rows_of(opened, Path(file))


def check_until(request: Request, scale: str, monitor: MonitorConfig) -> None:
    """Raises UserError where there are no held-out training images whose k-NN could be measured."""
    opened = _opened(request.data, scale)
    several = opened is not None and opened.classes is None
    refuse(several, f"--until needs one label per image for k-NN, and {opened!r} has none; leave it out")
    remedy = "leave out monitor.data, and give monitor.holdout above 0"
    elsewhere = monitor.data is not None or not monitor.holdout
    refuse(elsewhere, f"--until measures on held-out training images; {remedy}")


def _target(source: str, scale: str) -> Target:
    """The labelled images of a source. Raises UserError if it has none."""
    opened = _opened(source, scale)
    if opened is None:
        return Target(source, several=source.startswith("voc:"), known_as=_CALLED.get(source.partition(":")[0]))
    remedy = "name labelled images with --evaluate-on SOURCE"
    refuse(opened.labels is None, f"data '{source}' has no labels to measure with; {remedy}")
    return Target(source, several=opened.classes is None, known_as=known_as(opened))
