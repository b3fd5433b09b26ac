"""Carry out jobs, one after another; each is stored when it is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.recipes import experiment as experiments
from hexa.reporting.comparison import command
from hexa.reporting.runs import Run, read_run
from hexa.run.build import open_images, settled
from hexa.run.folder import BACKBONE, CHECKPOINTS, CONFIG
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.runtime import checkpoints
from hexa.runtime.console import Console
from hexa.runtime.lock import locked
from hexa.training.losses import NonFiniteError
from hexa_paper import storage
from hexa_paper.plan import Job, options_taught, taught


def run_jobs(jobs: Sequence[Job], out: Path, console: Console) -> Iterator[dict[str, Any]]:
    """Carry out all jobs that have no stored result yet, and yield what each has stored as it ends.

    Whatever stops this (Ctrl-C, SIGTERM, SIGHUP, an error) loses nothing: a run saves before it ends, and the next call
    resumes it.
    """
    for job in jobs:
        if storage.stored(out, job.record) is None:
            yield carry_out(job.record, out, console)


def carry_out(record: dict[str, Any], out: Path, console: Console | None = None) -> dict[str, Any]:
    """Pre-train and evaluate one job (a `Job.record`), and store what was found. It has the run to itself."""
    run = Path(os.path.normpath(out / record.get("run", f"runs/{record['name']}")))
    what = f"trains {run} still; wait until it ends, or end it, and give the command again"
    with locked(storage.lock_file(out, record["name"]), what):
        # stored if it was finished meanwhile
        return storage.stored(out, record) or _carry_out(record, run, out, console)


def _carry_out(
    record: dict[str, Any], run: Path, out: Path, console: Console | None
) -> dict[str, Any]:
    done = {key: value for key, value in record.items() if key != "measures"} | {"results": []}
    teacher = run.parent / record["teacher"] if "teacher" in record else None
    if teacher is not None and not (teacher / BACKBONE).is_file():
        done |= {
            "diverged": f"{teacher.name}, its teacher, has no weights",
            "pretrain_seconds": None,
        }
        storage.write(storage.job_file(out, record["name"]), done)
        return done
    try:
        _pretrain(record, run, console)
    except (
        NonFiniteError
    ) as error:  # a rate that is too large: this run has no score, the others continue
        remedy = (
            "--rates gives lower learning rates"
            if error.step > 1
            else "nothing was learned, check the data"
        )
        done["diverged"] = f"step {error.step}: {error.what} not finite; {remedy}"
    given = {"seed": record["seed"], "device": record["experiment"]["training"]["device"]}
    for measure in record["measures"] if "diverged" not in done else ():
        options = (
            given
            | measure["options"]
            | ({"holdout": measure["holdout"]} if measure["holdout"] else {})
        )
        at = {"epochs": measure["epochs"]} if "epochs" in measure else {}
        backbone = _after(run, measure["epochs"], record["epochs"]) if at else run
        result = evaluate(measure["protocol"], str(backbone), measure["data"], **options)
        done["results"].append({"title": measure["title"], **at, **result})
    done |= _training_of(read_run(run), "diverged" in done)
    storage.write(storage.job_file(out, record["name"]), done)
    if record["phase"] == "search":
        shutil.rmtree(run, ignore_errors=True)  # its score is all that is needed of it
    return done


def _pretrain(record: dict[str, Any], run: Path, console: Console | None) -> None:
    """Begin or resume the run of a job, unless it is finished."""
    fields = taught(record, run.parent)
    made = experiments.override(experiments.validate(record["experiment"]), fields)
    experiment = complete(begin_from_weights(made, fields))
    if (run / CONFIG).is_file():
        if _without_training(experiments.load(run / CONFIG)) != _without_training(experiment):
            raise UserError(
                f"{run}: is a run with other settings; remove it, or give another --out"
            )
        if not (run / BACKBONE).is_file():
            resume(
                run, console=console
            )  # from its beginning, if it had not got as far as a checkpoint
    else:
        pretrain(experiment, run, console=console)


def complete(experiment: experiments.Experiment) -> experiments.Experiment:
    """With what the images decide, where the recipe leaves it to them."""
    network = experiment.network
    if network.mean and network.std and network.channels == 3:
        return experiment
    return settled(experiment, open_images(experiment))[0]


def _after(run: Path, epochs: int, of: int) -> Path:
    """The checkpoint of a finished run of `of` epochs after these."""
    last = checkpoints.step_of(checkpoints.checkpoints(run / CHECKPOINTS)[-1])
    path = checkpoints.path_of(run / CHECKPOINTS, last * epochs // of)
    remedy = f"train that run with --training.keep_every {epochs}, or remove it"
    storage.refuse(not path.is_file(), f"{path}: is missing; {remedy}")
    return path


def _without_training(experiment: experiments.Experiment) -> dict[str, Any]:
    return experiment.model_dump(mode="json", exclude={"training", "monitor"})


def _training_of(read: Run, diverged: bool) -> dict[str, Any]:
    """How a run was made: where, by which code, for how long by the journal's clock, and whether in one go."""
    kept = ("time", "device", "precision", "threads", "processes", "versions", "commit")
    environment: dict[str, Any] = {key: read.environment.get(key) for key in kept}
    if read.resumptions:
        later = ("time", "step", "device", "commit")
        environment["resumed"] = [{key: one.get(key) for key in later} for one in read.resumptions]
    return {
        "pretrain_seconds": None if diverged else read.seconds,
        "interruptions": read.interruptions,
        "environment": environment,
    }


def command_of(job: Job, out: Path) -> str:
    """The command that trains a job's run on eight GPUs, into the folder where the study looks for it."""
    run = Run(out / "runs" / job.name, config=job.experiment.model_dump(mode="json"))
    on_one_line = command(run).replace("\\\n", "").replace("   ", " ")
    return f"torchrun --standalone --nproc-per-node 8 -m {on_one_line}{options_taught(job, out / 'runs')} --out {run.folder}"
