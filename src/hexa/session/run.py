"""A run from its experiment to its folder: pretrain and resume (DESIGN §2)."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path

import torch

from hexa import experiment as experiments
from hexa.assembly.build import (
    Machine,
    branch_notes,
    build_method,
    build_objective,
    fingerprint,
    kernels,
    paces,
    setting_of,
    settled,
)
from hexa.config import ConfigError, UserError, reason
from hexa.core import Method
from hexa.data import Source, open_source
from hexa.data.loaders import PretrainLoader
from hexa.data.pairs import Pairs
from hexa.data.views import Views
from hexa.experiment import Experiment
from hexa.nn import backbones
from hexa.nn.branch_norm import plain_state_dict
from hexa.nn.layouts import owner
from hexa.nn.pretrained import Backbone, load_backbone, save_backbone
from hexa.reporting import scores
from hexa.reporting.runs import flatten, read_run
from hexa.runtime import checkpoints, processes
from hexa.runtime import precision as precisions
from hexa.runtime.console import Console
from hexa.runtime.output import one_line
from hexa.runtime.progress import Reporter
from hexa.runtime.random import Stream
from hexa.session.folder import BACKBONE, BEST, CHECKPOINTS, CONFIG, REPORT, is_ours, mine, stopping_well, way_on
from hexa.session.neighbours import KnnMonitor, without_holdout
from hexa.training import optimizers, trackers
from hexa.training.events import TensorBoard
from hexa.training.journal import TENSORBOARD, Journal, discard, write_environment
from hexa.training.monitor import Best, Watch
from hexa.training.plan import Plan
from hexa.training.trackers import Tracker, Tracking
from hexa.training.trainer import Trainer

__all__ = ["BACKBONE", "CONFIG", "pretrain", "resume"]


def pretrain(experiment: Experiment, out: Path | str | None = None, *, console: Console | None = None) -> Path:
    """Carry out an experiment in the folder `out`, by default runs/RECIPE, and return the folder.

    Everything that can be wrong with an experiment is found before the folder is made. Under torchrun every process
    calls it, and if torchrun starts them again (--max-restarts), it goes on from the last checkpoint.
    console: where progress is shown, standard error by default.
    Raises UserError; Interrupted after a signal, the run being saved; NonFiniteError; ProcessEnded.
    """
    folder = Path(out) if out is not None else Path("runs") / experiment.recipe.rpartition(":")[2]
    notes: list[str] = []
    with mine(folder, notes.append) as is_main:
        return _carry_out(experiment, folder, console, is_main and is_ours(folder), notes)


def resume(run: Path | str, *, console: Console | None = None) -> Path:
    """Go on with a run exactly where it stopped, from its newest intact checkpoint; returns its folder.

    What follows equals what would have followed without the stop, bit for bit (on a GPU with training.deterministic).
    A run that is complete only gets what is missing of its results. Raises as `pretrain` does.
    """
    folder = Path(run)
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: no run to resume ({CONFIG} is missing); give the folder that hexa pretrain wrote")
    notes: list[str] = []
    with mine(folder, notes.append):
        return _carry_out(experiments.load(folder / CONFIG), folder, console, True, notes)


def _carry_out(experiment: Experiment, folder: Path, console: Console | None, resumed: bool, notes: list[str]) -> Path:
    machine = Machine.of(experiment)
    processes.initialize(machine.device)
    failed = True
    try:
        console = console or Console(stderr=True)
        resumed = processes.any_of(resumed, machine.device)
        # the random numbers of whoever called are left as they were
        with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
            _run(experiment, folder, console if processes.is_main() else None, machine, resumed, notes)
        failed = False
        return folder
    except processes.ProcessEnded as error:
        raise error.with_remedy(way_on(folder)) from error.__cause__
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


def _run(
    experiment: Experiment, folder: Path, console: Console | None, machine: Machine, resumed: bool, notes: list[str]
) -> None:
    trackers.check(experiment.training.tracker)
    split = None if "#" in experiment.data else "train"
    source = open_source(experiment.data, split, experiment.training.max_image_pixels, experiment.network.channels)
    source, held = without_holdout(experiment, source)
    setting_of(experiment, len(source))  # finds what can't be, which the images would only delay
    if console is not None:  # before the images are read, which may take a while
        console.print(one_line(_headline(experiment, source, machine, folder, resumed)))
    experiment, settlements = settled(experiment, source)
    setting = setting_of(experiment, len(source))
    stored = resumed and bool(checkpoints.checkpoints(folder / CHECKPOINTS))
    if console is not None and experiment.start.weights is not None:
        console.print(one_line(_start_line(experiment)))
    method = build_method(experiment, setting, machine, source, filled=not stored)
    if console is not None:
        for note in [
            *settlements,
            *precisions.crowded(machine.device),
            *method.notes(),
            *branch_notes(method, setting),
        ]:
            console.print(one_line(note))
    loader = _loader(experiment, source, machine)
    if console is not None and loader.pairs is not None:
        console.print(one_line(str(loader.pairs)))
    trainer = _trainer(experiment, source, held, method, loader, machine, folder)
    warnings = [*notes, *(_go_on(trainer, folder) if resumed else ())]
    with stopping_well(folder), closing(loader):
        _train(experiment, trainer, folder, console, machine.precision, resumed, warnings)


def _trainer(
    experiment: Experiment,
    source: Source,
    held: Source | None,
    method: Method,
    loader: PretrainLoader,
    machine: Machine,
    folder: Path,
) -> Trainer:
    plan = Plan(
        epochs=experiment.epochs,
        batch_size=experiment.batch_size,
        learning_rate=experiment.optimizer.scaled_learning_rate(experiment.batch_size),
        schedule=experiment.schedule,
        training=experiment.training,
        optimizer=experiment.optimizer,
        fingerprint=fingerprint(experiment, source, loader.pairs),
        former_fingerprint=fingerprint(experiment, source, loader.pairs, former=True),
        monitor_every=experiment.monitor.knn_every,
        max_steps=experiment.max_steps,
    )
    knn = KnnMonitor.of(experiment, source, method, machine, held)
    trainer = Trainer(
        build_objective(experiment, method, machine),
        optimizers.build(
            method.parameters(),
            experiment.optimizer,
            experiment.batch_size,
            method.unscheduled(),
            paces(method, experiment.start),
        ),
        loader,
        plan,
        machine.device,
        folder=folder,
        monitor=knn,
        watch=Watch(method.chance_loss, knn.num_classes if knn is not None else None),
        best=Best(experiment.monitor.keep_best, experiment.monitor.patience),
        keep=lambda: save_backbone(_backbone(experiment, trainer), folder / BEST),
    )
    if knn is not None:
        knn.say = lambda message: trainer.warn([message])
    return trainer


def _go_on(trainer: Trainer, folder: Path) -> list[str]:
    """Load the newest intact checkpoint, if there is any checkpoint; returns warnings. Raises UserError."""
    warnings: list[str] = []
    found = checkpoints.newest_good_of_all(folder / CHECKPOINTS, warnings.append, trainer.device)
    if found is None and checkpoints.checkpoints(folder / CHECKPOINTS):
        # only the main process warns
        raise UserError("; ".join([*warnings, f"no checkpoint of {folder} is intact, start a new run"]))
    if found is None:
        return warnings
    try:
        return warnings + trainer.load(found[1])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # whole, but made for something else
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(
            f"{found[0]}: not a checkpoint of this experiment ({reason(error)}); start a new run"
        ) from error


def _train(
    experiment: Experiment,
    trainer: Trainer,
    folder: Path,
    console: Console | None,
    precision: str,
    resumed: bool,
    warnings: list[str],
) -> None:
    """From wherever the trainer stands to the end; all that is written to the folder."""
    step, is_main = trainer.step, processes.is_main()
    if is_main:
        # first: it says whose folder this is
        write_environment(folder, trainer.device, precision, step if resumed else None)
        if not resumed:
            discard(folder)
            experiments.dump(experiment, folder / CONFIG)
    trackings = _trackings(experiment, folder, trainer, resumed, warnings)
    with Journal(folder if is_main else None, step, trackings) as journal:
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
        if is_main:
            kept = trainer.best.measure is not None and trainer.best.value is not None
            save_backbone(load_backbone(folder / BEST) if kept else _backbone(experiment, trainer), folder / BACKBONE)
            with trainer.looking("collecting the results for the tracker"):
                journal.results = scores.flat(read_run(folder))
            journal.write("end", trainer.step)
            if experiment.training.report:
                with trainer.looking(f"writing {REPORT}"):
                    _write_report(folder, experiment.data)
    processes.barrier()


def _trackings(
    experiment: Experiment, folder: Path, trainer: Trainer, resumed: bool, warnings: list[str]
) -> list[Tracking]:
    """The trackers of the main process. One that can't begin stops a new run, and is a warning for one that goes on."""
    found: list[Tracker] = []
    name, problem = experiment.training.tracker, None
    if processes.is_main():
        if experiment.training.tensorboard:
            found.append(TensorBoard(folder / TENSORBOARD, trainer.step))
        try:
            if name is not None:
                found.append(trackers.start(name, folder, flatten(experiment.model_dump(mode="json")), resumed))
        except ConfigError as error:
            problem = error
    if processes.any_of(problem is not None, trainer.device) and not resumed:
        raise problem or ConfigError([("training.tracker", "it can't begin")])  # the main process says why
    if problem is not None:
        warnings.append(f"{problem}; the run goes on without it")
    return [Tracking(tracker, lambda message: trainer.warn([message])) for tracker in found]


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
        pairs=Pairs.of(experiment.pairs, source),
    )


