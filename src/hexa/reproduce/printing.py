"""A plan as people read it: a table of runs with their cost, and every run as a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from hexa.reporting.comparison import command
from hexa.reporting.runs import Run
from hexa.reporting.tables import format_duration
from hexa.reproduce.design import SCHEME_COSTS, Arm
from hexa.reproduce.plan import Costs, Job, Request, seconds_per_image
from hexa.session.benchmark import SCHEMES


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


def lines(jobs: Sequence[Job], request: Request, costs: Costs | None, done: Iterable[str] = ()) -> list[Line]:
    """The jobs by phase, arm and length. seconds are those of pre-training what isn't done yet, one after another."""
    stored = set(done)
    groups: dict[tuple[str, str, int], Line] = {}
    for job in jobs:
        place = (job.phase, job.arm.key, job.experiment.epochs)
        line = groups.setdefault(
            place, Line(job.phase, job.arm, job.experiment.epochs, 0, 0, None if costs is None else 0.0, 0.0)
        )
        images = request.num_images * job.experiment.epochs
        seconds = line.seconds
        if costs is not None and seconds is not None and job.name not in stored:
            seconds += images * seconds_per_image(job.arm, costs)
        groups[place] = replace(
            line,
            runs=line.runs + 1,
            done=line.done + (job.name in stored),
            seconds=seconds,
            passes=line.passes + images * (1 + len(SCHEMES[SCHEME_COSTS[job.arm.scheme]])),
        )
    return list(groups.values())


def table(jobs: Sequence[Job], request: Request, costs: Costs | None, done: Sequence[str]) -> Table:
    """The lines for a terminal, and their sum; without costs the passes of images stand in for the time."""
    rows = lines(jobs, request, costs, done)
    shown = Table(box=None, pad_edge=False)
    for head in ("", "arm", "epochs", "runs", "done", "time left" if costs is not None else "image passes"):
        shown.add_column(head, justify="left" if head in ("", "arm") else "right")
    for row in rows:
        cost = format_duration(row.seconds) if row.seconds is not None else f"{row.passes:.1e}"
        shown.add_row(row.phase, row.arm.name, str(row.epochs), str(row.runs), str(row.done), cost)
    passes = f"{sum(row.passes for row in rows):.1e}"
    whole = passes if costs is None else format_duration(sum(row.seconds or 0 for row in rows))
    shown.add_row("all", "", "", str(sum(row.runs for row in rows)), str(len(done)), whole, style="bold")
    return shown


def command_of(job: Job, out: Path) -> str:
    """The command that trains a job's run on eight GPUs, into the folder where the study looks for it."""
    run = Run(out / "runs" / job.name, config=job.experiment.model_dump(mode="json"))
    on_one_line = command(run).replace("\\\n", "").replace("   ", " ")
    return f"torchrun --nproc-per-node 8 -m {on_one_line} --out {run.folder}"
