"""Runs an experiment in its folder: pretrain and resume."""

from __future__ import annotations

import gc
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hexa.config import ConfigError, UserError, field_error, reason
from hexa.core import Method
from hexa.data import Source
from hexa.data.loading.loaders import PretrainLoader
from hexa.recipes import experiment as experiments, plugins
from hexa.recipes.experiment import Experiment
from hexa.reporting.runs import flatten
from hexa.reporting.tables import format_passes
from hexa.run.build import (
    Machine,
    backbone_of,
    branch_notes,
    build_loader,
    build_method,
    build_objective,
    build_optimizer,
    fingerprint,
    kernels,
    open_images,
    remembering,
    setting_of,
    settled,
)
from hexa.run.folder import is_ours, mine, note, stopping_well, way_on
from hexa.run.monitor import KnnMonitor, without_holdout
from hexa.run.names import BACKBONE, BEST, CHECKPOINTS, CONFIG, REPORT
from hexa.runtime import checkpoints, processes
from hexa.runtime.console import Console, Reporter, one_line
from hexa.runtime.files import write_whole
from hexa.runtime.packages import resume_command
from hexa.training import trackers
from hexa.training.journal import METRICS, TENSORBOARD, Journal, write_environment
from hexa.training.monitor import Scoring, Watch
from hexa.training.state import restore
from hexa.training.trackers import TensorBoard, Tracker
from hexa.training.trainer import Trainer
from hexa.weights.pretrained import Backbone, load_backbone, serialized


def pretrain(
    experiment: Experiment, out: Path | str | None = None, *, console: Console | None = None
) -> Path:
    """Run an experiment in the folder `out` (default: runs/RECIPE), and return the folder.

    Mistakes in the experiment are reported before the folder is created. Under torchrun, every process calls this
    function; if torchrun restarts the processes (--max-restarts), the run continues from the last checkpoint. console:
    output for progress (default: standard error). Raises UserError, Interrupted (after a signal, once the run is
    saved), NonFiniteError and ProcessEnded.
    """
    folder = Path(out) if out else Path("runs") / experiment.recipe.rpartition(":")[2]
    notes: list[str] = []
    with mine(folder, notes.append) as is_main:
        return _carry_out(experiment, folder, console, is_main and is_ours(folder), notes)


def resume(run: Path | str, *, console: Console | None = None) -> Path:
    """Resume a run exactly where it stopped, from its newest intact checkpoint, and return its folder.

    The result is bit-identical to an uninterrupted run (on a GPU, with training.deterministic). For a finished run, only
    missing results are written. Raises the errors of `pretrain`.
    """
    folder = Path(run)
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder}: no run to resume ({CONFIG} is missing); give the run folder of hexa pretrain"
        )
    notes: list[str] = []
    with mine(folder, notes.append):
        return _carry_out(experiments.load(folder / CONFIG), folder, console, True, notes)


def _carry_out(
    experiment: Experiment, folder: Path, console: Console | None, resumed: bool, notes: list[str]
) -> Path:
    machine = Machine.of(experiment)
    processes.initialize(machine.device)
    failed = True
    try:
        console = (console or Console(stderr=True)) if processes.is_main() else None
        resumed = processes.any_of(resumed, machine.device)
        # fork_rng restores the random state of the caller
        with kernels(experiment.training.deterministic), torch.random.fork_rng(devices=[]):
            _Session(experiment, folder, console, machine, resumed).run(notes)
        failed = False
        return folder
    except processes.ProcessEnded as error:
        raise processes.ProcessEnded(
            f"{error}; {way_on(folder)}", error.speaks
        ) from error.__cause__
    except Exception as error:
        if experiment.training.compile and type(error).__module__.startswith(
            ("torch._dynamo", "torch._inductor")
        ):
            why = str(error).strip().splitlines()[0][:200]
            raise UserError(
                f"training.compile: torch cannot compile on this machine ({why}); set 'compile: false' in {folder / CONFIG}, then continue with: {resume_command(folder)}"
            ) from None
        raise
    finally:
        # a trainer and its hooks form reference cycles; the collection frees images and weights
        gc.collect()
        processes.shutdown(failed)


