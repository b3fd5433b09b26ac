"""The request of `hexa adapt`, and the evaluation of its result."""

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
from hexa.runtime.console import Progress
from hexa.weights.pretrained import Backbone


@dataclass(frozen=True)
class Trained:
    """A finished run, with the inputs of its evaluation."""

    experiment: Experiment
    out: Path
    start: Backbone
    result: Backbone
    data: Source
    judging: Source
    """Labelled images for the evaluation; `data` itself if there are no others."""
    how: Extraction


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, with the better backbone."""

    winner: Backbone
    verdict: str
    table: Table
    notes: Sequence[str]
    judged: bool
    """True if labels were used."""
    record: Mapping[str, Any]
    """All numbers, for JSON."""


@dataclass(frozen=True)
class AdaptRequest:
    """The options of `hexa adapt`. An output folder can only be continued with the same request."""

    backbone: str
    data: str
    labelled: str | None = None
    seconds: float = 1800.0
    domain: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    groups: str | None = None
    """Source of group labels: FILE.csv, column:NAME or key:NAME (default: sub-folders of class folders)."""

    recipe: ClassVar = "adapt"
    command: ClassVar = "adapt"
    larger: ClassVar = 7 / 5
    """Image size of the result divided by the size of the views, at most."""

    def __post_init__(self) -> None:
        if self.backbone.startswith("random:"):
            raise UserError(
                f"{self.backbone}: random weights cannot be adapted; give trained weights, or train from random weights with hexa pretrain"
            )
        if "training.max_seconds" in self.fields:
            raise UserError(
                "--training.max_seconds: leave out this field; --time limits the whole command, unless --epochs or --max_steps is given"
            )
        if self.groups is not None and "monitor.data" in self.fields:
            raise UserError(
                "--groups applies to the images of --labelled; give --labelled instead of --monitor.data"
            )

    @property
    def record(self) -> dict[str, Any]:
        """The request, as stored in the folder."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        named = {name: str(value) for name, value in self.fields.items()}
        return given | {"command": self.command, "fields": named}

    def of_domain(self, name: str) -> dict[str, Any]:
        """Return the fields of an experiment that the domain `name` sets."""
        return domains.changes(name, self.fields)

    def plan(self, given: Given) -> Plan:
        """Return the plan that fits the time; see `plan.plan`."""
        return plan(given)

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """Evaluate initial weights and result on the images, and return the better one."""
        from hexa.comparison import verdict  # imports scipy, which a plan does not need
        from hexa.comparison.compare import of_backbones
        from hexa.reporting.runs import read_run

        monitor = trained.experiment.monitor
        # labels also choose a state by ending the run at it
        chosen = monitor.keep_best == "knn" or monitor.until is not None
        trials = max(1, chosen * sum("knn" in line for line in read_run(trained.out).monitor))
        start = trained.start
        result = trained.result
        sides = {"initial weights": start, "result": result}
        found = of_backbones(sides, trained.data, trained.judging, trained.how, progress, trials)
        better = found.verdict.best == 1
        conclusion = "training helped" if better else "the initial weights are kept"
        sentence = f"{conclusion} ({wording.sizes(start, result)}): {found.verdict.sentence}"
        winner = result if better else start
        table = verdict.table(found.sides, found.verdict)
        return Outcome(winner, sentence, table, found.notes, found.judge is not None, found.record)
