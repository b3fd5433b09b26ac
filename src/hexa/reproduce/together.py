"""All of the paper, carried out: the search, then everything with the first seed, with the second …, and its page."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hexa.reporting.figure import figure, short_name
from hexa.reporting.tables import counted
from hexa.reproduce import paper, storage
from hexa.reproduce.costs import Progress
from hexa.reproduce.plan import Job
from hexa.reproduce.rows import LEARNERS, TABLES
from hexa.reproduce.running import run_jobs
from hexa.reproduce.session import Count
from hexa.reproduce.whole import DECIDED, SEARCH, Whole
from hexa.reproduce.writing import search_scores
from hexa.runtime.console import Console

PAGE = "paper.md"


def carry_out(whole: Whole, console: Console, progress: Progress | None = None) -> Path:
    """Train, evaluate and collect whatever is not done already. Returns the folder."""
    costs = whole.costs(progress)
    with storage.at_work(whole.out):
        epochs = whole.decide(costs)
        kept = storage.read(whole.out / DECIDED) or {"spent": 0.0}
        clock = Clock(whole.out / DECIDED, epochs, kept["spent"], whole.seconds, whole.began)
        work = _Work(whole, epochs, clock, console)
        try:
            work.go()
        except OutOfTime:
            console.print("out of time; the same command with a longer --time continues")
        finally:
            work.write_page()
    return whole.out


class OutOfTime(Exception):
    """The given time is over."""


@dataclass
class Clock:
    """Counts the time of all sessions, and keeps it in a file beside the epochs that were decided."""

    path: Path
    epochs: int
    before: float
    most: float | None
    began: float

    @property
    def spent(self) -> float:
        """Seconds."""
        return self.before + time.monotonic() - self.began

    def check(self) -> None:
        """Note the time. Raises OutOfTime."""
        storage.write(self.path, {"epochs": self.epochs, "spent": self.spent})
        if self.most is not None and self.spent >= self.most:
            raise OutOfTime


@dataclass
class _Work:
    whole: Whole
    epochs: int
    clock: Clock
    console: Console

    def go(self) -> None:
        """Raises OutOfTime."""
        whole, epochs = self.whole, self.epochs
        self._attempt(SEARCH, whole.search(epochs)[1], whole.out / "search")
        rates = whole.rates(epochs)
        lost = {arm for part, arm in whole.failed if part == SEARCH}
        for seed in whole.request.seeds:
            for part, session in whole.parts(epochs, rates).items():
                jobs = [job for job in session.jobs(None)[1] if job.experiment.seed == seed]
                for job in [job for job in jobs if whole.arm_key(job.arm) in lost]:
                    whole.failed[part, job.arm.key] = "the search for its learning rate failed"
                    jobs.remove(job)
                before = len(session.stored(jobs))
                try:
                    self._attempt(part, jobs, session.out)
                finally:
                    if len(session.stored(jobs)) > before:
                        session.collect(None)
                        self.write_page()
            for evaluation in whole.evaluations(epochs):
                self.clock.check()
                whole.untrained(evaluation, seed)
        self._draw()

    def _attempt(self, part: str, jobs: Sequence[Job], out: Path) -> None:
        """Carry out what is not stored, one job after another, or together if there are several workers."""
        waiting = [job for job in jobs if storage.stored(out, job.name, job.identity) is None]
        said = Count(self.console, len(jobs), len(jobs) - len(waiting))
        if waiting:
            self.console.print(f"{part}: {counted(len(waiting), 'run')}")
        workers = self.whole.workers
        for chunk in [waiting] if workers > 1 else [[job] for job in waiting]:
            self.clock.check()
            with self.whole.told(part, *(job.arm.key for job in chunk), console=self.console):
                run_jobs(chunk, out, workers=workers, console=self.console, said=said)

    def _draw(self) -> None:
        """The figures of hard examples and of the space of views, of the first run with adversarial views."""
        for part in self.whole.parts(self.epochs, self.whole.rates(self.epochs)).values():
            for job in part.jobs(None)[1]:
                run = (part.out / job.run).resolve()
                if job.arm.scheme == "ii" and (run / "backbone.safetensors").is_file():
                    for kind in ("hard-examples", "view-space"):
                        with self.whole.told(kind, "", console=self.console):
                            figure(kind, run, None, self.whole.out / "figures" / f"{kind}.png")
                    return

    def write_page(self) -> None:
        """Everything that is stored, as result.json and as a page made of it."""
        whole, epochs = self.whole, self.epochs
        request, parts = whole.request, whole.parts(epochs, whole.rates(epochs))
        sources = {target.source: target.known_as or short_name(target.source) for target in request.targets}
        records = {name: paper.part(part, sources, whole.failed) for name, part in parts.items()}
        for name in [name for name in parts if name in [f"{table}-moco" for table in TABLES]]:
            kept = functools.partial(whole.untrained, stored=True)
            learners = ("", *LEARNERS) if name.startswith("table3") else ("",)
            records[name]["arms"] += [paper.untrained(parts[name], sources, kept, learner) for learner in learners]
        record = {
            "experiment": "all",
            "data": sources[request.data],
            "images": request.num_images,
            "seeds": list(request.seeds),
            "epochs": epochs,
            "passes": whole.passes(epochs),
            "hours": {"given": whole.seconds and whole.seconds / 3600, "spent": self.clock.spent / 3600},
            "machine": next(iter(storage.read(whole.out / storage.COSTS).values()))["machine"],
            "left_out": whole.left_out,
            "search": search_scores(whole.searched(epochs)),
            "parts": records,
        }
        storage.write(whole.out / storage.RESULT, record)
        storage.write(whole.out / PAGE, paper.page(record))
