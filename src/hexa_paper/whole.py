"""All of the paper in one folder: a loop over studies that share their runs, whose one length fits the given time."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.config import UserError
from hexa.reporting.tables import counted, format_duration
from hexa.run.figure import figure, short_name
from hexa.run.run import BACKBONE
from hexa.runtime.console import Console
from hexa_paper import paper, plan, storage
from hexa_paper.costs import Progress, costs_of
from hexa_paper.parts import SEARCH, SEARCHED, UNTRAINED, Parts
from hexa_paper.plan import Costs, Job
from hexa_paper.running import run_jobs
from hexa_paper.studies import LEARNERS, TABLES, Measure
from hexa_paper.work import Work, counting, table
from hexa_paper.writing import search_scores

if TYPE_CHECKING:
    import rich.table

#: Estimates may fill this share of the given time; a run costs these seconds beside its steps.
_SHARE, _RUN_SECONDS = 0.85, 3.0
DECIDED = "plan.json"


class OutOfTime(Exception):
    """The given time is over."""


class Whole(Parts):
    """The studies with their plan and their work."""

    # -- the plan -----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What is carried out, in a line."""
        return "all experiments of the paper"

    def costs(self, progress: Progress | None = None) -> Costs:
        """What an image costs in every arm, measured once; so is every evaluation, on random weights."""
        storage.claim(self.out, self.claim)
        costs = costs_of(self.search(1).study, self.request, self.out, progress=progress)
        evaluations = list(self.evaluations(1))
        for number, evaluation in enumerate(evaluations):
            if progress is not None:
                progress("measuring evaluations", number, len(evaluations))
            self.untrained(evaluation, self.request.seeds[0])
        return costs

    def lines(self, epochs: int, costs: Costs) -> list[dict[str, Any]]:
        """The runs of this length by part, with seconds of one process: the search, every study, and random weights."""
        once = {}
        for short, long in zip(self.evaluations(1), self.evaluations(epochs), strict=True):
            kept = self.untrained(short, self.request.seeds[0], stored=True) or {"took": 0.0}
            once[long.measure.title, long.source] = kept["took"] * _length(long.measure) / _length(short.measure)

        def line(part: str, arms: int, jobs: Sequence[Job], new: Sequence[Job], evaluation: float) -> dict[str, Any]:
            steps = sum(job.experiment.epochs * plan.seconds_per_image(job.arm, costs) for job in new)
            training = _RUN_SECONDS * len(new) + self.request.num_images * steps
            counts = {"arms": arms, "runs": len(jobs), "of them new": len(new)}
            return {"": part, **counts, "training": training, "evaluations": evaluation}

        search, seen = self.search(epochs).search, set[str]()
        made = [line(SEARCH, len(self.arms), search, search, len(search) * next(iter(once.values()), 0.0))]
        for part, work in self.parts(epochs).items():
            jobs = work.final()
            new = {job.run: job for job in jobs if job.run not in seen}
            seen |= new.keys()
            measured = sum(once[measure.title, source] for job in jobs for measure, source, *_ in job.measures)
            made.append(line(part, len(work.study.arms), jobs, list(new.values()), measured))
        return [*made, line(UNTRAINED, 1, (), (), len(self.request.seeds) * sum(once.values()))]

    def decide(self, costs: Costs) -> int:
        """The epochs of every run: as decided before, as given, or the most that fit. Raises UserError if none do."""
        kept = storage.read(self.out / DECIDED) or {"epochs": None}
        most = min(plan.epochs_of(arm, self.request) for arm in self.arms.values())
        given, limit = self.request.epochs or kept["epochs"], self.seconds
        if given or limit is None:
            return int(given or most)
        lengths = [epochs for epochs in range(1, most + 1) if epochs < SEARCHED or epochs % SEARCHED == 0]

        def seconds(epochs: int) -> float:
            lines = self.lines(epochs, costs)
            return float(sum(line["training"] + line["evaluations"] for line in lines)) / self.request.workers / _SHARE

        fit = bisect.bisect_right(lengths, limit, key=seconds)
        if fit:
            return lengths[fit - 1]
        given, seeds = format_duration(limit), counted(len(self.request.seeds), "seed")
        remedy = f"give at least {math.ceil(seconds(1) / 60)}m, or fewer --seeds or images"
        raise UserError(f"--time {given} is too short for one epoch of everything with {seeds}: {remedy}")

    def plan(self, costs: Costs | None) -> Iterator[rich.table.Table | str]:
        """The plan as lines for a terminal."""
        assert costs is not None, "costs are measured at the small scale"
        epochs, durations = self.decide(costs), dict.fromkeys(("training", "evaluations"), format_duration)
        yield table(self.lines(epochs, costs), durations, ("runs", "of them new", *durations))
        seeds = ", ".join(map(str, self.request.seeds))
        yield f"{counted(epochs, 'epoch')} for every run, seeds {seeds}; runs that several parts have are made once"
        for reason in dict.fromkeys(self.left_out.values()):
            yield f"left out: {', '.join(name for name, why in self.left_out.items() if why == reason)}: {reason}"
        yield from (f"{title}: passes over its training images: {n}" for title, n in self.passes(epochs).items())

    # -- the work -----------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Path:
        """What people read of it."""
        return self.out / "paper.md"

    def carry_out(self, console: Console) -> Path:
        """Train, evaluate and collect whatever is not done already. Returns the folder."""
        costs = self.costs()
        with storage.at_work(self.out):
            epochs = self.decide(costs)
            before = (storage.read(self.out / DECIDED) or {"spent": 0.0})["spent"]
            self.clock.start(before + self.clock.total)
            try:
                self._work(epochs, console)
            except OutOfTime:
                console.print("out of time; the same command with a longer --time continues")
            finally:
                self.write_page(epochs)
        return self.out

    def _work(self, epochs: int, console: Console) -> None:
        """One seed for everything, then the next. Raises OutOfTime."""
        search = self.search(epochs)
        self._attempt(SEARCH, search, search.search, epochs, console)
        lost, rates = {arm for part, arm in self.failed if part == SEARCH}, search.rates
        for seed in self.request.seeds:
            for part, work in self.parts(epochs, rates).items():
                jobs = [job for job in work.final() if job.experiment.seed == seed]
                for job in [job for job in jobs if self.arm_key(job.arm) in lost]:
                    self.failed[part, job.arm.key] = "the search for its learning rate failed"
                    jobs.remove(job)
                before = len(work.stored(jobs))
                try:
                    self._attempt(part, work, jobs, epochs, console)
                finally:
                    if len(work.stored(jobs)) > before:
                        work.collect()
                        self.write_page(epochs)
            for evaluation in self.evaluations(epochs):
                self._check_time(epochs)
                self.untrained(evaluation, seed)
        self._draw(epochs, console)

    def _attempt(self, part: str, work: Work, jobs: Sequence[Job], epochs: int, console: Console) -> None:
        """Carry out what is not stored, one job after another, or together if there are several workers."""
        waiting, workers = [job for job in jobs if not work.stored([job])], self.request.workers
        said = counting(console, len(jobs), len(jobs) - len(waiting))
        if waiting:
            console.print(f"{part}: {counted(len(waiting), 'run')}")
        for chunk in [waiting] if workers > 1 else [[job] for job in waiting]:
            self._check_time(epochs)
            with self.told(part, *(job.arm.key for job in chunk), console=console):
                run_jobs(chunk, work.out, workers=workers, console=console, said=said)

    def _check_time(self, epochs: int) -> None:
        """Note the time of all commands. Raises OutOfTime."""
        storage.write(self.out / DECIDED, {"epochs": epochs, "spent": self.clock.total})
        if self.seconds is not None and self.clock.total >= self.seconds:
            raise OutOfTime

    def _draw(self, epochs: int, console: Console) -> None:
        """The figures of hard examples and of the space of views, of the first run with adversarial views."""
        works = self.parts(epochs, self.search(epochs).rates).values()
        runs = ((work.out / job.run).resolve() for work in works for job in work.final() if job.arm.scheme == "ii")
        trained = [run for run in runs if (run / BACKBONE).is_file()]
        for run, kind in itertools.product(trained[:1], ("hard-examples", "view-space")):
            with self.told(kind, "", console=console):
                figure(kind, run, None, self.out / "figures" / f"{kind}.png")

    def write_page(self, epochs: int) -> None:
        """Everything that is stored, as result.json and as a page made of it."""
        request, search = self.request, self.search(epochs)
        parts = self.parts(epochs, search.rates)
        sources = {target.source: target.known_as or short_name(target.source) for target in request.targets}
        records = {name: paper.part(part, sources, self.failed) for name, part in parts.items()}
        for name in [f"{one}-moco" for one in TABLES if f"{one}-moco" in parts]:
            kept = functools.partial(self.untrained, stored=True)
            learners = ("", *LEARNERS) if name.startswith("table3") else ("",)
            records[name]["arms"] += [paper.untrained(parts[name], sources, kept, learner) for learner in learners]
        record = {
            "experiment": "all",
            "data": sources[request.data],
            "images": request.num_images,
            "seeds": list(request.seeds),
            "epochs": epochs,
            "passes": self.passes(epochs),
            "hours": {"given": self.seconds and self.seconds / 3600, "spent": self.clock.total / 3600},
            "machine": next(iter(storage.read(self.out / storage.COSTS).values()))["machine"],
            "left_out": self.left_out,
            "search": search_scores(search.searched),
            "parts": records,
        }
        storage.write(self.out / storage.RESULT, record)
        storage.write(self.page, paper.page(record))


def _length(measure: Measure) -> float:
    """The epochs or steps that the time of an evaluation grows with; 1 where it has neither."""
    return float(measure.options.get("epochs") or measure.options.get("steps") or 1)
