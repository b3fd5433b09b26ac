"""One experiment of the paper from its plan to its tables and figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation import protocols
from hexa.reproduce import collecting, drawing, plan, printing, storage, writing
from hexa.reproduce.costs import costs_of, origin_of
from hexa.reproduce.design import Study
from hexa.reproduce.plan import Costs, Job, Request, Target
from hexa.reproduce.running import run_jobs
from hexa.reproduce.studies import study
from hexa.runtime.console import Console
from hexa.runtime.parsing import from_option

Progress = Callable[[str, int, int], None]


def reproduce(
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
    workers: int = 1,
    console: Console | None = None,
    **fields: Any,
) -> Path:
    """Carry out one of the paper's experiments, or go on with it, and return its folder.

    experiment: ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1 … table5. method: moco or
    dcluster, the published one if not given. epochs: of every arm, those of its recipe if not given. rates: the
    learning rates that every arm chooses from; a single one is taken as it is. evaluate_on: labelled sources to measure
    on, `data` if not given. fields: of every arm's experiment, by dotted path. workers: runs at once.
    The folder holds table.md, table.csv, result.json, figures/ as PNG and SVG, runs/. Raises UserError before any work.
    """
    session = Session.begin(
        experiment,
        data,
        scale=scale,
        method=method,
        out=out,
        seeds=seeds,
        epochs=epochs,
        rates=rates,
        evaluate_on=evaluate_on,
        workers=workers,
        fields=fields,
    )
    return session.carry_out(console or Console(stderr=True))


@dataclass(frozen=True)
class Session:
    """A study, what was asked for, and the folder it lives in.

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
        workers: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> Session:
        """Everything checked, nothing written. Raises UserError for whatever can't be carried out."""
        chosen = study(experiment, method=method, scale=scale, data=data)
        if epochs is not None and epochs < 1:
            raise UserError(f"epochs {epochs}: train for 1 or more")
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise UserError("seeds: give one or more different numbers from 0, such as 0 1 2")
        if workers < 1:
            raise UserError(f"workers {workers}: at least one run at a time is needed")
        if any(not rate > 0 for rate in rates or ()):
            raise UserError("rates: every learning rate must be above 0")
        taken = {"data", "seed", "epochs", "optimizer.learning_rate"} & set(fields or {})
        if taken:
            raise UserError(f"{min(taken)} is what a study decides; use --data, --seeds, --epochs or --rates")
        missing = {measure.protocol for measure in chosen.measures} - set(protocols.names())
        if missing:
            raise UserError(f"{experiment} is measured by {min(missing)}, which this version of hexa can't do")
        # published settings can be planned where the images are not
        targets = tuple(_target(source, scale) for source in evaluate_on or (data,))
        request = Request(
            data, targets, _num_images(data, scale), tuple(seeds), epochs, tuple(rates) if rates else None, fields or {}
        )
        plan.check(chosen, request)
        plan.final_jobs(chosen, request, plan.best_rates(chosen, request, []), None)  # every field holds, or it says so
        folder = Path(out) if out is not None else Path("runs") / f"{experiment}-{chosen.method}-{scale}"
        session = cls(chosen, request, folder, workers)
        if not storage.check(folder, session._claim):
            return session
        there = [seed for seed in storage.seeds_of(folder) if seed not in seeds]
        return replace(session, request=replace(request, seeds=(*there, *request.seeds)), joined=tuple(there))

    @property
    def _claim(self) -> dict[str, Any]:
        """What all runs of a folder have in common, as JSON; seeds may be added."""
        given = self.request
        fields = {name: from_option(value) if isinstance(value, str) else value for name, value in given.fields.items()}
        claim = {
            "experiment": self.study.name,
            "method": self.study.method,
            "scale": self.study.scale,
            "data": given.data,
            "measured_on": [target.source for target in given.targets],
            "epochs": given.epochs,
            "rates": given.rates,
            "fields": fields,
        }
        return dict(json.loads(json.dumps(claim)))

    # -- the plan ---------------------------------------------------------------------------------------------------

    def costs(self, progress: Progress | None = None) -> Costs | None:
        """What images cost here; None at the full scale, which is counted in passes instead."""
        if self.study.scale == "full":
            return None
        storage.claim(self.out, self._claim)
        return costs_of(self.study, self.request, self.out, progress=progress)

    def origin(self) -> str:
        """When and by what the costs were measured."""
        return origin_of(self.out)

    def jobs(self, costs: Costs | None) -> tuple[list[Job], list[Job]]:
        """The search, and what follows from as much of it as is done."""
        search = plan.search_jobs(self.study, self.request)
        rates = plan.best_rates(self.study, self.request, self._stored(search))
        return search, plan.final_jobs(self.study, self.request, rates, costs)

    def _stored(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        found = (storage.stored(self.out, job.name, job.identity) for job in jobs)
        return [one for one in found if one is not None]

    def table(self, costs: Costs | None) -> Table:
        """The plan for a terminal: runs and cost of each arm, what is done, and the whole."""
        search, final = self.jobs(costs)
        done = [one["name"] for one in self._stored([*search, *final])]
        return printing.table([*search, *final], self.request, costs, done)

    def commands(self) -> list[str]:
        """A line a run, to be started anywhere by hand; what they leave in the folder is found and evaluated."""
        return [printing.command_of(job, self.out) for job in self.jobs(None)[1]]

    # -- the work ---------------------------------------------------------------------------------------------------

    def carry_out(self, console: Console, progress: Progress | None = None) -> Path:
        """Search, train, evaluate, collect; whatever is done already is not done again. Returns the folder."""
        if self.study.scale == "full" and not torch.cuda.is_available():
            raise UserError("the published settings need GPUs; --plan prints them, --scale small is for this machine")
        storage.claim(self.out, self._claim)
        costs = self.costs(progress)
        with storage.at_work(self.out):
            self._work(costs, console)
        return self.out

    def _work(self, costs: Costs | None, console: Console) -> None:
        search, _ = self.jobs(costs)
        total = len(search) + len(self.jobs(costs)[1])
        finished = len(self._stored([*search, *self.jobs(costs)[1]]))

        def said(job: Job, done: dict[str, Any]) -> None:
            nonlocal finished
            finished += 1
            console.print(f"[{finished}/{total}] {job.name}: {_scores(done)}")

        try:
            run_jobs(search, self.out, workers=self.workers, console=console, said=said)
            run_jobs(self.jobs(costs)[1], self.out, workers=self.workers, console=console, said=said)
        finally:
            self.collect(costs, figures=False)
        self.collect(costs)

    def collect(self, costs: Costs | None, *, figures: bool = True) -> list[Path]:
        """Write tables (and figures) of all that is stored; nothing if no run is finished.

        figures: False takes those away that were drawn of fewer runs.
        """
        jobs, final = self.jobs(costs)
        search, runs = self._stored(jobs), self._stored(final)
        rows = collecting.rows_of(self.study, self.request, costs, runs)
        if not rows:
            return []
        notes = writing.notes_of(self.study, rows, search, runs)
        if len(runs) < len(final):
            notes.insert(0, f"Unfinished: {len(runs)} of {len(final)} runs are done.")
        result = writing.result(self.study, self.request, rows, costs, search, runs, notes)
        written = [
            storage.write(self.out / storage.RESULT, result),
            storage.write(self.out / "table.md", writing.markdown(self.study, self.request, rows, notes)),
            storage.write(self.out / "table.csv", writing.csv_text(rows)),
        ]
        if figures:
            written += drawing.draw(self.study, rows, runs, costs, self.out, self.request.data)
        elif len(runs) < len(final):
            shutil.rmtree(self.out / drawing.FOLDER, ignore_errors=True)
        return written


def _target(source: str, scale: str) -> Target:
    """The labelled images of a source. Raises UserError if it has none."""
    try:
        opened = open_source(source, None if "#" in source else "train")
    except UserError:
        if scale == "full":
            return Target(source, several=source.startswith("voc:"))
        raise
    if opened.labels is None:
        raise UserError(
            f"data '{source}' has no labels to measure with; name labelled images with --evaluate-on SOURCE"
        )
    return Target(source, several=opened.classes is None)


#: ImageNet, where a full scale is planned without it.
_IMAGENET = 1_281_167


def _num_images(data: str, scale: str) -> int:
    try:
        return len(open_source(data, None if "#" in data else "train"))
    except UserError:
        if scale == "full":
            return _IMAGENET
        raise


def _scores(done: Mapping[str, Any]) -> str:
    if done.get("diverged"):
        return f"diverged, {done['diverged']}"
    shown = []
    for result in done["results"]:
        metric, value = next(iter(result["metrics"].items()))
        shown.append(f"{result['title']}{'' if metric == 'top1' else f' {metric}'} {value:.2f}")
    return " · ".join(shown)
