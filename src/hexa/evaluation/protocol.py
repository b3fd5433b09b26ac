"""What every evaluation protocol is: options, an identity, and a function of a backbone and two sets of images."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pydantic
import torch
from torch import Tensor

from hexa.config import Config, ConfigError, UserError, nearest
from hexa.data import Source
from hexa.data.views import EvaluationTransform
from hexa.nn.pretrained import Backbone

#: Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """One evaluation: `fit` holds the labelled images to learn from, `test` those that are scored."""

    backbone: Backbone
    fit: Source
    test: Source
    class_names: list[str]
    transform: EvaluationTransform
    device: torch.device
    precision: Literal["fp32", "bf16"]
    num_workers: int | None
    extraction_batch: int
    seed: int
    cached: bool = False
    """Look for features in the cache, and leave them there."""
    chosen: frozenset[str] = frozenset()
    """Options that were asked for, whatever their preset says."""
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)
    """Sentences about the images, whatever the protocol."""

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes − 1, or columns."""
        return len(self.class_names)

    def report(self, label: str, done: int, total: int) -> None:
        """Tell whoever watches."""
        if self.progress is not None:
            self.progress(label, done, total)


@dataclass
class Outcome:
    """What a protocol found. `metrics`: flat, in percent; `details`: whatever explains it; `notes`: sentences."""

    metrics: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    effective: dict[str, Any] = field(default_factory=dict)
    """Options that could not be honoured as given (k above the training-set size), as they were used."""
    transform: dict[str, Any] | None = None
    """How images were prepared, unless by the task's transform."""


def listed(value: Any) -> Any:
    """Validator of list options: from a command line a list may also come as one value or as 1,2,4."""
    if isinstance(value, str):
        return value.split(",")
    return (value,) if isinstance(value, int | float) else value


def all_positive(values: tuple[float, ...]) -> tuple[float, ...]:
    """Validator of options that list rates or costs."""
    if any(not value > 0 for value in values):
        raise ValueError("every one must be above 0")
    return values


@dataclass(frozen=True)
class Protocol:
    """A protocol is found by being the `PROTOCOL` of a module of this package, whose file name is the protocol's."""

    run: Callable[[Task, Any], Outcome]
    presets: Mapping[str, Config]
    """Complete options under the name of the publication or use they come from; the first is the default."""
    identity: Callable[[str, Any], str]
    """(preset, options) -> the protocol id that a result carries, without the protocol's name."""
    labels: Literal["one", "any"] = "one"
    """What it can learn from: one class an image, [N], or any number of them too, [N, C]."""
    learns: bool = False
    """Whether the network itself is trained."""
    resizes: bool = False
    """Whether it brings images to their size itself, and not by the task's transform."""
    fixed: Callable[[Any], bool] = lambda options: True
    """Whether these options see each image once, by the task's transform, if the network itself is not trained."""

    def options(
        self, preset: str | None, changes: Mapping[str, Any], common: Sequence[str] = ()
    ) -> tuple[str, Config, dict[str, list[Any]]]:
        """The preset's name, its options with `changes`, and {option: [published, used]} for those that differ.

        common: options that every protocol has, to name the nearest to a mistyped one.
        """
        name = preset or next(iter(self.presets))
        if name not in self.presets:
            raise UserError(f"unknown preset '{name}'; there is {', '.join(self.presets)}")
        published = self.presets[name]
        own = type(published).model_fields
        for key in changes:
            if key not in own:
                raise UserError(f"unknown option '{key}'; {nearest(key, [*own, *common])}")
        try:
            # an option left out falls back on the preset, not on the default of its type
            used = type(published).model_validate({**published.model_dump(exclude_unset=True), **changes})
        except pydantic.ValidationError as error:
            raise ConfigError.of(error) from None
        before, after = published.model_dump(mode="json"), used.model_dump(mode="json")
        return name, used, {key: [before[key], after[key]] for key in after if before[key] != after[key]}


def check_common(
    holdout: object, precision: object, num_workers: object, extraction_batch: object, cached: object
) -> None:
    """Options of all protocols, which may come from a command line as any type. Raises UserError."""
    if holdout is not None and not (isinstance(holdout, int | float) and 0 < holdout < 1):
        raise UserError(f"holdout {holdout} is no share of the training images; give a number between 0 and 1")
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision '{precision}' is none of auto, fp32, bf16")
    if num_workers is not None and not (isinstance(num_workers, int) and num_workers >= 0):
        raise UserError(f"num_workers {num_workers} is no number of processes; give 0 or more, or leave it out")
    if not (isinstance(extraction_batch, int) and extraction_batch > 0):
        raise UserError(f"extraction_batch {extraction_batch} is no number of images; give 1 or more")
    if not isinstance(cached, bool):
        raise UserError(f"cached '{cached}' is neither true nor false")


def protocols() -> dict[str, Protocol]:
    """Every protocol by name: the modules of this package that define PROTOCOL. A new one needs one new file."""
    home = importlib.import_module("hexa.evaluation")
    found = {}
    for info in pkgutil.iter_modules(home.__path__):
        module = importlib.import_module(f"hexa.evaluation.{info.name}")
        candidate = getattr(module, "PROTOCOL", None)
        if isinstance(candidate, Protocol):
            found[info.name.replace("_", "-")] = candidate
    return found


def topk_accuracy(scores: Tensor, labels: Tensor, ks: tuple[int, ...] = (1, 5)) -> dict[str, float]:
    """{"top1": …, "top5": …} in percent: the share of rows whose label is among the k highest scores.

    scores: [N, C], labels: int64 [N]. Of equal scores the lower class ranks first, on every device. With C ≤ k classes
    the figure would be 100 by construction, so it is left out (top1 always stays).
    """
    # counting what ranks above the true class needs no sort, and is deterministic where topk's choice among ties is not
    own = scores.gather(1, labels[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = (scores > own).sum(1) + ((scores == own) & before).sum(1)
    # a score that isn't a number beats nothing, so without this a broken probe would look perfect
    rank = torch.where(scores.isfinite().all(1), rank, scores.shape[1])
    kept = [k for k in ks if k == 1 or k < scores.shape[1]]
    return {f"top{k}": 100.0 * float((rank < k).double().mean()) for k in kept}