@dataclass
class _Session:
    """The part of one process in a run, until the run ends or stops. console: None except on rank 0."""

    experiment: Experiment
    folder: Path
    console: Console | None
    machine: Machine
    resumed: bool

    def run(self, warnings: list[str]) -> None:
        """Build everything, train, and write the results. warnings: earlier warnings, for the log."""
        experiment = self.experiment
        trackers.check(experiment.training.tracker)
        source = open_images(experiment)
        source, held = without_holdout(experiment, source)
        setting_of(experiment, len(source))  # raises before images are read, which may be slow
        self._show(_headline(experiment, source, self.machine, self.folder, self.resumed))
        self._show(*source.notes())
        self.experiment, settlements = settled(experiment, source)
        setting = setting_of(self.experiment, len(source))
        stored = self.resumed and bool(checkpoints.checkpoints(self.folder / CHECKPOINTS))
        if experiment.start.weights is not None:
            network = self.experiment.network
            self._show(
                f"initial weights: {experiment.start.weights}, {network.name} at "
                f"{self.experiment.views.size} px, mean {network.mean}, batch-norm statistics "
                f"{'frozen' if experiment.start.keeps_statistics else 'updated'}"
            )
        method = build_method(self.experiment, setting, self.machine, filled=not stored)
        self._show(*settlements, *method.notes(), *branch_notes(method, setting))
        with closing(build_loader(self.experiment, source, self.machine)) as loader:
            trainer = self._trainer(source, held, method, loader)
            warnings = [*warnings, *(self._continue(trainer) if self.resumed else ())]
            with stopping_well(self.folder):
                self._train(trainer, warnings, source.facts)

    def _show(self, *lines: str) -> None:
        if self.console is not None:
            for line in lines:
                self.console.print(one_line(line))

    def _trainer(
        self, source: Source, held: Source | None, method: Method, loader: PretrainLoader
    ) -> Trainer:
        experiment = self.experiment
        steps = loader.steps_per_epoch
        optimizer = build_optimizer(experiment, method, steps)
        if loader.sets is not None:
            loader.remember = remembering(experiment, method, self.machine)
        knn = KnnMonitor.of(experiment, source, method, self.machine, held)
        trainer = Trainer(
            build_objective(experiment, method, self.machine, steps=experiment.epochs * steps),
            optimizer,
            loader,
            experiment.training,
            self.machine.device,
            self.folder,
            Journal(self.folder if processes.is_main() else None, Reporter(self.console)),
            fingerprint=fingerprint(experiment, source),
            code=plugins.digest(experiment.recipe),
            scoring=Scoring(
                experiment.monitor,
                knn,
                keep=lambda: self._save(self._backbone(trainer), BEST),
            ),
            watch=Watch(method.chance_loss, knn.num_classes if knn is not None else None),
        )
        return trainer

    def _continue(self, trainer: Trainer) -> list[str]:
        """Load the newest intact checkpoint if there are checkpoints, and return warnings. Raises UserError."""
        warnings: list[str] = []
        folder = self.folder / CHECKPOINTS
        newest = checkpoints.newest_good_of_all(folder, warnings.append, trainer.device)
        if newest is None:
            if checkpoints.checkpoints(folder):  # only rank 0 warns
                raise UserError(
                    "; ".join(
                        [*warnings, f"no checkpoint of {self.folder} is intact; start a new run"]
                    )
                )
            return warnings
        path, state = newest
        try:
            return warnings + restore(trainer, state)
        except (UserError, torch.OutOfMemoryError):
            raise
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RuntimeError,
        ) as error:  # an intact checkpoint of another experiment
            raise UserError(
                f"{path} belongs to another experiment ({reason(error)}); start a new run"
            ) from error

    def _train(self, trainer: Trainer, warnings: list[str], data: dict[str, Any]) -> None:
        """Train from the current step to the end, and write all files of the run.

        data: facts about the images, for environment.json.
        """
        step = trainer.step
        folder = self.folder
        journal = trainer.journal
        if processes.is_main():
            # environment.json comes first, because it identifies the owner of the folder
            after = step if self.resumed else None
            write_environment(folder, trainer.device, self.machine.precision, after, data)
            note(self.experiment.data)
            if not self.resumed:
                # removes the journal of a run that ended before its first checkpoint
                (folder / METRICS).unlink(missing_ok=True)
                shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)
                experiments.dump(self.experiment, folder / CONFIG)
        journal.open(step, self._trackers(trainer, warnings))
        try:
            journal.write("resume" if self.resumed else "start", step)
            if self.resumed:
                journal.reporter.say(f"resuming after step {step} of {trainer.total_steps}")
            trainer.warn(warnings)
            trainer.run()
            if processes.is_main():
                self._finish(trainer)
        finally:
            journal.close()
        processes.barrier()

    def _trackers(self, trainer: Trainer, warnings: list[str]) -> list[Tracker]:
        """Return the trackers of rank 0. A tracker that cannot start stops a new run, but not a resumed run."""
        begun: list[Tracker] = []
        training = self.experiment.training
        is_main = processes.is_main()
        problem = None
        if is_main and training.tensorboard:
            begun.append(TensorBoard(self.folder / TENSORBOARD, trainer.step))
        if is_main and training.tracker is not None:
            try:
                fields = flatten(self.experiment.model_dump(mode="json"))
                begun.append(trackers.start(self.folder, fields, self.resumed))
            except ConfigError as error:
                problem = error
        if processes.any_of(problem is not None, trainer.device) and not self.resumed:
            raise problem or field_error(
                "training.tracker", "the tracker cannot start"
            )  # rank 0 reports the reason
        if problem is not None:
            warnings.append(f"{problem}; the run continues without the tracker")
        return begun

    def _backbone(self, trainer: Trainer) -> Backbone:
        method = trainer.objective.method
        images = trainer.loader.source
        return backbone_of(self.experiment, method, trainer.step, trainer.epoch, images)

    def _save(self, backbone: Backbone, name: str) -> None:
        """Save a backbone into the folder of the run; a removed folder is not created again."""
        write_whole(
            self.folder / name, lambda file: file.write(serialized(backbone)), make_folders=False
        )

    def _finish(self, trainer: Trainer) -> None:
        """Write the backbone and the report, on rank 0."""
        folder = self.folder
        # a resumed run may have turned `keep_best` off
        keeps = self.experiment.monitor.keep_best is not None
        kept = keeps and trainer.scoring.value is not None
        self._save(load_backbone(folder / BEST) if kept else self._backbone(trainer), BACKBONE)
        sets = {} if trainer.loader.sets is None else {"view_sets": trainer.loader.sets}
        trainer.journal.write("end", trainer.step, **sets)
        if self.experiment.training.report:
            with trainer.journal.looking(f"writing {REPORT}", trainer.step):
                from hexa.reporting.report import report
                from hexa.run.visualize import store_pictures

                trainer.warn(store_pictures(folder, self.experiment.data))
                report([folder], folder / REPORT)


def _headline(
    experiment: Experiment, source: Source, machine: Machine, folder: Path, resumed: bool
) -> str:
    hard = "".join(
        f" + {name}" + (f" from {config.start:.0%} of training" if config.start else "")
        for name, config in experiment.hard_examples.items()
        if config.weight > 0
    )
    out = f"resumed in {folder}" if resumed else f"into {folder}"
    length = format_passes(experiment.epochs, experiment.start.view_sets)
    if experiment.max_steps is not None:
        length += f", at most {experiment.max_steps:,} steps"
    return (
        f"{experiment.recipe}: {experiment.method.name}{hard} on {source!r}, {length}, "
        f"{machine.device.type} {machine.precision}, {out}"
    )
