"""Carry out jobs: one after another here, or several at once in their own processes; each is stored when done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
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
from hexa.runtime.signals import Interrupted, Interrupts, end_with
from hexa.training.losses import NonFiniteError
from hexa_paper import storage
from hexa_paper.plan import Job, options_taught, taught

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0


def run_jobs(
    jobs: Sequence[Job], out: Path, *, workers: int = 1, console: Console
) -> Iterator[dict[str, Any]]:
    """Carry out all jobs that have no stored result yet, and yield what each has stored as it ends.

    workers: how many at once, each in its own process. Whatever stops this (Ctrl-C, SIGTERM, SIGHUP, an error) loses
    nothing: runs save before they end, and the next call resumes them.
    """
    waiting = [job for job in jobs if storage.stored(out, job.record) is None]
    if workers == 1 or len(waiting) < 2:
        yield from (carry_out(job.record, out, console) for job in waiting)
    else:
        yield from _several(waiting, out, workers)


def carry_out(record: dict[str, Any], out: Path, console: Console | None = None) -> dict[str, Any]:
    """Pre-train and evaluate one job (a `Job.record`) in this process, and store what was found.

    It has the run to itself: it waits for an orphaned worker of the study to save and exit.
    """
    run = Path(os.path.normpath(out / record.get("run", f"runs/{record['name']}")))
    what = f"trains {run} still; wait until it ends, or end it, and give the command again"
    with locked(storage.lock_file(out, record["name"]), what, patience=_PATIENCE_SECONDS):
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
    done |= _training_of(
        read_run(run), "diverged" in done, record["experiment"]["monitor"]["until"]
    )
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
    return experiment.model_dump(mode="json", exclude={"training", "monitor"}) | {
        "until": experiment.monitor.until
    }


def _training_of(read: Run, diverged: bool, until: float | None) -> dict[str, Any]:
    """How a run was made: where, by which code, for how long by the journal's clock, and whether in one go.

    until: then also the epoch and the seconds of training after which the k-NN monitor first was as high; None if it
    never was.
    """
    kept = ("time", "device", "precision", "threads", "processes", "versions", "commit")
    later = [
        {key: one.get(key) for key in ("time", "step", "device", "commit")}
        for one in read.resumptions
    ]
    made = {
        "pretrain_seconds": None if diverged else read.seconds,
        "interruptions": read.interruptions,
        "environment": {key: read.environment.get(key) for key in kept}
        | ({"resumed": later} if later else {}),
    }
    if until is None or diverged:
        return made
    # a run that reached it in its last epoch was not ended by it
    clock = [event for event in read.events if event["event"] == "ended"] or read.train
    epochs = [line["epoch"] for line in read.monitor if line.get("knn", 0) >= until]
    return made | {
        "reached": {"epochs": epochs[0], "seconds": clock[-1]["seconds"]} if epochs else None
    }


def command_of(job: Job, out: Path) -> str:
    """The command that trains a job's run on eight GPUs, into the folder where the study looks for it."""
    run = Run(out / "runs" / job.name, config=job.experiment.model_dump(mode="json"))
    on_one_line = command(run).replace("\\\n", "").replace("   ", " ")
    return f"torchrun --standalone --nproc-per-node 8 -m {on_one_line}{options_taught(job, out / 'runs')} --out {run.folder}"


# -- several at once ------------------------------------------------------------------------------------------------


def _several(jobs: Sequence[Job], out: Path, workers: int) -> Iterator[dict[str, Any]]:
    """Each job in a process with its share of the cores, whose output is in logs/NAME.log.

    Raises Interrupted after a signal, and UserError with the log of a job that failed, once all have saved and ended.
    """
    waiting, going = list(jobs), dict[Job, subprocess.Popen[str]]()
    with Interrupts(lambda _: None) as interrupts:
        try:
            while waiting or going:
                if (
                    interrupts.received is not None
                ):  # a scheduler has told the jobs too: they have not failed
                    raise Interrupted(interrupts.received, 0, None)
                while waiting and len(going) < workers:
                    job = waiting.pop(0)
                    going[job] = _start(job, out, max(1, (os.cpu_count() or 1) // workers))
                for job in [job for job, process in going.items() if process.poll() is not None]:
                    if going.pop(job).returncode:
                        log = _log(out, job)
                        last = (
                            log.read_text(errors="replace").strip().rpartition("\n")[2].strip()
                            or "no output"
                        )
                        raise UserError(f"run {job.name} failed: {last[:300]}; see {log}")
                    yield storage.read(storage.job_file(out, job.name))
                time.sleep(_POLL_SECONDS)
        finally:
            for process in going.values():  # they save what they have
                process.terminate()
            for process in going.values():
                process.wait()


def _log(out: Path, job: Job) -> Path:
    return out / "logs" / f"{job.name}.log"


def _start(job: Job, out: Path, threads: int) -> subprocess.Popen[str]:
    """A process for the job, whose record it reads from its standard input."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    command = [sys.executable, "-m", "hexa_paper.running", str(out), str(os.getpid())]
    _log(out, job).parent.mkdir(parents=True, exist_ok=True)
    with _log(out, job).open("a") as log:
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": log,
            "stderr": log,
            "text": True,
        }
        process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    assert process.stdin is not None
    with process.stdin as stdin:
        json.dump(job.record, stdin)
    return process


def main(out: str, parent: str) -> int:
    """One job of `_several` in this process, which ends with its parent. out: the study's folder."""
    end_with(int(parent))
    try:
        carry_out(json.load(sys.stdin), Path(out))
    except (Interrupted, UserError) as error:
        print(error, file=sys.stderr)
        return error.exit_code if isinstance(error, Interrupted) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
