"""A plan as people read it: a table of runs with their cost, and every run as a command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from hexa.core.schemes import SCHEMES
from hexa.reporting.comparison import command
from hexa.reporting.runs import Run
from hexa.reporting.tables import format_duration
from hexa.reproduce.arms import Arm
from hexa.reproduce.plan import Costs, Job, Request, seconds_per_image


@dataclass(frozen=True)
class Line:
    """One line of a printed plan. seconds: None where nothing was measured; passes: images times forward passes."""

    phase: str
    arm: Arm
    epochs: int
    runs: int
    done: int
    seconds: float | None
    passes: float


def lines(jobs: Sequence[Job], request: Request, costs: Costs | None, done: Collection[str] = ()) -> list[Line]:
    """The jobs by phase, arm and length. seconds: pre-training what is not done yet, one run after another."""
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.phase, job.arm.key, job.experiment.epochs), []).append(job)
    made = []
    for (phase, _, epochs), members in groups.items():
        arm, images = members[0].arm, request.num_images * epochs
        left = sum(job.name not in done for job in members)
        seconds = None if costs is None else left * images * seconds_per_image(arm, costs)
        passes = float(len(members) * images * (1 + len(SCHEMES[arm.scheme].terms)))
        made.append(Line(phase, arm, epochs, len(members), len(members) - left, seconds, passes))
    return made


def table(jobs: Sequence[Job], request: Request, costs: Costs | None, done: Collection[str]) -> Table:
    """The lines for a terminal, and their sum; without costs the passes of images stand in for the time."""
    rows = lines(jobs, request, costs, done)
    shown = Table(box=None, pad_edge=False)
    for head in ("", "arm", "epochs", "runs", "done", "image passes" if costs is None else "time left"):
        shown.add_column(head, justify="left" if head in ("", "arm") else "right")

    def cost(rows: Sequence[Line]) -> str:
        return (
            f"{sum(r.passes for r in rows):.1e}"
            if costs is None
            else format_duration(sum(r.seconds or 0 for r in rows))
        )

    for row in rows:
        shown.add_row(row.phase, row.arm.name, str(row.epochs), str(row.runs), str(row.done), cost([row]))
    shown.add_row("all", "", "", str(len(jobs)), str(len(done)), cost(rows), style="bold")
    return shown


@dataclass(frozen=True)
class Part:
    """A part of the plan of all experiments. new: runs that no part before has. Seconds of one process."""

    part: str
    arms: int
    runs: int
    new: int
    training: float
    evaluation: float

    @property
    def seconds(self) -> float:
        return self.training + self.evaluation


def table_of_parts(parts: Sequence[Part]) -> Table:
    """The plan of all experiments for a terminal, and its sum."""
    shown = Table(box=None, pad_edge=False)
    for head in ("", "arms", "runs", "of them new", "training", "evaluations"):
        shown.add_column(head, justify="right" if head else "left")
    totals = (sum(getattr(part, name) for part in parts) for name in ("runs", "new", "training", "evaluation"))
    for part in [*parts, Part("all", max(part.arms for part in parts), *totals)]:
        counts = (str(count) for count in (part.arms, part.runs, part.new))
        shown.add_row(part.part, *counts, format_duration(part.training), format_duration(part.evaluation))
    return shown


def command_of(job: Job, out: Path) -> str:
    """The command that trains a job's run on eight GPUs, into the folder where the study looks for it."""
    run = Run(out / "runs" / job.name, config=job.experiment.model_dump(mode="json"))
    on_one_line = command(run).replace("\\\n", "").replace("   ", " ")
    return f"torchrun --nproc-per-node 8 -m {on_one_line} --out {run.folder}"
