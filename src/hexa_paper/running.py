"""Carry out one job: pre-train its run, make its evaluations, and keep them in its file."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.recipes.experiment import Experiment, load, override
from hexa.reporting.runs import Run, flatten, read_run
from hexa.run.build import open_images, settled
from hexa.run.folder import BACKBONE, CHECKPOINTS, CONFIG
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.runtime import checkpoints
from hexa.runtime.console import Console
from hexa.training.losses import NonFiniteError
from hexa.weights.pretrained import Backbone, random_backbone
from hexa_paper import results, torchrun
from hexa_paper.plan import Job
from hexa_paper.request import refuse
from hexa_paper.studies import Measure

#: Entries of a run's environment that its results keep.
_ENVIRONMENT = ("time", "device", "precision", "threads", "processes", "versions", "commit")
#: Entries of a resumption.
_RESUMPTION = ("time", "step", "device", "commit")


def carry_out(job: Job, out: Path, processes: int, console: Console) -> dict[str, Any]:
    """Make what a job's file of results lacks, and return the results. The caller holds the folder.

    processes: of a training and of the protocol linear; one is this process, more are started by torchrun.
    The file is written after every evaluation, and a run saves checkpoints, so that the next call continues.
    """
    found = results.read(out, job.name) or _begun(job)
    missing = job.missing(out)
    if not missing:
        return found
    backbone: Path | Backbone
    if job.arm.epochs == 0:
        made = complete(job.experiment)
        backbone = random_backbone(made.network, made.views.test_size, made.seed)
    else:
        backbone = results.run_folder(out, job.name)
        if diverged := _trained(job, out, processes, console):
            found["diverged"] = diverged
            results.store(out, job.name, found)
            return found
        found |= _training_of(read_run(backbone))
    for measure in missing:
        options: dict[str, Any] = {
            "seed": job.experiment.seed,
            "device": job.experiment.training.device,
        }
        options |= measure.options
        if measure.holdout is not None:
            options["holdout"] = measure.holdout
        options["data"] = measure.source
        target: str | Backbone = (
            str(_checkpoint(job, measure, backbone)) if isinstance(backbone, Path) else backbone
        )
        if processes > 1 and isinstance(target, str) and measure.protocol == "linear":
            result = torchrun.evaluate_linear(target, options, processes)
        else:
            result = evaluate(measure.protocol, target, **options)
        found["results"][measure.key] = result
        results.store(out, job.name, found)
    if job.searching and isinstance(backbone, Path):
        shutil.rmtree(backbone, ignore_errors=True)  # the score is all that is needed
    return found


def _begun(job: Job) -> dict[str, Any]:
    """The results of a job before anything is done."""
    return {
        "name": job.name,
        "recipe": job.arm.recipe,
        "epochs": job.experiment.epochs,
        "rate": job.rate,
        "seed": job.experiment.seed,
        "experiment": job.experiment.model_dump(mode="json"),
        "results": {},
    }


def _trained(job: Job, out: Path, processes: int, console: Console) -> str:
    """Train or resume a job's run unless it is finished. Returns why it diverged; empty if it did not."""
    run = results.run_folder(out, job.name)
    fields = job.fields(out)
    teacher = fields.get("method.teacher")
    if teacher is not None and not (Path(teacher) / BACKBONE).is_file():
        return f"its teacher {job.teacher} has no weights"
    experiment = complete(begin_from_weights(override(job.experiment, fields), fields))
    begun = (run / CONFIG).is_file()
    if begun:
        other = _essence(load(run / CONFIG)) != _essence(experiment)
        remedy = "remove it, or give another --out"
        refuse(other, f"{run}: is a run with other settings; {remedy}")
    if results.is_trained(out, job.name):
        return ""
    try:
        if processes > 1:
            torchrun.train(arguments_of(job, out), run, processes)
        elif begun:
            resume(run, console=console)
        else:
            pretrain(experiment, run, console=console)
    except NonFiniteError as error:
        remedy = "--rates gives lower learning rates"
        if error.step <= 1:
            remedy = "nothing was learned, check the data"
        return f"step {error.step}: {error.what} not finite; {remedy}"
    except UserError:
        events = read_run(run).events if (run / CONFIG).is_file() else []
        diverged = [event["message"] for event in events if event["event"] == "non-finite"]
        if processes == 1 or not diverged:
            raise
        return str(diverged[-1])
    return ""


def _essence(experiment: Experiment) -> dict[str, Any]:
    return experiment.model_dump(mode="json", exclude={"training", "monitor"})


def complete(experiment: Experiment) -> Experiment:
    """The experiment with what the images decide, if the recipe leaves it to them."""
    network = experiment.network
    if network.mean and network.std and network.channels == 3:
        return experiment
    return settled(experiment, open_images(experiment))[0]


def _checkpoint(job: Job, measure: Measure, run: Path) -> Path:
    """The finished run, or its checkpoint after the epochs of a measure."""
    if measure.epochs is None:
        return run
    last = checkpoints.step_of(checkpoints.checkpoints(run / CHECKPOINTS)[-1])
    step = last * measure.epochs // job.experiment.epochs
    path = checkpoints.path_of(run / CHECKPOINTS, step)
    remedy = f"train that run with --training.keep_every {measure.epochs}, or remove it"
    refuse(not path.is_file(), f"{path}: is missing; {remedy}")
    return path


def _training_of(read: Run) -> dict[str, Any]:
    """The training of a run: machine, code, seconds by the journal's clock, and interruptions."""
    environment: dict[str, Any] = {key: read.environment.get(key) for key in _ENVIRONMENT}
    if read.resumptions:
        environment["resumed"] = [
            {key: one.get(key) for key in _RESUMPTION} for one in read.resumptions
        ]
    return {
        "pretrain_seconds": read.seconds,
        "interruptions": sum(bool(one.get("step")) for one in read.resumptions),
        "environment": environment,
    }


def command_of(job: Job, out: Path, full: bool) -> str:
    """The command that trains a job's run by hand, into the folder where the study looks for it.

    full: on eight GPUs.
    """
    words = ["hexa", *arguments_of(job, out)]
    if full:
        words = ["torchrun", "--standalone", "--nproc-per-node", "8", "-m", *words]
    return shlex.join(words)


def arguments_of(job: Job, out: Path) -> list[str]:
    """The words of `hexa pretrain …` that train a job's run into the folder where the study looks for it."""
    words = ["pretrain", job.experiment.recipe]
    options = _changes(job.experiment) | job.fields(out)
    options["out"] = str(results.run_folder(out, job.name))
    for path, value in options.items():
        text = "none" if value is None else json.dumps(value)
        words += [f"--{path}", value if isinstance(value, str) else text]
    return words


def _changes(experiment: Experiment) -> dict[str, Any]:
    """The options that turn the recipe of an experiment into it, by dotted path; None takes a hard example out."""
    recipe = recipes.get(experiment.recipe)
    theirs = set(recipe.hard_examples)
    ours = set(experiment.hard_examples)
    changes: dict[str, Any] = {f"hard_examples.{name}": None for name in sorted(theirs - ours)}
    for name in sorted(ours - theirs):
        changes[f"hard_examples.{name}.kind"] = experiment.hard_examples[name].kind
    base = flatten(override(recipe, changes).model_dump(mode="json"))
    wanted = flatten(experiment.model_dump(mode="json"))
    return changes | {
        path: value for path, value in wanted.items() if path not in base or base[path] != value
    }
