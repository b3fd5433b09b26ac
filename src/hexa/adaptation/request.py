"""What the user of `hexa adapt` asks for, and how start and result are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from hexa.adaptation import wording
from hexa.adaptation.given import Given, Plan
from hexa.adaptation.plan import plan
from hexa.comparison.extraction import Extraction
from hexa.config import UserError
from hexa.data import Source
from hexa.recipes import domains
from hexa.recipes.experiment import Experiment
from hexa.reporting.tables import Table
from hexa.runtime.progress import Progress
from hexa.weights.pretrained import Backbone


@dataclass(frozen=True)
class Trained:
    """A run that has ended, with what start and result are compared on."""

    experiment: Experiment
    out: Path
    start: Backbone
    result: Backbone
    data: Source
    judging: Source
    """Labelled images, or `data` itself."""
    how: Extraction


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, with the better of start and result."""

    winner: Backbone
    verdict: str
    table: Table
    notes: Sequence[str]
    judged: bool
    """Whether labels were used."""
    record: Mapping[str, Any]
    """All numbers, for JSON."""


@dataclass(frozen=True)
class AdaptRequest:
    """What the user asks for; an output folder can only be continued with the same request."""

    backbone: str
    data: str
    labelled: str | None = None
    seconds: float = 1800.0
    domain: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    groups: str | None = None
    """Which of the labelled images were taken together, as for `CompareRequest`."""

    recipe: ClassVar = "adapt"
    command: ClassVar = "adapt"
    larger: ClassVar = 7 / 5
    """A result is for images of up to this many times the size of the views."""

    def __post_init__(self) -> None:
        if self.backbone.startswith("random:"):
            raise UserError(
                f"{self.backbone}: random weights have no features to begin from; give trained "
                "weights, or begin from random ones with hexa pretrain"
            )
        if "training.max_seconds" in self.fields:
            raise UserError(
                "--training.max_seconds: leave it out; --time limits the whole command, unless --epochs or --max_steps is given"
            )
        if self.groups is not None and "monitor.data" in self.fields:
            raise UserError(
                "--groups are of the images of --labelled; give these instead of --monitor.data"
            )

    @property
    def record(self) -> dict[str, Any]:
        """The request as stored in the folder."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        named = {name: str(value) for name, value in self.fields.items()}
        return given | {"command": self.command, "fields": named}

    def of_domain(self, name: str) -> dict[str, Any]:
        """The fields of an experiment that a domain of images sets."""
        return domains.changes(name, self.fields)

    def plan(self, given: Given) -> Plan:
        """What fits the time; see `plan.plan`."""
        return plan(given)

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """Which of start and result is better on the images."""
        from hexa.comparison import verdict  # scipy, which a plan does without
        from hexa.comparison.compare import of_backbones
        from hexa.reporting.runs import read_run

        chosen = trained.experiment.monitor.keep_best == "knn"
        trials = max(1, chosen * sum("knn" in line for line in read_run(trained.out).monitor))
        start = trained.start
        result = trained.result
        sides = {"start": start, "result": result}
        found = of_backbones(sides, trained.data, trained.judging, trained.how, progress, trials)
        better = found.verdict.best == 1
        conclusion = "it helped" if better else "the start is kept"
        sentence = f"{conclusion} ({wording.sizes(start, result)}): {found.verdict.sentence}"
        winner = result if better else start
        table = verdict.table(found.sides, found.verdict)
        return Outcome(winner, sentence, table, found.notes, found.judge is not None, found.record)
