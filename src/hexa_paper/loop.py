"""The paper's experiments: for every arm and seed what is missing is made, and tables come from the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import rich.table
import torch

from hexa.config import UserError
from hexa.reporting.tables import Table, counted, format_duration
from hexa.runtime.console import Console
from hexa.runtime.lock import locked
from hexa.runtime.signals import Interrupted
from hexa_paper import drawing, results, tables
from hexa_paper.benchmark import seconds_of_image
from hexa_paper.plan import Job, Plan, experiment_of
from hexa_paper.request import Request, refuse
from hexa_paper.running import carry_out, command_of
from hexa_paper.studies import EXPERIMENTS, PARTS, listed, shortened, study

#: Characters of an error that are shown.
_MOST = 300


def begin(experiment: str, request: Request, console: Console) -> list[Plan]:
    """The plan of an experiment, or those of all; writes nothing. Raises UserError for what cannot be carried out.

    Studies of one folder share its runs. console: told which parts of all are left out, and why.
    """
    request.check()
    if experiment != "all":
        return [_planned(experiment, request)]
    refuse(request.method is not None, "--method: all has every method; leave it out")
    plans = []
    for name, method in PARTS:
        out = Path(request.out or "runs/all")
        try:
            on_voc = EXPERIMENTS[name].get("images") == "VOC07"
            refuse(on_voc and request.data_voc is None, "no --data-voc")
            plan = _planned(name, replace(request, method=method, out=out))
        except UserError as error:
            console.print(f"{name} {method} is left out: {error}")
            continue
        plans.append(replace(plan, tables=out / f"{name}-{method}"))
    remedy = "give images with one class each"
    refuse(not plans, f"{request.data}: fits none of the experiments; {remedy}")
    return plans


def _planned(experiment: str, request: Request) -> Plan:
    chosen = study(experiment, request.method, request.scale, request.data)
    out = Path(request.out or f"runs/{experiment}-{chosen.method}-{request.scale}")
    request = replace(request, out=out, rates=request.rates or None)
    # what the paper measured on VOC2007 is measured on data_voc, if it is given
    sources = list(request.evaluate_on) or [request.data]
    voc = request.data_voc
    measured_on = sources
    if voc is not None and "images" in EXPERIMENTS[experiment]:
        alone = EXPERIMENTS[experiment]["images"] == "VOC07"
        measured_on = [voc] if alone else [*sources, voc]
    targets = tuple(map(request.images, measured_on))
    for target in targets:
        remedy = "name labelled images with --evaluate-on SOURCE"
        unlabelled = f"data '{target.source}' has no labels to measure with; {remedy}"
        refuse(not target.labelled, unlabelled)
    images = request.images(request.data)
    if request.label_lists is not None:
        chosen = listed(chosen, request, targets[0].source)
    plan = Plan(chosen, request, targets, images if images.labelled else targets[0], out)
    plan.check()
    if request.scale == "small":
        longest = max(plan.epochs_of(arm) for arm in chosen.arms)
        plan = replace(plan, study=shortened(chosen, longest))
    results.check(out)
    plan.final()  # raises for a wrong field
    return plan


# -- the plan ---------------------------------------------------------------------------------------------------------


def show(plan: Plan) -> Iterator[rich.table.Table | str]:
    """A plan as lines for a terminal: runs and costs, evaluations, and the commands that train the runs by hand.

    Costs are counted in passes of the network; at the small scale one short timing of the first arm makes time of them.
    """
    out = plan.request.folder
    search = plan.search
    final = plan.final()
    yield tables.title(plan.study)
    yield _listed(plan, [*search, *final])
    measured = [f"{measure.title} on {measure.source}" for measure in final[0].measures]
    yield f"measured by {', '.join(dict.fromkeys(measured))}"
    yield from plan.study.notes
    waiting = [job for job in search if job.missing(out)]
    said = "The final runs follow from the search. To train its runs by hand:"
    if not waiting:
        waiting = [job for job in final if job.missing(out) and job.arm.epochs != 0]
        said = "To train the runs by hand, which the same command then evaluates:"
    if waiting:
        yield said
    yield from (command_of(job, out, plan.study.scale == "full") for job in waiting)


def _listed(plan: Plan, jobs: Sequence[Job]) -> rich.table.Table:
    """Jobs by arm and length, with their costs."""
    full = plan.study.scale == "full"
    out = plan.request.folder
    first = plan.study.arms[0]
    seconds = 0.0
    if not full:
        timed = seconds_of_image(experiment_of(first, plan.request))
        seconds = timed / plan.cost(first) * plan.request.images(plan.request.data).num_images
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in jobs:
        epochs = 0 if job.arm.epochs == 0 else job.experiment.epochs
        phase = "search" if job.searching else ""
        groups.setdefault((phase, job.arm.name, epochs), []).append(job)
    rows = []
    total = 0.0
    for (phase, name, epochs), members in groups.items():
        waiting = [job for job in members if job.missing(out)]
        passes = plan.cost(members[0].arm) * epochs
        left = passes * seconds * len(waiting)
        total += left
        cost = f"{passes:g}" if full else format_duration(left)
        done = str(len(members) - len(waiting))
        rows.append((phase, name, str(epochs), str(len(members)), done, cost))
    if not full:
        rows.append(("", "all", "", "", "", format_duration(total)))
    cost = "forward passes of an image" if full else "training left, about"
    return Table(("", "arm", "epochs", "runs", "done", cost), rows, 2).terminal(pad_edge=False)


# -- the work ---------------------------------------------------------------------------------------------------------


def make(plans: Sequence[Plan], console: Console) -> Path:
    """Search, train and evaluate whatever is not done already; write tables and figures. Returns the folder.

    A run that fails does not stop the others; the command ends with the first reason. Raises UserError.
    """
    out = plans[0].request.folder
    alone = plans[0].study.scale == "full" and not torch.cuda.is_available()
    remedy = "--plan prints them, --scale small is for this machine"
    refuse(alone, f"the published settings need GPUs; {remedy}")
    held = f"works on {out} already; wait until it ends, or give another --out"
    with locked(out / results.LOCK, held):
        failed = [reason for plan in plans for reason in _make(plan, console)]
    if failed:
        count = counted(len(failed), "run")
        remedy = "to try again, give the same command"
        raise UserError(f"{count} failed, the others are done; {remedy}; the first: {failed[0]}")
    return out


def _make(plan: Plan, console: Console) -> list[str]:
    """Carry out a study, and return why runs failed."""
    out = plan.request.folder
    try:
        failed = _carried_out(plan.search, out, console)
        failed += _carried_out(plan.final(), out, console)
    except BaseException:
        tables.write(plan)
        raise
    rows = tables.write(plan)
    if rows:
        drawing.draw(plan, rows)
    return failed


def _carried_out(jobs: Sequence[Job], out: Path, console: Console) -> list[str]:
    """Carry out every job of which something is missing, and return why jobs failed."""
    failed = []
    for number, job in enumerate(jobs, 1):
        if not job.missing(out):
            continue
        try:
            said = tables.scores_of(job, carry_out(job, out, console))
        except (Interrupted, OSError):
            raise
        except Exception as error:
            if isinstance(error.__cause__, OSError):  # a full disk stops every run
                raise
            said = " ".join(str(error).split())[:_MOST] or type(error).__name__
            failed.append(f"{job.name}: {said}")
        console.print(f"[{number}/{len(jobs)}] {job.arm.name}, {job.name}: {said}")
    return failed
