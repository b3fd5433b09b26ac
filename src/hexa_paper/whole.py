"""All of the paper in one folder: a loop over studies that share their runs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hexa.reporting.tables import counted
from hexa.run.folder import BACKBONE
from hexa.runtime.console import Console
from hexa_paper import paper, storage
from hexa_paper.figures.figure import figure, short_name
from hexa_paper.plan import Job
from hexa_paper.running import run_jobs
from hexa_paper.studies import LEARNERS, TABLES
from hexa_paper.whole_plan import SEARCH, WholePlan
from hexa_paper.work import Work, scores_of
from hexa_paper.writing import search_scores


@dataclass(frozen=True)
class Whole(WholePlan):
    """The plan of the whole paper, carried out."""

    @property
    def page(self) -> Path:
        """What people read of it."""
        return self.out / "paper.md"

    def carry_out(self, console: Console) -> Path:
        """Train, evaluate and collect whatever is not done already. Returns the folder."""
        with storage.at_work(self.out):
            try:
                self._work(console)
            finally:
                self.write_page()
        return self.out

    def _work(self, console: Console) -> None:
        """One seed for everything, then the next."""
        self._attempt(SEARCH, self.search, self.search.search, console)
        lost = {arm for part, arm in self.failed if part == SEARCH}
        works = self.parts(self.search.rates)
        for seed in self.request.seeds:
            for part, work in works.items():
                jobs = [job for job in work.final if job.experiment.seed == seed]
                without = {job.arm.key for job in jobs if self.arm_key(job.arm) in lost}
                self.failed.update(
                    {(part, arm): "the search for its learning rate failed" for arm in without}
                )
                self._attempt(
                    part, work, [job for job in jobs if job.arm.key not in without], console
                )
            for evaluation in self.evaluations:
                self.untrained(evaluation, seed)
        # the figures of hard examples and of the space of views, of the first run with adversarial views
        finals = ((work.out, job) for work in works.values() for job in work.final)
        runs = ((out / job.run).resolve() for out, job in finals if job.arm.scheme == "ii")
        trained = [run for run in runs if (run / BACKBONE).is_file()]
        for run, kind in itertools.product(trained[:1], ("hard-examples", "view-space")):
            with self.told(kind, "", console=console):
                figure(kind, run, None, self.out / "figures" / f"{kind}.png")

    def _attempt(self, part: str, work: Work, jobs: Sequence[Job], console: Console) -> None:
        """Carry out what is not stored, one job after another; one that fails does not stop the others."""
        waiting = [job for job in jobs if not work.stored([job])]
        if not waiting:
            return
        console.print(f"{part}: {counted(len(waiting), 'run')}")
        numbers = itertools.count(len(jobs) - len(waiting) + 1)
        try:
            for job in waiting:
                with self.told(part, job.arm.key, console=console):
                    for done in run_jobs([job], work.out, console):
                        said = scores_of(done, work.study)
                        console.print(f"[{next(numbers)}/{len(jobs)}] {said}")
        finally:
            if part != SEARCH:
                work.collect()
            self.write_page()

    def write_page(self) -> None:
        """Everything that is stored, as result.json and as a page made of it."""
        request = self.request
        search = self.search
        parts = self.parts(search.rates)
        sources = {
            target.source: target.known_as or short_name(target.source)
            for target in request.targets
        }
        records = {name: paper.part(part, sources, self.failed) for name, part in parts.items()}
        for name in [f"{one}-moco" for one in TABLES if f"{one}-moco" in parts]:
            kept = functools.partial(self.untrained, stored=True)
            learners = ("", *LEARNERS) if name.startswith("table3") else ("",)
            records[name]["arms"] += [
                paper.untrained(parts[name], sources, kept, learner) for learner in learners
            ]
        seconds = {
            done["run"]: done["pretrain_seconds"] or 0.0
            for work in parts.values()
            for done in work.stored(work.final)
        }
        record = {
            "experiment": "all",
            "data": sources[request.data],
            "images": request.num_images,
            "seeds": list(request.seeds),
            "epochs": self.epochs,
            "passes": self.passes,
            "hours": {"spent": sum(seconds.values()) / 3600},
            "machine": next(iter(storage.read(self.out / storage.COSTS).values()))["machine"],
            "left_out": self.left_out,
            "search": search_scores(search.stored(search.search)),
            "parts": records,
        }
        storage.write(self.out / storage.RESULT, record)
        storage.write(self.page, paper.page(record))
