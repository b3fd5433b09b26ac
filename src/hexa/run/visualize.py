"""Draws the hard examples of a run, or of a recipe with random weights, on real images."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hexa.config import ConfigError, UserError, reason, some
from hexa.core import Batch, Method
from hexa.data import Source, open_source
from hexa.data.loading.store import describe_problems, readable
from hexa.data.loading.workers import alike
from hexa.data.sources.opening import SOURCES
from hexa.data.views.crops import cut_crops
from hexa.data.views.making import Views
from hexa.objective import Objective
from hexa.objective.shares import needed
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment
from hexa.reporting.gallery import gallery
from hexa.reporting.pictures import Gallery
from hexa.reporting.report import GALLERY
from hexa.reporting.style import SIDE, save
from hexa.reporting.tables import counted
from hexa.run.build import (
    Machine,
    build_method,
    build_objective,
    open_images,
    roomy_setting,
    setting_of,
    settled,
)
from hexa.run.folder import note_of
from hexa.run.names import CHECKPOINTS, CONFIG
from hexa.runtime import checkpoints, paths, processes
from hexa.runtime.console import Progress, silent
from hexa.runtime.packages import resume_command
from hexa.runtime.random import Stream

#: Batch size: enough images for batch statistics close to training, few enough to be quick.
_BATCH_SIZE = 64
#: Number of images in a report.
_REPORTED = 4


def visualize(
    target: Path | str | Experiment,
    data: str | None,
    out: Path | str,
    *,
    num_images: int = 8,
    seed: int = 0,
    opens_own: bool = True,
    notes: list[str] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write a PNG, one row per image: view, magnified perturbation, adversarial view, cut-mixed view; return `out`.

    target: a run folder, whose newest checkpoint is loaded, or the name of a recipe or an experiment, with random
    weights. data: a source (default: that of the experiment). opens_own: see Look.at. num_images, seed: see
    Look.gallery. notes: list that receives notes on the images. progress: callback for stages. The file is written
    atomically. Raises UserError for an unknown target or source, for a run without an intact checkpoint, and for a run
    whose method is in a file that has not been imported.
    """
    progress("opening the images", 0, 0)
    look = Look.at(target, data, opens_own)
    notes = [] if notes is None else notes
    notes += look.source.notes()
    progress("making hard examples", 0, 0)
    made = look.gallery(num_images, seed=seed, notes=notes)
    progress("drawing", 0, 1)
    return save(made.draw(side=SIDE), out)


@dataclass(frozen=True)
class Look:
    """A run, or a recipe with random weights: its method and images to draw."""

    experiment: Experiment
    """Configuration, restricted to hard examples with a weight and their sources."""
    method: Method
    """Method with the weights of the newest checkpoint, or with random weights."""
    machine: Machine
    """Device and precision of the method."""
    source: Source
    """Images to draw."""
    step: int
    """Step of the checkpoint; 0 for a recipe."""
    known: bool
    """True if the method was trained on these images."""

    @classmethod
    def at(cls, target: Path | str | Experiment, data: str | None, opens_own: bool = True) -> Look:
        """Open a target, with the images of `data` (default: those of the target). Raises UserError like `visualize`.

        opens_own: if False, files that only a run's configuration names are not opened, because a stranger may have
        written the configuration. Files that a training of this user has opened are an exception.
        """
        experiment, folder = _experiment_of(target)
        opens_own = opens_own or folder is None
        if not opens_own and data is None and not is_known(experiment.data):
            raise own_images(folder, experiment.data)
        experiment = _to_look_at(experiment)
        if data == experiment.data:
            data = None
        if data is None:
            source = open_images(experiment)
        else:
            most = experiment.training.max_image_pixels
            source = open_source(data, None, most, experiment.network.channels)
        experiment, _ = settled(experiment, source)
        machine = Machine.of(experiment)
        if folder is None:
            setting = roomy_setting(experiment, max(len(source), experiment.batch_size))
            method = build_method(experiment, setting, machine)
            return cls(experiment, method.train(), machine, source, 0, known=False)
        # the buffers of a method depend on the number of its training images, which may exceed the images to draw
        trained_on = source
        if data is not None and opens_own:
            with suppress(UserError):
                trained_on = open_images(experiment)
        try:
            setting = setting_of(experiment, max(len(trained_on), experiment.batch_size))
            method = build_method(experiment, setting, machine, filled=False)
            step = _load(method, folder)
        except torch.OutOfMemoryError:
            raise
        except (ConfigError, RuntimeError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: its weights do not fit {len(trained_on):,} images ({reason(error)}); give the training images "
                "of the run by --data"
            ) from None
        return cls(experiment, method.train(), machine, source, step, known=data is None)

    def gallery(
        self,
        num_images: int = 8,
        *,
        seed: int = 0,
        notes: list[str] | None = None,
    ) -> Gallery:
        """Return a figure of the views of `num_images` images and of every hard example of the configuration.

        Without hard examples, the figure shows the views of the batch.
        seed: seed of images, views and partners for mixing.
        notes: list that receives a note on unreadable images.
        """
        count = max(num_images, min(self.experiment.batch_size, _BATCH_SIZE))
        batch = self.batch(count, Stream(seed).child("visualize"), notes=notes)
        return gallery(self.objective(), batch, num_images)

    def objective(self, hard_examples: Mapping[str, Mapping[str, Any]] | None = None) -> Objective:
        """Return the objective of the experiment, or the objective of other hard examples (fields by name).

        The method keeps the batch-norm branches of its training, so other hard examples may use only these branches.
        """
        experiment = self.experiment
        if hard_examples is not None:
            experiment = experiments.override(experiment, {"hard_examples": dict(hard_examples)})
        return build_objective(experiment, self.method, self.machine)

    def batch(
        self,
        count: int,
        stream: Stream,
        views: Stream | None = None,
        notes: list[str] | None = None,
    ) -> Batch:
        """Return a batch of `count` images, drawn by `stream`, in views drawn by `views` (default: `stream`).

        Unreadable images are replaced by other images. notes: list that receives a note on them.
        """
        recipe = Views(self.experiment.views)
        device = self.machine.device
        source = self.source
        made = views or stream
        order = torch.randperm(len(source), generator=stream.child("order").generator()).tolist()
        numbers = recipe.draw(made, slice(0, count))  # [V, count, P]
        crops: list[list[torch.Tensor]] = []
        index: list[int] = []
        problems: list[tuple[int, str]] = []
        for row in range(count):
            wanted = order[row % len(order)]  # a small source repeats its images
            cut = partial(cut_crops, source, views=recipe, numbers=numbers[:, row])
            position, of_image = readable(source, wanted, cut, problems)
            index.append(position)
            crops.append(of_image)
        if problems and notes is not None:
            listed = describe_problems(source, dict(problems))
            notes.append(
                f"{counted(len(listed), 'unreadable image')} skipped: {some(listed, '; ')}"
            )
        stacked = tuple(torch.stack(alike(view)).to(device) for view in zip(*crops, strict=True))
        places = torch.tensor(index, device=device)
        return replace(
            Batch(recipe.finish(stacked, made), places, made), step=self.step, known=self.known
        )


