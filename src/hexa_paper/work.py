"""One experiment of the paper from its plan to its tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import rich.table
import torch

from hexa.reporting.tables import Table, format_duration
from hexa.runtime.console import Console
from hexa.runtime.progress import Progress, silent
from hexa_paper import drawing, storage, writing
from hexa_paper.costs import costs_of, origin_of
from hexa_paper.plan import Job, Plan, Stored
from hexa_paper.request import Request
from hexa_paper.rows import metrics_of, rows_of
from hexa_paper.running import command_of, run_jobs
from hexa_paper.schemes import SCHEMES
from hexa_paper.storage import refuse
from hexa_paper.studies import EXPERIMENTS, Study, study, with_lists


@dataclass(frozen=True)
class Work(Plan):
    """A plan and its folder."""

    @classmethod
    def begin(cls, experiment: str, asked: Request) -> Self:
        """Check the request; write nothing. Raises UserError for whatever cannot be carried out.

        experiment: ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1 … table5.
        """
        chosen = study(experiment, asked.method, asked.scale, asked.data, asked.one_run)
        refuse(
            any(not rate > 0 for rate in asked.rates or ()),
            "rates: every learning rate must be above 0",
        )
        folder = Path(
            f"runs/{experiment}-{chosen.method}-{asked.scale}" if asked.out is None else asked.out
        )
        request = replace(asked, out=folder, rates=asked.rates or None)
        request = request.opened(
            measured_on(experiment, asked.evaluate_on or (asked.data,), asked.data_voc)
        )
        if request.label_lists is not None:
            chosen = with_lists(
                chosen, Path(request.label_lists), request.images(request.targets[0].source)
            )
        work = cls(chosen, request)
        work.check()
        work.final_jobs(work.best_rates([]))  # raises for a wrong field
        there = storage.seeds_of(folder) if storage.check(folder, work.claim) else []
        joined = (seed for seed in there if seed not in request.seeds)
        return replace(work, request=replace(request, seeds=(*joined, *request.seeds)))

    @property
    def out(self) -> Path:
        """The folder of the study."""
        return self.request.folder

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of the folder have in common, as JSON; seeds may be added."""
        given = self.request
        chosen = self.study
        lists = [
            measure.options["list_file"]
            for measure in chosen.measures
            if "list_file" in measure.options
        ]
        claim = {
            "experiment": chosen.name,
            "method": chosen.method,
            "scale": chosen.scale,
            **given.claim,
        }
        claim |= {"rates": given.rates and [*given.rates], "one_run": chosen.one_run or None}
        return claim | {"label_lists": lists or None}

    # -- the plan -----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        chosen = self.study
        return f"{chosen.name}, {chosen.method}, {chosen.scale} scale: {writing.sentence(chosen.question)}"

    def measured(self, progress: Progress = silent) -> Self:
        """With what images cost here; without at the full scale, which is counted in passes instead."""
        if self.study.scale == "full":
            return self
        storage.claim(self.out, self.claim)
        return replace(
            self,
            costs=costs_of(self.study.arms, self.request.plain_fields, self.out, progress=progress),
        )

    @property
    def rates(self) -> dict[str, float]:
        """The rate of every arm, by as much of the search as is done."""
        return self.best_rates(self.stored(self.search))

    @property
    def final(self) -> list[Job]:
        """The runs that follow from the search."""
        return self.final_jobs(self.rates)

    def stored(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """What is stored of these jobs."""
        return [done for job in jobs if (done := storage.stored(self.out, job.record)) is not None]

    def lines(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Jobs by phase, arm and length, with the seconds of pre-training that are left, or without costs the passes
        of all images through the network."""
        groups: dict[tuple[str, str, int], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.phase, job.arm.key, job.experiment.epochs), []).append(job)
        made = []
        for (phase, _, epochs), members in groups.items():
            done = len(self.stored(members))
            images = self.request.num_images * epochs
            arm = members[0].arm
            # each term is a pass
            cost = {
                "image passes": float(
                    len(members) * images * (arm.passes or 1 + len(SCHEMES[arm.scheme].terms))
                )
            }
            if self.costs is not None:
                cost = {"time left": (len(members) - done) * images * self.seconds(arm)}
            made.append(
                {
                    "": phase,
                    "arm": arm.name,
                    "epochs": epochs,
                    "runs": len(members),
                    "done": done,
                    **cost,
                }
            )
        return made

    def plan(self) -> Iterator[rich.table.Table | str]:
        """The plan as lines for a terminal: runs and cost of each arm, and what is measured."""
        final = self.final
        shapes = {"image passes": lambda passes: f"{passes:.1e}", "time left": format_duration}
        yield table(self.lines([*self.search, *final]), shapes, ("runs", "done", *shapes))
        measured = (
            (m.protocol, m.options.get("preset", ""), "on", m.source) for m in final[0].measures
        )
        yield f"measured by {', '.join(' '.join(filter(None, words)) for words in dict.fromkeys(measured))}"
        if listed := list(writing.published_rows(self)):
            yield table(
                [{name: row[name] for name in row if name != "ours"} for row in listed], {}, ()
            )
            yield from (f"{row['published']}: {row['ours']}" for row in listed)
        yield from self.study.notes
        if self.costs is None:
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

    def carry_out(self, console: Console) -> Path:
        """Search, train, evaluate, collect; whatever is done already is not done again. Returns the folder."""
        alone = self.study.scale == "full" and not torch.cuda.is_available()
        refuse(
            alone,
            "the published settings need GPUs; --plan prints them, --scale small is for this machine",
        )
        storage.claim(self.out, self.claim)
        with storage.at_work(self.out):
            try:
                # rates follow from the search, students from their teachers
                for phase, taught in (("search", False), ("final", False), ("final", True)):
                    every = [*self.search, *self.final]
                    jobs = [
                        job for job in every if (job.phase, bool(job.teacher)) == (phase, taught)
                    ]
                    done = len(self.stored(every))
                    for ended in run_jobs(jobs, self.out, console):
                        done += 1
                        console.print(f"[{done}/{len(every)}] {scores_of(ended, self.study)}")
            except BaseException:
                self.collect(figures=False)
                raise
            self.collect()
        return self.out

    def collect(self, *, figures: bool = True) -> None:
        """Write tables of all that is stored, and figures unless told not to; nothing if no run is finished."""
        final = self.final
        search = self.stored(self.search)
        runs = self.stored(final)
        rows = rows_of(self, runs)
        if not rows:
            return
        notes = writing.notes_of(self, rows, search, runs)
        if len(runs) < len(final):
            notes.insert(0, f"Unfinished: {len(runs)} of {len(final)} runs are done.")
        storage.write(self.out / storage.RESULT, writing.result(self, rows, search, runs, notes))
        storage.write(self.page, writing.markdown(self, rows, notes))
        storage.write(self.out / "table.csv", writing.csv_text(rows))
        if figures:
            drawing.draw(self, rows, runs)


def measured_on(experiment: str, sources: Sequence[str], data_voc: str | None) -> Sequence[str]:
    """The sources to measure on: what is of VOC2007 finds it, and finds nothing else."""
    where = EXPERIMENTS[experiment].get("images", "")
    if data_voc is None or not where:
        return sources
    return (data_voc,) if where == "VOC07" else (*sources, data_voc)


def scores_of(done: Stored, chosen: Study) -> str:
    """A finished job and the first column of each of its evaluations, in a line."""
    words = [
        f"{column} {result['metrics'][metric]:.2f}"
        for result in done["results"]
        for metric, column in itertools.islice(metrics_of(chosen, result).items(), 1)
    ]
    return f"{done['name']}: {' · '.join(words) or 'diverged, ' + done['diverged']}"


def table(
    lines: Sequence[Mapping[str, Any]],
    shapes: Mapping[str, Callable[[float], str]],
    totals: Collection[str],
) -> rich.table.Table:
    """Lines for a terminal, and below them the sums of those columns of `totals` that they have, if there are any.

    shapes: by column what makes text of a number.
    """
    heads = list(lines[0])
    labels = sum(isinstance(value, str) for value in lines[0].values())
    sums = {"": "all"} | {
        head: sum(line[head] for line in lines) for head in heads if head in totals
    }
    every = [*lines, sums] if totals else lines
    cells = tuple(
        tuple(shapes.get(head, str)(line.get(head, "")) for head in heads) for line in every
    )
    return Table(tuple(heads), cells, labels, own=(len(lines),)).terminal(pad_edge=False)