def _headline(experiment: Experiment, source: Source, machine: Machine, folder: Path, resumed: bool) -> str:
    hard = "".join(f" + {name}" for name, config in experiment.hard_examples.items() if config.weight > 0)
    where = f"{machine.device.type} {machine.precision}"
    out = f"resumed in {folder}" if resumed else f"into {folder}"
    length = f"{experiment.epochs} epoch{'s' if experiment.epochs != 1 else ''}"
    return f"{experiment.recipe}: {experiment.method.name}{hard} on {source!r}, {length}, {where}, {out}"


def _start_line(experiment: Experiment) -> str:
    start, network = experiment.start, experiment.network
    of_norms = {"keep": "kept", "re-estimate": "re-estimated on the data, then kept", "follow": "following"}
    said = f"batch-norm statistics {of_norms[start.batch_norm]}"
    return f"starts from {start.weights}: {network.name} at {experiment.views.size} px, mean {network.mean}, {said}"


def _backbone(experiment: Experiment, trainer: Trainer) -> Backbone:
    """The backbone as it is now, as a plain network."""
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
    if experiment.start.weights is not None:
        info |= {"start": experiment.start.weights, "start_sha256": experiment.start.sha256}
    return Backbone(
        network.eval(),
        mean=experiment.network.mean,
        std=experiment.network.std,
        image_size=experiment.views.size,
        network_config=experiment.network,
        info=info,
    )


def _write_report(folder: Path, data: str) -> None:
    from hexa.reporting.report import report

    report([folder], folder / REPORT, data)
