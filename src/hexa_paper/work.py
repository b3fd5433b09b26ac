"""One experiment of the paper from its plan to its tables and figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from hexa.objective.schemes import SCHEMES
from hexa.reporting.tables import format_duration
from hexa.runtime.console import Console
from hexa_paper import drawing, plan, storage, writing
from hexa_paper.asking import Request, check_lists, check_until, lists_of, measured_on, plain_fields, requested
from hexa_paper.costs import Progress, costs_of, origin_of
from hexa_paper.plan import Costs, Job
from hexa_paper.refusal import refuse
from hexa_paper.rows import rows_of
from hexa_paper.running import command_of, run_jobs
from hexa_paper.studies import Study, study, with_lists


@dataclass(frozen=True)
class Work:
    """A study, what was asked for, and the folder it is in.

    workers: runs at once. joined: seeds that were not asked for now, but have results in the folder.
    """

    study: Study
    request: Request
    out: Path
    workers: int = 1
    joined: tuple[int, ...] = ()

    @classmethod
    def begin(
        cls,
        experiment: str,
        data: str,
        *,
        scale: str = "small",
        method: str | None = None,
        out: Path | str | None = None,
        seeds: Sequence[int] = (0, 1, 2),
        epochs: int | None = None,
        rates: Sequence[float] | None = None,
        evaluate_on: Sequence[str] = (),
        data_voc: str | None = None,
        label_lists: Path | str | None = None,
        one_run: bool | None = None,
        until: float | None = None,
        workers: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> Work:
        """Check the request; write nothing. Raises UserError for whatever cannot be carried out.

        experiment: ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1 … table5. method: moco or
        dcluster, by default the published one. epochs: of every arm, by default those of its recipe. rates: the
        learning rates that every arm chooses from; a single one is used without a search. evaluate_on: labelled sources
        to measure on, by default `data`. data_voc: VOC2007, for the tables and the column that are of it. label_lists:
        the folder of SimCLR's lists, for table 3. one_run: learning curves as published. until: end every run once k-NN
        of held-out training images has reached this, in percent, and compare how long that took. workers: runs at once.
        fields: of every arm's experiment, by path.
        """
        chosen = study(experiment, method=method, scale=scale, data=data, one_run=one_run)
        refuse(any(not rate > 0 for rate in rates or ()), "rates: every learning rate must be above 0")
        sources = measured_on(experiment, evaluate_on or (data,), data_voc)
        asked = {"seeds": tuple(seeds), "epochs": epochs, "rates": tuple(rates or ()) or None, "until": until}
        request = requested(data, sources, scale, workers, fields=fields or {}, **asked)
        if label_lists is not None:
            chosen = with_lists(chosen, Path(label_lists))
            check_lists(chosen, request)
        if until is not None:
            lengths = len(chosen.lengths) > 1 or chosen.one_run
            refuse(lengths, f"--until: {experiment} compares lengths of training; leave it out")
            chosen = replace(chosen, equal_time=False)
        plan.check(chosen, request)
        plan.final_jobs(chosen, request, plan.best_rates(chosen, request, []), None)  # raises for a wrong field
        if until is not None:
            check_until(request, scale, plan.experiment_of(chosen.arms[0], request).monitor)
        folder = Path(out) if out is not None else Path("runs") / f"{experiment}-{chosen.method}-{scale}"
        work = cls(chosen, request, folder, workers)
        if not storage.check(folder, work.claim):
            return work
        there = [seed for seed in storage.seeds_of(folder) if seed not in seeds]
        return replace(work, request=replace(request, seeds=(*there, *request.seeds)), joined=tuple(there))

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of a folder have in common, as JSON; seeds may be added."""
        given = self.request
        claim = {
            "experiment": self.study.name,
            "method": self.study.method,
            "scale": self.study.scale,
            "data": given.data,
            "measured_on": [target.source for target in given.targets],
            "epochs": given.epochs,
            "rates": given.rates,
            "fields": plain_fields(given),
            "one_run": self.study.one_run or None,
            **({} if given.until is None else {"until": given.until}),
            **({"label_lists": lists} if (lists := lists_of(self.study)) else {}),
        }
        return dict(json.loads(json.dumps(claim)))

    # -- the plan -----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        chosen = self.study
        return f"{chosen.name}, {chosen.method}, {chosen.scale} scale: {writing.sentence(chosen.question)}"

    def costs(self, progress: Progress | None = None) -> Costs | None:
        """What images cost here; None at the full scale, which is counted in passes instead."""
        if self.study.scale == "full":
            return None
        storage.claim(self.out, self.claim)
        return costs_of(self.study, self.request, self.out, progress=progress)

    @property
    def search(self) -> list[Job]:
        """The search for learning rates."""
        return plan.search_jobs(self.study, self.request)

    def final(self, costs: Costs | None) -> list[Job]:
        """The runs that follow from as much of the search as is done."""
        rates = plan.best_rates(self.study, self.request, self.stored(self.search))
        return plan.final_jobs(self.study, self.request, rates, costs)

    def stored(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """What is stored of these jobs."""
        return [done for job in jobs if (done := storage.stored(self.out, job.name, job.identity)) is not None]

    def lines(self, jobs: Sequence[Job], costs: Costs | None) -> list[dict[str, Any]]:
        """Jobs by phase, arm and length, with the seconds of pre-training that are left, or without costs the passes
        of all images through the network."""
        groups: dict[tuple[str, str, int], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.phase, job.arm.key, job.experiment.epochs), []).append(job)
        made = []
        for (phase, _, epochs), members in groups.items():
            done, images, arm = len(self.stored(members)), self.request.num_images * epochs, members[0].arm
            terms = 1 + len(SCHEMES[arm.scheme].terms)  # each is a pass
            cost = {"image passes": float(len(members) * images * terms)}
            if costs is not None:
                cost = {"time left": (len(members) - done) * images * plan.seconds_per_image(arm, costs)}
            made.append({"": phase, "arm": arm.name, "epochs": epochs, "runs": len(members), "done": done, **cost})
        return made

    def plan(self, costs: Costs | None) -> Iterator[Table | str]:
        """The plan as lines for a terminal: runs and cost of each arm, and what is measured."""
        study, final = self.study, self.final(costs)
        shapes = {"image passes": lambda passes: f"{passes:.1e}", "time left": format_duration}
        yield table(self.lines([*self.search, *final], costs), shapes, ("runs", "done", *shapes))
        if self.joined:
            yield f"with seeds {', '.join(map(str, self.joined))}, of which {self.out} has results already"
        measured = ((m.protocol, m.options.get("preset", ""), "on", source) for m, source, *_ in final[0].measures)
        yield f"measured by {', '.join(' '.join(filter(None, words)) for words in dict.fromkeys(measured))}"
        yield from study.notes
        if costs is None:
            yield "image passes: images times terms. Each run, wherever there are GPUs:"
            yield from (command_of(job, self.out) for job in final)
        else:
            yield "time left: of pre-training, one run after another; evaluations on top"
            yield f"it follows from {origin_of(self.out)}"

    # -- the work -----------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Path:
        """What people read of it."""
        return self.out / "table.md"

    def carry_out(self, console: Console, progress: Progress | None = None) -> Path:
        """Search, train, evaluate, collect; whatever is done already is not done again. Returns the folder."""
        alone = self.study.scale == "full" and not torch.cuda.is_available()
        refuse(alone, "the published settings need GPUs; --plan prints them, --scale small is for this machine")
        storage.claim(self.out, self.claim)
        costs = self.costs(progress)
        with storage.at_work(self.out):
            try:
                for phase in ("search", "final"):  # the rates of the second follow from the first
                    every = [*self.search, *self.final(costs)]
                    said = Count(console, len(every), len(self.stored(every)))
                    jobs = [job for job in every if job.phase == phase]
                    run_jobs(jobs, self.out, workers=self.workers, console=console, said=said)
            finally:
                self.collect(costs, figures=False)
            self.collect(costs)
        return self.out

    def collect(self, costs: Costs | None, *, figures: bool = True) -> None:
        """Write tables (and figures) of all that is stored; nothing if no run is finished.

        figures: False removes those that were drawn of fewer runs.
        """
        final = self.final(costs)
        searched, runs = self.stored(self.search), self.stored(final)
        rows = rows_of(self.study, self.request, costs, runs)
        if not rows:
            return
        notes = writing.notes_of(self.study, self.request, rows, searched, runs)
        if len(runs) < len(final):
            notes.insert(0, f"Unfinished: {len(runs)} of {len(final)} runs are done.")
        result = writing.result(self.study, self.request, rows, costs, searched, runs, notes)
        storage.write(self.out / storage.RESULT, result)
        storage.write(self.page, writing.markdown(self.study, self.request, rows, notes))
        storage.write(self.out / "table.csv", writing.csv_text(rows))
        if figures:
            drawing.draw(self.study, rows, runs, costs, self.out, self.request.data)
        elif len(runs) < len(final):
            shutil.rmtree(self.out / drawing.FOLDER, ignore_errors=True)


