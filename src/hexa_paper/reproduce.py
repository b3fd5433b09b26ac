"""The paper's experiments as one loop: for every arm and seed, what is missing is made; tables come from the files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import rich.table
import torch

from hexa.config import UserError
from hexa.reporting.tables import Table, counted, format_duration
from hexa.runtime.console import Console
from hexa.runtime.lock import locked
from hexa.runtime.signals import Interrupted
from hexa_paper import drawing, paper, results, tables
from hexa_paper.benchmark import seconds_of_image
from hexa_paper.plan import Job, Plan, experiment_of
from hexa_paper.request import Request, refuse
from hexa_paper.running import carry_out, command_of
from hexa_paper.studies import EXPERIMENTS, PARTS, Study, listed, shortened, study

#: Options of all experiments together; the others are of a single one.
_OPTIONS = {"data", "data_voc", "out", "seeds", "epochs", "fields"}
#: Characters of an error that are shown.
_MOST = 300


@dataclass(frozen=True)
class Reproduction:
    """One experiment, or all of them, whose studies share the runs of one folder."""

    experiment: str
    request: Request
    plans: dict[str, Plan]
    """The studies, by experiment; of all of them by experiment and method."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why parts of all experiments are missing."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why runs have failed since the command was given, by the name of the job."""

    @classmethod
    def begin(cls, experiment: str, asked: Request) -> Self:
        """Check the request; write nothing. Raises UserError for whatever cannot be carried out."""
        if experiment == "all":
            return cls._begin_all(asked)
        chosen = study(experiment, asked.method, asked.scale, asked.data)
        folder = asked.out or f"runs/{experiment}-{chosen.method}-{asked.scale}"
        request = replace(asked, out=Path(folder), rates=asked.rates or None)
        plan = _planned(chosen, request)
        if request.label_lists is not None:
            plan = replace(plan, study=listed(chosen, plan.request))
        plan.check()
        results.check(request.folder)
        plan.final()  # raises for a wrong field
        return cls(experiment, plan.request, {experiment: plan})

    @classmethod
    def _begin_all(cls, asked: Request) -> Self:
        for one in fields(Request):
            given = getattr(asked, one.name) not in (None, (), [], one.default)
            remedy = "applies to a single experiment; leave it out"
            refuse(given and one.name not in _OPTIONS, f"--{one.name.replace('_', '-')} {remedy}")
        request = replace(asked, out=Path(asked.out or "runs/all"))
        sources = [asked.data, *([asked.data_voc] if asked.data_voc else [])]
        request = request.opened(sources)
        plans: dict[str, Plan] = {}
        left_out: dict[str, str] = {}
        for name, method in PARTS:
            try:
                chosen = study(name, method, data=request.data)
                on_voc = EXPERIMENTS[name].get("images") == "VOC07"
                refuse(on_voc and not request.data_voc, "no --data-voc")
                plan = _planned(chosen, request)
                plan.measures()  # raises if there are none
                plans[f"{name}-{method}"] = plan
            except UserError as error:
                left_out[f"{name}-{method}"] = str(error).removeprefix(f"{name}: ")
        nothing = f"{asked.data}: fits none of the experiments; give images with one class each"
        refuse(not plans, nothing)
        recipes = [
            experiment_of(arm, request).epochs for p in plans.values() for arm in p.study.arms
        ]
        epochs = asked.epochs or min(recipes)
        request = replace(request, epochs=epochs)
        for part, plan in list(plans.items()):
            own = replace(plan.request, epochs=epochs)
            plans[part] = replace(plan, request=own, study=shortened(plan.study, epochs))
            plans[part].check()
        results.check(request.folder)
        return cls("all", request, plans, left_out)

    @property
    def out(self) -> Path:
        """The folder of everything."""
        return self.request.folder

    @property
    def all(self) -> bool:
        """Whether these are all experiments."""
        return self.experiment == "all"

    @property
    def full(self) -> bool:
        """Whether these are the published settings."""
        return self.request.scale == "full"

    @property
    def page(self) -> Path:
        """The page that people read."""
        return self.out / (paper.PAGE if self.all else tables.PAGE)

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        if self.all:
            return "all experiments of the paper"
        (plan,) = self.plans.values()
        return tables.title(plan.study)

    def search(self) -> list[Job]:
        """The runs that choose learning rates, each once."""
        return _once(itertools.chain(*(plan.search for plan in self.plans.values())))

    def final(self) -> list[Job]:
        """The runs of all studies, each once: one seed of everything, then the next; teachers first."""
        jobs = _once(itertools.chain(*(plan.final() for plan in self.plans.values())))
        seeds = dict.fromkeys(job.experiment.seed for job in jobs)
        return [job for seed in seeds for job in jobs if job.experiment.seed == seed]

    # -- the plan -----------------------------------------------------------------------------------------------------

    def plan(self) -> Iterator[rich.table.Table | str]:
        """The plan as lines for a terminal: runs and costs, evaluations, and the commands that train the runs.

        Costs are counted in passes of the network; at the small scale one short timing of the first arm makes hours
        of them.
        """
        search = self.search()
        final = self.final()
        yield self._listed([*search, *final])
        told = [f"{m.title} on {m.source}" for job in [*final, *search] for m in job.measures]
        yield f"measured by {', '.join(dict.fromkeys(told))}"
        for plan in self.plans.values():
            yield from plan.study.notes if not self.all else ()
        for reason in dict.fromkeys(self.left_out.values()):
            parts = [part for part, why in self.left_out.items() if why == reason]
            yield f"left out: {', '.join(parts)}: {reason}"
        waiting = [job for job in search if job.missing(self.out)]
        if waiting:
            yield "The final runs follow from the search for learning rates. Each of its runs by hand:"
        else:
            waiting = [job for job in final if job.missing(self.out)]
            yield "Each run by hand; the same command then evaluates it:"
        yield from (command_of(job, self.out, self.full) for job in waiting if job.arm.epochs != 0)

    def _listed(self, jobs: Sequence[Job]) -> rich.table.Table:
        """Jobs by arm and length, with their costs."""
        plain = next(iter(self.plans.values()))
        head = "forward passes of an image"
        seconds = 0.0
        if not self.full:
            head = "time left, about"
            arm = plain.study.arms[0]
            seconds = seconds_of_image(experiment_of(arm, self.request)) / plain.cost(arm)
            seconds *= self.request.num_images
        groups: dict[tuple[str, ...], list[Job]] = {}
        for job in jobs:
            phase = "search" if job.searching else ""
            place = (phase, job.arm.name, job.arm.recipe, str(job.experiment.epochs))
            groups.setdefault(place, []).append(job)
        rows = []
        total = 0.0
        for (phase, name, _, epochs), members in groups.items():
            waiting = [job for job in members if job.missing(self.out)]
            passes = plain.cost(members[0].arm) * members[0].experiment.epochs
            cost = f"{passes:g}"
            if not self.full:
                left = passes * seconds * len(waiting)
                total += left
                cost = format_duration(left)
            done = len(members) - len(waiting)
            rows.append((phase, name, epochs, str(len(members)), str(done), cost))
        if not self.full:
            rows.append(("", "all", "", "", "", format_duration(total)))
        header = ("", "arm", "epochs", "runs", "done", head)
        return Table(header, rows, 2).terminal(pad_edge=False)

    # -- the work -----------------------------------------------------------------------------------------------------

    def carry_out(self, console: Console) -> Path:
        """Search, train and evaluate whatever is not done already; write tables and figures. Returns the folder.

        A run that fails does not stop the others; the command ends with the first reason. Raises UserError.
        """
        alone = self.full and not torch.cuda.is_available()
        remedy = "--plan prints them, --scale small is for this machine"
        refuse(alone, f"the published settings need GPUs; {remedy}")
        held = f"works on {self.out} already; wait until it ends, or give another --out"
        with locked(self.out / results.LOCK, held):
            try:
                self._make(self.search(), console)
                self._make(self.final(), console)
            except BaseException:
                self.collect(figures=False)
                raise
            self.collect()
        for reason in self.failed.values():
            failed = counted(len(self.failed), "run")
            remedy = "to try again, give the same command"
            raise UserError(f"{failed} failed, the others are done; {remedy}; the first: {reason}")
        return self.out

    def _make(self, jobs: Sequence[Job], console: Console) -> None:
        """Carry out every job of which something is missing."""
        for number, job in enumerate(jobs, 1):
            if not job.missing(self.out):
                continue
            try:
                said = tables.scores_of(job, carry_out(job, self.out, console))
            except (Interrupted, OSError):
                raise
            except Exception as error:
                if isinstance(error.__cause__, OSError):  # a full disk stops every run
                    raise
                said = " ".join(str(error).split())[:_MOST] or type(error).__name__
                self.failed[job.name] = said
            console.print(f"[{number}/{len(jobs)}] {job.arm.name}, {job.name}: {said}")

    def collect(self, *, figures: bool = True) -> None:
        """Write tables of all results, and figures unless told not to; nothing if there are no results."""
        for part, plan in self.plans.items():
            folder = self.out / part if self.all else self.out
            rows = tables.write(plan, folder)
            if rows and figures:
                drawing.draw(plan, rows, folder)
        if self.all:
            paper.write(self.plans, self.request, self.left_out)


def _planned(chosen: Study, request: Request) -> Plan:
    """The plan of a study. What the paper measured on VOC2007 is measured on `data_voc`, if it is given."""
    sources = list(request.evaluate_on) or [request.data]
    voc = request.data_voc
    images = EXPERIMENTS[chosen.name].get("images", "")
    measured_on = sources
    if voc is not None and images:
        measured_on = [voc] if images == "VOC07" else [*sources, voc]
    if request.targets:  # those of all experiments
        known = {target.source: target for target in request.targets}
        opened = replace(request, targets=tuple(known[source] for source in measured_on))
        return Plan(chosen, opened, known[request.data])
    opened = request.opened(measured_on)
    search_on = opened.labelled(sources[0]) if measured_on == [voc] else None
    return Plan(chosen, opened, search_on or opened.targets[0])


def _once(jobs: Iterator[Job]) -> list[Job]:
    """Jobs of the same run as one, with the evaluations of all."""
    found: dict[str, Job] = {}
    for job in jobs:
        there = found.get(job.name)
        if there is None:
            found[job.name] = job
            continue
        measures = {one.key: one for one in (*there.measures, *job.measures)}
        found[job.name] = replace(there, measures=tuple(measures.values()))
    return list(found.values())
