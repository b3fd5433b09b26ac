"""A run from its experiment to its folder: pretrain and resume (DESIGN §2)."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import torch
from rich.console import Console

from hexa import experiment as experiments
from hexa.config import ConfigError, UserError
from hexa.data import Source, open_source
from hexa.data.loaders import PretrainLoader
from hexa.data.views import Views
from hexa.experiment import Experiment
from hexa.nn import backbones
from hexa.nn.branch_norm import plain_state_dict
from hexa.reporting import scores
from hexa.reporting.runs import flatten, read_run
from hexa.runtime import checkpoints, peers, processes
from hexa.runtime.progress import Reporter
from hexa.runtime.random import Stream
from hexa.training import optimizers, trackers
from hexa.training.assembly import (
    Machine,
    branch_notes,
    build_method,
    build_objective,
    fingerprint,
    kernels,
    setting_of,
)
from hexa.training.journal import ENVIRONMENT, METRICS, Journal, discard, write_environment
from hexa.training.monitor import Watch
from hexa.training.neighbours import KnnMonitor
from hexa.training.trackers import Tracking
from hexa.training.trainer import Plan, Trainer

CONFIG, BACKBONE, REPORT, CHECKPOINTS = "config.yaml", "backbone.safetensors", "report.html", "checkpoints"


def pretrain(experiment: Experiment, out: Path | str | None = None, *, console: Console | None = None) -> Path:
    """Carry out an experiment in the folder `out`, by default runs/RECIPE, and return the folder.

    Everything that can be wrong with an experiment is found before the folder is made. Under torchrun every process
    calls it, and if torchrun starts them again (--max-restarts), it goes on from the last checkpoint.
    console: where progress is shown, standard error by default.
    Raises UserError; Interrupted after a signal, the run being saved; NonFiniteError; ProcessEnded.
    """
    folder = Path(out) if out is not None else Path("runs") / experiment.recipe.rpartition(":")[2]
    # asked before the processes have found each other, so that nothing has to be undone
    resumed = os.environ.get("RANK", "0") == "0" and _is_ours(folder)
    return _carry_out(experiment, folder, console, resumed)


def resume(run: Path | str, *, console: Console | None = None) -> Path:
    """Go on with a run exactly where it stopped, from its newest intact checkpoint; returns its folder.

    What follows equals what would have followed without the stop, bit for bit (on a GPU with training.deterministic).
    A run that is complete only gets what is missing of its results. Raises as `pretrain` does.
    """
    folder = Path(run)
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: no run to resume ({CONFIG} is missing); give the folder that hexa pretrain wrote")
    return _carry_out(experiments.load(folder / CONFIG), folder, console, resumed=True)


def _is_ours(folder: Path) -> bool:
    """Whether the run in `folder` is one that this torchrun began. Raises UserError if it is anything else of worth."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())) or _is_stillborn(folder):
        return False
    if peers.restarts() and _noted(folder, "launcher") == peers.launcher():
        return (folder / CONFIG).is_file()
    if (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds a run; go on with 'hexa resume {folder}', or give another --out")
    raise UserError(f"{folder} is not an empty folder; give another --out")


def _is_stillborn(folder: Path) -> bool:
    """Whether a run in `folder` ended with nothing to go on from: it may start anew.

    Its loss stopped being finite before the first checkpoint; or it was of this machine and ended before it logged a
    step (unreadable images …), but not if its process still goes, or that can't be known.
    """
    if not (folder / CONFIG).is_file() or (folder / BACKBONE).exists() or (folder / CHECKPOINTS).exists():
        return False
    journal = folder / METRICS
    written = journal.read_text(errors="replace") if journal.exists() else ""
    if '"event": "non-finite"' in written:
        return True
    process = _noted(folder, "process")
    if not isinstance(process, dict) or not peers.Peer(**process).is_over():
        return False
    return '"event": "train"' not in written


def _noted(folder: Path, name: str) -> object:
    """What the run in `folder` noted of its environment; None if it didn't."""
    try:
        return json.loads((folder / ENVIRONMENT).read_text())[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _carry_out(experiment: Experiment, folder: Path, console: Console | None, resumed: bool) -> Path:
    machine = Machine.of(experiment)
    processes.initialize(machine.device)
    failed = True
    try:
        console = console or Console(stderr=True)
        resumed = processes.any_of(resumed, machine.device)
        # the random numbers of whoever called are left as they were
        with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
            _run(experiment, folder, console if processes.is_main() else None, machine, resumed)
        failed = False
        return folder
    except processes.ProcessEnded as error:
        raise error.with_remedy(_way_on(folder)) from error.__cause__
    except Exception as error:
        if experiment.training.compile and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = str(error).strip().splitlines()[0][:200]
            remedy = f"'hexa resume {folder}' goes on once 'compile: false' stands in its {CONFIG}"
            raise UserError(f"training.compile: torch can't compile on this machine ({reason}); {remedy}") from None
        raise
    finally:
        # a trainer and its hooks refer to each other: without this, images and weights would outlive their run
        gc.collect()
        processes.shutdown(failed)


def _way_on(folder: Path) -> str:
    """What becomes of a run that lost a process."""
    found = checkpoints.checkpoints(folder / CHECKPOINTS)
    last = f"its last checkpoint is {found[-1]}" if found else "it has no checkpoint yet"
    if peers.restarts_left() > 0:
        return f"the run stops; {last}; torchrun starts it again"
    return f"the run stops; {last}; go on with: hexa resume {folder}"


def _run(experiment: Experiment, folder: Path, console: Console | None, machine: Machine, resumed: bool) -> None:
    trackers.check(experiment.training.tracker)
    source = open_source(experiment.data, None if "#" in experiment.data else "train")
    setting = setting_of(experiment, len(source))
    if console is not None:  # before the images are read, which may take a while
        console.print(
            _headline(experiment, source, machine, folder, resumed), markup=False, highlight=False, soft_wrap=True
        )
    method = build_method(experiment, setting, machine)
    if console is not None:
        for note in [*method.notes(), *branch_notes(method, setting)]:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
    objective = build_objective(experiment, method, machine)
    loader = _loader(experiment, source, machine)
    plan = Plan(
        epochs=experiment.epochs,
        batch_size=experiment.batch_size,
        learning_rate=experiment.optimizer.scaled_learning_rate(experiment.batch_size),
        schedule=experiment.schedule,
        training=experiment.training,
        optimizer=experiment.optimizer,
        fingerprint=fingerprint(experiment, source),
        monitor_every=experiment.monitor.knn_every,
    )
    knn = KnnMonitor.of(experiment, source, method, machine)
    trainer = Trainer(
        objective,
        optimizers.build(method.parameters(), experiment.optimizer, experiment.batch_size, method.unscheduled()),
        loader,
        plan,
        machine.device,
        folder=folder,
        monitor=knn,
        watch=Watch(method.chance_loss, knn.num_classes if knn is not None else None),
    )
    warnings: list[str] = []
    found = None
    if resumed:
        found = checkpoints.newest_good_of_all(folder / CHECKPOINTS, warnings.append, machine.device)
    if resumed and found is None and checkpoints.checkpoints(folder / CHECKPOINTS):
        said = "; ".join(
            [*warnings, f"no checkpoint of {folder} is intact, start a new run"]
        )  # only the main one warns
        raise UserError(said)
    step = found[1]["step"] if found is not None else 0
    if found is not None:
        warnings += trainer.load(found[1])
    if processes.is_main():
        folder.mkdir(parents=True, exist_ok=True)
        write_environment(folder, machine.device, machine.precision, resumed)  # first: it says whose folder this is
        if not resumed:
            discard(folder)
            experiments.dump(experiment, folder / CONFIG)
    tracking = _tracking(experiment, folder, trainer, resumed, warnings)
    with Journal(folder if processes.is_main() else None, step, experiment.training.tensorboard, tracking) as journal:
        trainer.reporter = Reporter(console, trainer.total_steps, step)
        trainer.journal = journal
        try:
            journal.write("resume" if resumed else "start", step)
            if step:
                trainer.reporter.say(f"going on after step {step} of {trainer.total_steps}")
            trainer.warn(warnings)
            trainer.run()
        finally:
            trainer.reporter.close()
            loader.close()
        if processes.is_main():
            _finish(experiment, trainer, folder)
            journal.results = scores.flat(read_run(folder))
            journal.write("end", trainer.step)
    processes.barrier()
    if processes.is_main():
        _write_report(experiment, folder, trainer)
    processes.barrier()


def _tracking(
    experiment: Experiment, folder: Path, trainer: Trainer, resumed: bool, warnings: list[str]
) -> Tracking | None:
    """The tracker of the main process. One that can't begin stops a new run, and is a warning for one that goes on."""
    name, tracking, problem = experiment.training.tracker, None, None
    if name is not None and processes.is_main():
        try:
            fields = flatten(experiment.model_dump(mode="json"))
            tracking = Tracking(trackers.start(name, folder, fields, resumed), lambda message: trainer.warn([message]))
        except ConfigError as error:
            problem = error
    if processes.any_of(problem is not None, trainer.device) and not resumed:
        raise problem or ConfigError([("training.tracker", "it can't begin")])  # the main process says why
    if problem is not None:
        warnings.append(f"{problem}; the run goes on without it")
    return tracking


def _loader(experiment: Experiment, source: Source, machine: Machine) -> PretrainLoader:
    return PretrainLoader(
        source,
        Views(experiment.views),
        experiment.batch_size,
        Stream(experiment.seed),
        machine.device,
        num_workers=experiment.training.num_workers,
        resident_limit_bytes=experiment.training.resident_limit_bytes,
        tolerance=experiment.training.max_corrupt_share,
    )


def _headline(experiment: Experiment, source: Source, machine: Machine, folder: Path, resumed: bool) -> str:
    hard = "".join(f" + {name}" for name, config in experiment.hard_examples.items() if config.weight > 0)
    where = f"{machine.device.type} {machine.precision}"
    out = f"resumed in {folder}" if resumed else f"into {folder}"
    length = f"{experiment.epochs} epoch{'s' if experiment.epochs != 1 else ''}"
    return f"{experiment.recipe}: {experiment.method.name}{hard} on {source!r}, {length}, {where}, {out}"


def _finish(experiment: Experiment, trainer: Trainer, folder: Path) -> None:
    """The trained backbone as a plain network."""
    from hexa.nn.layouts import owner
    from hexa.nn.pretrained import Backbone, save_backbone

    network = backbones.build(experiment.network)
    method = trainer.objective.method
    path = next(name for name, module in method.named_modules() if module is method.backbone)
    state = plain_state_dict(method.backbone)
    network.load_state_dict({name: value.detach().cpu().contiguous() for name, value in state.items()})
    info = {
        "recipe": experiment.recipe,
        "method": experiment.method.name,
        "encoder": owner(path),
        "branch": "main",
        "step": trainer.step,
        "epoch": trainer.step / trainer.steps_per_epoch,
        "seed": experiment.seed,
        "data": experiment.data,
    }
    backbone = Backbone(
        network.eval(),
        mean=experiment.network.mean,
        std=experiment.network.std,
        image_size=experiment.views.size,
        network_config=experiment.network,
        info=info,
    )
    save_backbone(backbone, folder / BACKBONE)


def _write_report(experiment: Experiment, folder: Path, trainer: Trainer) -> None:
    """report.html. A run is complete without it, so that a report that fails says so and no more."""
    if not experiment.training.report:
        return
    from hexa.reporting.report import report

    try:
        report([folder], folder / REPORT)
    except Exception as error:
        trainer.reporter.say(f"warning: no report was written ({type(error).__name__}: {error})")
