"""What a study is made of: arms that are compared, and measures that compare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hexa.core.schemes import SCHEMES

Scale = Literal["small", "full"]
Fields = Mapping[str, Any]

#: What schemes i–vi are called in tables and figures (REFERENCE §5.9).
SCHEME_NAMES = {number: scheme.title for number, scheme in SCHEMES.items()}
#: And in a benchmark, which knows what each costs.
SCHEME_COSTS = {number: scheme.name for number, scheme in SCHEMES.items()}


@dataclass(frozen=True)
class Arm:
    """One row of a study: a recipe with some fields changed.

    key: a name for folders. scheme: i–vi, what a step costs. epochs: its own length, where arms differ by it.
    published: the row (method, epochs) it stands beside.
    """

    key: str
    name: str
    recipe: str
    scheme: str
    changes: Fields = field(default_factory=dict)
    epochs: int | None = None
    published: tuple[str, int] | None = None


@dataclass(frozen=True)
class Measure:
    """One evaluation of every arm. metrics: those that become columns; empty for all but spreads."""

    title: str
    protocol: str
    options: Fields = field(default_factory=dict)
    metrics: tuple[str, ...] = ("top1",)


@dataclass(frozen=True)
class Study:
    """An experiment of the paper at one scale, by one method.

    lengths: the shares of the epochs at which every arm is trained anew. equal_time: train every arm for the time of
    the first one as well. search: look for each arm's learning rate; published settings are taken as they are.
    data: the arms' own source. notes: what it can't tell, a line each.
    """

    name: str
    method: str
    scale: Scale
    question: str
    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    lengths: tuple[float, ...] = (1.0,)
    equal_time: bool = True
    search: bool = True
    notes: tuple[str, ...] = ()


KNN = Measure("k-NN top-1", "knn")
PROBE = Measure("linear probe top-1", "probe")
LINEAR = Measure("linear top-1", "linear", {"preset": "cifar"})
SVM = Measure("SVM mAP", "svm", metrics=("mAP",))
#: Its accuracy after every epoch is a figure of its own.
WHILE_TRAINING = "linear top-1, 10 epochs"
LOW_SHOT = Measure("SVM", "low-shot", {"shots": (1, 2, 4, 8, 16, 32)}, metrics=())
