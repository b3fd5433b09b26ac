"""The parts of an evaluation protocol: options, an identity, and a function of a backbone and two sets of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.config import Config, UserError, nearest, some
from hexa.data import Source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.sources.source import Labels, Subset
from hexa.evaluation.features import extract_together, transform_of
from hexa.runtime.console import Progress, silent
from hexa.weights.pretrained import Backbone

Part = Literal["fit", "test"]
#: What a network computes in.
Resolved = Literal["fp32", "bf16"]
#: The accuracy after some epochs: [{"epoch", "top1", "top5", "balanced_accuracy"}, …], the last epoch at its end.
Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Task:
    """One evaluation: `fit` holds the labelled images to learn from, `test` those that are scored."""

    backbone: Backbone
    fit: Source
    test: Source
    class_names: list[str]
    device: torch.device
    precision: Resolved
    num_workers: int | None
    seed: int
    extraction_batch: int = 256
    """Images that go through the frozen network at a time."""
    target: Path | None = None
    """The file that the result is written to; the state of an interrupted protocol lies next to it."""
    chosen: frozenset[str] = frozenset()
    """Options that were asked for, whatever their preset says."""
    report: Progress = silent
    """Told of what is being done, how much of it is done, and how much there is."""
    notes: list[str] = field(default_factory=list)
    """Sentences about the images, whatever the protocol."""
    _extracted: dict[Part, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _read: dict[Part, Source] = field(default_factory=dict, init=False)

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes − 1, or columns."""
        return len(self.class_names)

    @property
    def transform(self) -> EvaluationTransform:
        """The transform that prepares images for the backbone."""
        return transform_of(self.backbone)

    @property
    def extraction(self) -> dict[str, Any]:
        """Options of `hexa.evaluation.features.extract`."""
        return {
            "batch_size": self.extraction_batch,
            "device": self.device,
            "precision": self.precision,
            "num_workers": self.num_workers,
        }

    def features(self, part: Part) -> tuple[Tensor, Tensor]:
        """Features [N, D] and labels of the images to fit on or to score, on the CPU; extracted once.

        Several processes call it alike and extract a share each; the main process has all features afterwards. The
        backbone is left in eval mode on the task's device. Raises UserError, in all processes.
        """
        if part not in self._extracted:
            source = self.fit if part == "fit" else self.test
            which = "training" if part == "fit" else "test"
            tell = functools.partial(self.report, f"extracting features ({which} images)")
            features, positions = extract_together(
                self.backbone, source, progress=tell, **self.extraction
            )
            read = self.keep(part, source, positions.numpy())
            assert read.labels is not None, "a task has labelled sources"
            self._extracted[part] = features, torch.from_numpy(read.labels)
        return self._extracted[part]

    def fit_groups(self) -> Labels | None:
        """Groups of the images of `features("fit")`, int64 [N]; None without groups."""
        self.features("fit")
        return self._read["fit"].groups()

    def both_features(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features and labels to fit on, features and labels to score, on the CPU."""
        return *self.features("fit"), *self.features("test")

    def scored_labels(self) -> Labels:
        """Labels of the test images that were scored; of all before that."""
        labels = self._read.get("test", self.test).labels
        assert labels is not None, "a task has labelled sources"
        return labels

    def keep(self, part: Part, source: Source, positions: Labels) -> Source:
        """Keep which images of a part could be read; note the first time how many others there are, and the first ones.

        source: the part's images, or some of them. positions: in the source, of those that were read. Returns these.
        """
        lost = np.setdiff1d(range(len(source)), positions)
        if len(lost) and part not in self._read:
            which = "training" if part == "fit" else "test"
            names = some(source.paths[place] for place in lost)
            self.notes.append(
                f"{len(lost)} of {len(source):,} {which} images could not be read: {names}"
            )
        self._read[part] = Subset(source, positions)
        return self._read[part]


@dataclass
class Outcome:
    """The result of a protocol. `metrics`: flat, in percent; `details`: whatever explains it; `notes`: sentences."""

    metrics: dict[str, float]
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    effective: dict[str, Any] = field(default_factory=dict)
    """Options that could not be honoured as given (k above the training-set size), as they were used."""
    transform: dict[str, Any] | None = None
    """The preparation of images, if it is not the task's transform."""
    grouped: bool = False
    """True if an option was chosen on held-out images in whole groups; the protocol id then says so."""


@dataclass(frozen=True)
class Protocol:
    """A protocol is the `PROTOCOL` of a module of `hexa.evaluation.protocols`, whose file name is the protocol's."""

    run: Callable[[Task, Any], Outcome]
    """(task, options) -> the metrics and their details."""
    presets: Mapping[str, Config]
    """Complete options under the name of the publication or use they come from; the first is the default."""
    identity: Callable[[str, Any], str]
    """(preset, options) -> the protocol id that a result carries, without the protocol's name."""
    labels: Literal["one", "any"] = "one"
    """Labels that the protocol takes: one class per image, [N], or multi-label images too, [N, C]."""
    extracts: Callable[[Any], tuple[Part, ...]] = lambda options: ("fit", "test")
    """options -> the images whose features from the frozen network it needs; none if the network itself is trained."""
    together: Callable[[Any], bool] = lambda options: False
    """options -> True if all processes of an evaluation run it; otherwise the main process runs it alone."""
    resizes: bool = False
    """True if the protocol resizes images itself."""

    def options(
        self, preset: str | None, changes: Mapping[str, Any], common: Iterable[str] = ()
    ) -> tuple[str, Config]:
        """The preset's name, and its options with `changes`.

        common: options that every protocol has, to suggest the nearest for a mistyped one. Raises UserError.
        """
        name = preset or next(iter(self.presets))
        if name not in self.presets:
            raise UserError(f"unknown preset '{name}'; {nearest(name, self.presets)}")
        published = self.presets[name]
        own = type(published).model_fields
        for key in changes:
            if key not in own:
                raise UserError(f"unknown option '{key}'; {nearest(key, [*own, *common])}")
        # an option left out falls back on the preset, not on the default of its type
        return name, type(published).from_fields(
            {**published.model_dump(exclude_unset=True), **changes}
        )


def deviations(published: Config, used: Config) -> dict[str, list[Any]]:
    """{option: [published, used]} for the options that differ, as JSON has them."""
    before = published.model_dump(mode="json")
    after = used.model_dump(mode="json")
    return {name: [before[name], value] for name, value in after.items() if value != before[name]}


def named_changes(published: Config, used: Config, without: Collection[str]) -> str:
    """The part of an identity that names options unlike the preset's, as -name=value, but for those `without`."""
    return "".join(
        f"-{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, (_, value) in deviations(published, used).items()
        if name not in without
    )


def listed(value: Any) -> Any:
    """Validator: from a command line a list may also come as one value or as 1,2,4."""
    if isinstance(value, str):
        return value.split(",")
    return (value,) if isinstance(value, int | float) else value


Number = TypeVar("Number", int, float)
#: The type of an option that lists numbers above 0: rates, costs, sizes.
Positive = Annotated[
    tuple[Annotated[Number, pydantic.Field(gt=0)], ...], pydantic.BeforeValidator(listed)
]


def accuracies(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """{"top1": …, "top5": …, "balanced_accuracy": …} in percent; top k: the share of rows whose label is among the k highest scores.

    scores: [N, C], labels: int64 [N]. Of equal scores the lower class ranks first, on every device. With C ≤ 5 classes
    top5 would be 100 by construction, so it is left out.
    """
    # counting what ranks above the true class needs no sort, and is deterministic where topk's choice among ties is not
    own = scores.gather(1, labels[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = (scores > own).sum(1) + ((scores == own) & before).sum(1)
    # a score that isn't a number beats nothing, so without this a broken probe would look perfect
    rank = torch.where(scores.isfinite().all(1), rank, scores.shape[1])
    shares = {f"top{k}": 100.0 * float((rank < k).double().mean()) for k in (1, 5)}
    if scores.shape[1] <= 5:
        del shares["top5"]
    balanced = balanced_accuracy((rank == 0).cpu().numpy(), labels.cpu().numpy())
    return {**shares, "balanced_accuracy": balanced}


def balanced_accuracy(right: NDArray[np.bool_ | np.float64], labels: Labels) -> float:
    """Mean over the classes of the share of their images that are classified correctly, in percent.

    right: bool or a share [N]; labels: int64 [N], of the same images. A constant answer has 100 / number of classes in
    `labels`, however many images are of one class.
    """
    of_class = np.bincount(labels)
    hits = np.bincount(labels, weights=right)
    return 100 * float((hits[of_class > 0] / of_class[of_class > 0]).mean())


def majority_class(labels: Labels) -> float:
    """Share of the most frequent class in labels [N], in percent: the accuracy of a constant answer."""
    return 100 * float(np.bincount(labels).max() / len(labels))


def best_and_last(curve: Curve) -> dict[str, float]:
    """Accuracies of the epoch with the best top1, as published codes report, and *_last of the last epoch (D32)."""
    best = max(curve, key=lambda point: point["top1"])
    last = curve[-1]
    metrics = {name: value for name, value in best.items() if name != "epoch"}
    return metrics | {f"{name}_last": value for name, value in last.items() if name != "epoch"}