@dataclass
class Count:
    """Reports each finished job with its number."""

    console: Console
    total: int
    finished: int

    def __call__(self, job: Job, done: Mapping[str, Any]) -> None:
        self.finished += 1
        said = f"diverged, {done['diverged']}" if done.get("diverged") else " · ".join(map(_score, done["results"]))
        self.console.print(f"[{self.finished}/{self.total}] {job.name}: {said}")


def _score(result: Mapping[str, Any]) -> str:
    metric, value = next(iter(result["metrics"].items()))
    return f"{result['title']}{'' if metric == 'top1' else f' {metric}'} {value:.2f}"


def table(
    lines: Sequence[Mapping[str, Any]], shapes: Mapping[str, Callable[[float], str]], totals: Collection[str]
) -> Table:
    """Lines for a terminal, and below them the sums of those columns of `totals` that they have.

    shapes: by column what makes text of a number.
    """
    heads = list(lines[0])
    sums = {head: sum(line[head] for line in lines) for head in heads if head in totals}
    shown = Table(box=None, pad_edge=False)
    for head in heads:
        shown.add_column(head, justify="left" if isinstance(lines[0][head], str) else "right")
    for line in lines:
        shown.add_row(*(shapes.get(head, str)(line[head]) for head in heads))
    last = (shapes.get(head, str)(sums[head]) if head in sums else "" for head in heads[1:])
    shown.add_row("all", *last, style="bold")
    return shown