def _experiment_of(target: Path | str | Experiment) -> tuple[Experiment, Path | None]:
    """Return the experiment, and the run folder of its weights; None for a recipe."""
    from hexa.recipes import plugins

    if isinstance(target, Experiment):
        return target, None
    folder = Path(target)
    if isinstance(target, Path) or folder.is_dir():
        return plugins.load(folder / CONFIG, within=folder), folder
    return plugins.experiment_of(target), None


def is_known(data: str) -> bool:
    """True for sources without a path, such as digits, and for sources that this user has trained on."""
    return paths.parts(data).body in SOURCES or note_of(data).exists()


def own_images(run: object, data: str) -> UserError:
    """Return the error for images that only a run's configuration names."""
    return UserError(
        f"{run}: its configuration names the images '{data}', which are opened only on request; "
        f"add --data {shlex.quote(data)}, or --trust if the run is yours"
    )


def _to_look_at(experiment: Experiment) -> Experiment:
    """Return the experiment for any device, uncompiled, with only those hard examples that have a weight, and sources."""
    wanted = needed(experiment.hard_examples)
    kept = {name: hard for name, hard in experiment.hard_examples.items() if name in wanted}
    changes = {"device": "auto", "compile": False, "num_workers": 0}
    training = experiment.training.model_copy(update=changes)
    return experiment.model_copy(update={"training": training, "hard_examples": kept})


def _load(method: Method, folder: Path) -> int:
    """Load the newest checkpoint and return its step."""
    problems: list[str] = []
    newest = checkpoints.newest_good(folder / CHECKPOINTS, problems.append)
    if newest is None:
        remedy = f"continue it with: {resume_command(folder)}"
        if problems:
            remedy = f"start a new run ({some(problems, '; ')})"
        raise UserError(f"{folder} has no intact checkpoint; {remedy}")
    state = newest[1].get("method")
    step = newest[1].get("step")
    if (
        not isinstance(state, dict)
        or not isinstance(step, int)
        or not all(isinstance(name, str) for name in state)
    ):
        raise UserError(f"{newest[0]}: the checkpoint holds no method")
    method.restore(state)
    return step


def store_pictures(folder: Path, data: str) -> list[str]:
    """Draw the figure of hard examples for the report of a run: GALLERY in the folder.

    If this fails, return a note, so that the report is still written.
    """
    if processes.world_size() > 1:
        return [
            "several processes draw no hard examples; add them by hexa report RUN --data SOURCE"
        ]
    try:
        made = Look.at(folder, data, opens_own=False).gallery(_REPORTED)
        save(made.draw(side=SIDE), folder / GALLERY)
    except Exception as error:
        return [f"the hard examples could not be drawn: {reason(error)}"]
    return []
