"""One experiment of the paper from its plan to its tables and figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.known import known_as
from hexa.evaluation.protocols.semi_supervised import rows_of
from hexa.reproduce import collecting, drawing, plan, printing, storage, writing
from hexa.reproduce.costs import Progress, costs_of
from hexa.reproduce.plan import Costs, Job, Request, Target
from hexa.reproduce.running import run_jobs
from hexa.reproduce.studies import OF_VOC, WITH_VOC, Study, study, with_lists
from hexa.runtime.console import Console
from hexa.runtime.parsing import from_option

#: ImageNet's training images, where a full scale is planned without them.
_IMAGENET = 1_281_167
#: Sources that tell by their names what they are.
_CALLED = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "voc": "VOC07"}


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
        data_voc: str | None = None,
        label_lists: Path | str | None = None,
        one_run: bool | None = None,
        until: float | None = None,
        workers: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> Session:
        """Everything checked, nothing written. Raises UserError for whatever cannot be carried out.

        experiment: ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1 … table5. method: moco or
        dcluster, by default the published one. epochs: of every arm, by default those of its recipe. rates: the
        learning rates that every arm chooses from; a single one is taken as it is. evaluate_on: labelled sources to
        measure on, by default `data`. data_voc: VOC2007, for the tables and the column that are of it. label_lists: the
        folder of SimCLR's lists, for table 3. one_run: learning curves as published. until: end every run once k-NN of
        held-out training images has reached this, in percent, and compare how long that took. workers: runs at once.
        fields: of every arm's experiment, by path.
        """
        chosen = study(experiment, method=method, scale=scale, data=data, one_run=one_run)
        if any(not rate > 0 for rate in rates or ()):
            raise UserError("rates: every learning rate must be above 0")
        sources = _measured_on(experiment, data, evaluate_on, data_voc)
        request = requested(data, sources, scale, seeds, epochs, workers, fields)
        request = replace(request, rates=tuple(rates) if rates else None, until=until)
        if label_lists is not None:
            chosen = with_lists(chosen, Path(label_lists))
            _check_lists(chosen, request)
        if until is not None:
            if len(chosen.lengths) > 1 or chosen.one_run:
                raise UserError(f"--until: {experiment} compares lengths of training; leave it out")
            chosen = replace(chosen, equal_time=False)
        plan.check(chosen, request)
        plan.final_jobs(chosen, request, plan.best_rates(chosen, request, []), None)  # raises for a wrong field
        if until is not None:
            _check_until(chosen, request)
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
            **({"label_lists": lists} if (lists := _lists_of(self.study)) else {}),
        }
        return dict(json.loads(json.dumps(claim)))

    # -- the plan -----------------------------------------------------------------------------------------------------

    def costs(self, progress: Progress | None = None) -> Costs | None:
        """What images cost here; None at the full scale, which is counted in passes instead."""
        if self.study.scale == "full":
            return None
        storage.claim(self.out, self._claim)
        return costs_of(self.study, self.request, self.out, progress=progress)

    def jobs(self, costs: Costs | None) -> tuple[list[Job], list[Job]]:
        """The search, and what follows from as much of it as is done."""
        search = plan.search_jobs(self.study, self.request)
        rates = plan.best_rates(self.study, self.request, self.stored(search))
        return search, plan.final_jobs(self.study, self.request, rates, costs)

    def stored(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        stored = (storage.stored(self.out, job.name, job.identity) for job in jobs)
        return [job for job in stored if job is not None]

    def table(self, costs: Costs | None) -> Table:
        """The plan for a terminal: runs and cost of each arm, what is done, and the whole."""
        jobs = [job for phase in self.jobs(costs) for job in phase]
        return printing.table(jobs, self.request, costs, [job["name"] for job in self.stored(jobs)])

    def commands(self) -> list[str]:
        """One line per run, to be started anywhere by hand; what they leave in the folder is found and evaluated."""
        return [printing.command_of(job, self.out) for job in self.jobs(None)[1]]

    def measures(self) -> list[str]:
        """The protocols, with their presets, and the images that each is measured on."""
        chosen = plan.measures_of(self.study, self.request)
        named = (f"{one.protocol} {one.options.get('preset', '')}".strip() for one, *_ in chosen)
        return [f"{name} on {evaluation.source}" for name, evaluation in zip(named, chosen, strict=True)]

    # -- the work -----------------------------------------------------------------------------------------------------

    def carry_out(self, console: Console, progress: Progress | None = None) -> Path:
        """Search, train, evaluate, collect; whatever is done already is not done again. Returns the folder."""
        if self.study.scale == "full" and not torch.cuda.is_available():
            raise UserError("the published settings need GPUs; --plan prints them, --scale small is for this machine")
        storage.claim(self.out, self._claim)
        costs = self.costs(progress)
        with storage.at_work(self.out):
            try:
                for phase in (0, 1):  # the rates of the second follow from the first
                    jobs = self.jobs(costs)
                    every = [*jobs[0], *jobs[1]]
                    said = Count(console, len(every), len(self.stored(every)))
                    run_jobs(jobs[phase], self.out, workers=self.workers, console=console, said=said)
            finally:
                self.collect(costs, figures=False)
            self.collect(costs)
        return self.out

    def collect(self, costs: Costs | None, *, figures: bool = True) -> None:
        """Write tables (and figures) of all that is stored; nothing if no run is finished.

        figures: False removes those that were drawn of fewer runs.
        """
        search, final = self.jobs(costs)
        searched, runs = self.stored(search), self.stored(final)
        rows = collecting.rows_of(self.study, self.request, costs, runs)
        if not rows:
            return
        notes = writing.notes_of(self.study, self.request, rows, searched, runs)
        if len(runs) < len(final):
            notes.insert(0, f"Unfinished: {len(runs)} of {len(final)} runs are done.")
        result = writing.result(self.study, self.request, rows, costs, searched, runs, notes)
        storage.write(self.out / storage.RESULT, result)
        storage.write(self.out / "table.md", writing.markdown(self.study, self.request, rows, notes))
        storage.write(self.out / "table.csv", writing.csv_text(rows))
        if figures:
            drawing.draw(self.study, rows, runs, costs, self.out, self.request.data)
        elif len(runs) < len(final):
            shutil.rmtree(self.out / drawing.FOLDER, ignore_errors=True)


def requested(
    data: str,
    sources: Sequence[str],
    scale: str,
    seeds: Sequence[int],
    epochs: int | None,
    workers: int,
    fields: Mapping[str, Any] | None,
) -> Request:
    """What all studies are asked for. sources: to measure on. Raises UserError."""
    if epochs is not None and epochs < 1:
        raise UserError(f"epochs must be ≥ 1, got {epochs}")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError("seeds: give one or more different numbers from 0, such as 0 1 2")
    if workers < 1:
        raise UserError(f"workers must be ≥ 1, got {workers}")
    taken = {"data", "seed", "epochs", "optimizer.learning_rate", "monitor.until"} & set(fields or {})
    if taken:
        raise UserError(f"{min(taken)} is what a study decides; use --data, --seeds, --epochs, --rates or --until")
    images, targets = _opened(data, scale), tuple(_target(source, scale) for source in sources)
    return Request(
        data, targets, _IMAGENET if images is None else len(images), tuple(seeds), epochs, None, fields or {}
    )


def plain_fields(request: Request) -> dict[str, Any]:
    """The fields by their values, however they were spelled."""
    return {name: from_option(value) if isinstance(value, str) else value for name, value in request.fields.items()}


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


def _measured_on(experiment: str, data: str, evaluate_on: Sequence[str], data_voc: str | None) -> Sequence[str]:
    """The sources to measure on: what is of VOC2007 finds it, and finds nothing else."""
    if data_voc is None or experiment not in (*OF_VOC, WITH_VOC):
        return evaluate_on or (data,)
    return (data_voc,) if experiment in OF_VOC else (*(evaluate_on or (data,)), data_voc)


def _opened(source: str, scale: str) -> Source | None:
    """The images of a source; None at the full scale if they are not here, where it can be planned all the same."""
    try:
        return open_source(source, None if "#" in source else "train")
    except UserError:
        if scale == "full":
            return None
        raise


def _lists_of(chosen: Study) -> list[str]:
    """The files that name the labelled images."""
    return [measure.options["list_file"] for measure in chosen.measures if "list_file" in measure.options]


def _check_lists(chosen: Study, request: Request) -> None:
    """Raises UserError if the images are here and a list names others."""
    opened = _opened(request.targets[0].source, chosen.scale)
    for file in _lists_of(chosen):
        if opened is not None:
            rows_of(opened, Path(file))


def _check_until(chosen: Study, request: Request) -> None:
    """Raises UserError where there are no held-out training images whose k-NN could be measured."""
    opened, monitor = _opened(request.data, chosen.scale), plan.experiment_of(chosen.arms[0], request).monitor
    if opened is not None and opened.classes is None:
        raise UserError(f"--until needs one label per image for k-NN, and {opened!r} has none; leave it out")
    if monitor.data is not None or not monitor.holdout:
        raise UserError(
            "--until measures on held-out training images; leave out monitor.data, and give monitor.holdout above 0"
        )


def _target(source: str, scale: str) -> Target:
    """The labelled images of a source. Raises UserError if it has none."""
    opened = _opened(source, scale)
    if opened is None:
        return Target(source, several=source.startswith("voc:"), known_as=_CALLED.get(source.partition(":")[0]))
    if opened.labels is None:
        raise UserError(
            f"data '{source}' has no labels to measure with; name labelled images with --evaluate-on SOURCE"
        )
    return Target(source, several=opened.classes is None, known_as=known_as(opened))
