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
from hexa_paper.request import Request, check_test_images, refuse
from hexa_paper.running import carry_out, command_of
from hexa_paper.studies import EXPERIMENTS, PARTS, Arm, listed, shortened, study

#: Images of ImageNet.
_IMAGENET = 1_281_167
#: Forward passes of a ResNet-50 that a V100 makes in an hour of training: MoCo-v2 takes 53 hours on eight for 200 epochs
#: of ImageNet, four passes an image (Chen et al., 2020, table 3). Other networks and sizes differ.
_PASSES_AN_HOUR = 4 * 200 * _IMAGENET / (53 * 8)
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
        if target.num_images:  # they are here
            check_test_images(target.source)
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
    left = plan.waiting()
    if left and left[0].searching:
        yield "The final runs follow from the search. To train its runs by hand:"
    elif left:
        yield "To train the runs by hand, which the same command then evaluates:"
    yield from (command_of(job, out, plan.study.scale == "full") for job in left)


def _listed(plan: Plan, jobs: Sequence[Job]) -> rich.table.Table:
    """Jobs by arm and length, with their costs."""
    full = plan.study.scale == "full"
    out = plan.request.folder
    first = plan.study.arms[0]
    images = plan.request.images(plan.request.data).num_images
    if full:
        seconds = 3600 / _PASSES_AN_HOUR * (images or _IMAGENET)
    else:
        seconds = seconds_of_image(experiment_of(first, plan.request)) / plan.cost(first) * images
    groups: dict[tuple[str, str, int], list[Job]] = {}
    for job in jobs:
        epochs = 0 if job.arm.epochs == 0 else job.experiment.epochs
        phase = "search" if job.searching else _comparison(plan, job.arm, epochs)
        groups.setdefault((phase, job.arm.name, epochs), []).append(job)
    rows = []
    total = 0.0
    for (phase, name, epochs), members in groups.items():
        waiting = [job for job in members if job.missing(out)]
        passes = plan.cost(members[0].arm) * epochs
        left = passes * seconds * len(waiting)
        total += left
        cost = _cost(left, full)
        done = str(len(members) - len(waiting))
        rows.append((phase, name, str(epochs), str(len(members)), done, cost))
    rows.append(("", "all", "", "", "", _cost(total, full)))
    cost = "V100 GPU-hours left, about" if full else "training left, about"
    return Table(("", "arm", "epochs", "runs", "done", cost), rows, 2).terminal()


def _comparison(plan: Plan, arm: Arm, epochs: int) -> str:
    """Return equal epochs or equal time for runs of this length, if the study compares at both."""
    if not plan.study.equal_time or not epochs:
        return ""
    return tables.EPOCHS if epochs == plan.epochs_of(arm) else tables.TIME


def _cost(seconds: float, full: bool) -> str:
    """A time of training; in hours of a GPU at the full scale."""
    return f"{seconds / 3600:,.0f}" if full else format_duration(seconds)


# -- the work ---------------------------------------------------------------------------------------------------------


def make(plans: Sequence[Plan], console: Console) -> Path:
    """Search, train and evaluate whatever is not done already; write tables and figures. Returns the folder.

    A run that fails does not stop the others, but final runs wait for the whole search; the command ends with the first
    reason. Raises UserError.
    """
    out = plans[0].request.folder
    held = f"works on {out} already; wait until it ends, or give another --out"
    with locked(out / results.LOCK, held):
        failed = [reason for plan in plans for reason in _make(plan, console)]
    if failed:
        count = counted(len(failed), "run")
        remedy = "to try again, give the same command"
        raise UserError(f"{count} failed; {remedy}; the first: {failed[0]}")
    return out


def _make(plan: Plan, console: Console) -> list[str]:
    """Carry out a study, and return why runs failed."""
    try:
        failed = _carried_out(plan, plan.search, console)
        if not failed:  # all arms of a table choose from the same rates
            failed = _carried_out(plan, plan.final(), console)
    except BaseException:
        tables.write(plan)
        raise
    rows = tables.write(plan)
    if rows:
        drawing.draw(plan, rows)
    return failed


def _carried_out(plan: Plan, jobs: Sequence[Job], console: Console) -> list[str]:
    """Carry out every job of which something is missing, and return why jobs failed."""
    out = plan.request.folder
    gpus = torch.cuda.device_count()
    full = plan.study.scale == "full"
    processes = plan.request.processes or max(1, gpus if full else 1)
    failed = []
    for number, job in enumerate(jobs, 1):
        if not job.missing(out):
            continue
        try:
            trained = job.arm.epochs == 0 or results.is_trained(out, job.name)
            whole = full and not trained and job.experiment.max_steps is None
            remedy = (
                "--plan prints the commands, and runs that are trained elsewhere are evaluated here"
            )
            refuse(whole and not gpus, f"the published settings need GPUs; {remedy}")
            said = tables.scores_of(job, carry_out(job, out, processes, console))
        except (Interrupted, OSError):
            raise
        except Exception as error:
            if isinstance(error.__cause__, OSError):  # a full disk stops every run
                raise
            said = " ".join(str(error).split())[:_MOST] or type(error).__name__
            failed.append(f"{job.name}: {said}")
        console.print(f"[{number}/{len(jobs)}] {job.arm.name}, {job.name}: {said}")
    return failed
