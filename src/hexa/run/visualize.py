"""See the hard examples that a run, or a recipe's random network, makes of real images."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hexa.config import ConfigError, UserError, reason, some
from hexa.core import Batch, Method
from hexa.data import Source, open_source
from hexa.data.loading.workers import alike
from hexa.data.sources.decode import DecodeError
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
from hexa.runtime.progress import Progress, silent
from hexa.runtime.random import Stream

#: Images that are made together: enough for batch statistics like those of training, few enough to be quick.
_BATCH_SIZE = 64
#: Images that a report shows.
_REPORTED = 4


def visualize(
    target: Path | str | Experiment,
    data: str | None,
    out: Path | str,
    *,
    gain: float | None = None,
    num_images: int = 8,
    seed: int = 0,
    opens_own: bool = True,
    notes: list[str] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write a PNG, one row per image: its view, the magnified perturbation, the adversarial and the cut-mixed view.

    target: a run folder, whose newest checkpoint is taken, or a recipe's name or an experiment, with random weights.
    data: a source; None for the experiment's own. Returns `out`, written atomically.
    opens_own: see Look.at. gain, num_images, seed: see Look.gallery. notes: gets sentences on the images, also on those
    that cannot be read. progress: told of stages.
    Raises UserError: an unknown target or source, a run without an intact checkpoint, or whose method is in a file that
    has not been imported.
    """
    progress("opening the images", 0, 0)
    look = Look.at(target, data, opens_own)
    notes = [] if notes is None else notes
    notes += look.source.notes()
    progress("making hard examples", 0, 0)
    made = look.gallery(num_images, gain=gain, seed=seed, notes=notes)
    progress("drawing", 0, 1)
    return save(made.draw(side=SIDE), out)


@dataclass(frozen=True)
class Look:
    """A run, or a recipe with random weights, ready to be looked at: its method, and images."""

    experiment: Experiment
    """Its configuration, with the hard examples that are trained on and their sources only."""
    method: Method
    """The method with the weights of the newest checkpoint, or random ones."""
    machine: Machine
    """Where the method is."""
    source: Source
    """The images to look at."""
    step: int
    """The step of the checkpoint; 0 for a recipe."""
    known: bool
    """Whether these are the images that the method was trained on."""

    @classmethod
    def at(cls, target: Path | str | Experiment, data: str | None, opens_own: bool = True) -> Look:
        """Open a target, with the images of `data` or its own. Raises UserError as `visualize` does.

        opens_own: if false, files that only a run's configuration names are not opened, unless a training of this user
        opened them: a stranger may have written it.
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
        # what a method reserves follows from the data it was trained on, which may be more than these images
        trained_on = source
        if data is not None and opens_own:
            with suppress(UserError):
                trained_on = open_images(experiment)
        try:
            setting = setting_of(experiment, max(len(trained_on), experiment.batch_size))
            method = build_method(experiment, setting, machine, filled=False)
            step = _load(method, folder, machine.device)
        except torch.OutOfMemoryError:
            raise
        except (ConfigError, RuntimeError) as error:
            raise UserError(
                f"{folder}: its weights do not fit {len(trained_on):,} images ({reason(error)}); give the images that it "
                "was trained on with --data"
            ) from None
        return cls(experiment, method.train(), machine, source, step, known=data is None)

    def gallery(
        self,
        num_images: int = 8,
        *,
        gain: float | None = None,
        seed: int = 0,
        notes: list[str] | None = None,
    ) -> Gallery:
        """The views of `num_images` images and every hard example made of them.

        Columns follow from the hard examples of the configuration, whatever they are; without any the views of the
        batch are shown.
        gain: magnifies the perturbation around mid-grey; None chooses.
        seed: of the images, their views and their partners.
        notes: gets a line on images that could not be read and were passed over.
        """
        count = max(num_images, min(self.experiment.batch_size, _BATCH_SIZE))
        batch = self.batch(count, Stream(seed).child("visualize"), notes=notes)
        return gallery(self.objective(), batch, num_images, gain)

    def objective(self, hard_examples: Mapping[str, Mapping[str, Any]] | None = None) -> Objective:
        """The objective of the experiment, or of other hard examples (fields by name) around its method.

        Batch-norms are those the method was trained with: others' branches must be among them, as main always is.
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
        """`count` images drawn by the stream, in views of it, or of another stream: the same images again.

        notes: gets a line on images that cannot be read, for which others stand.
        """
        recipe = Views(self.experiment.views)
        device = self.machine.device
        source = self.source
        made = views or stream
        order = torch.randperm(len(source), generator=stream.child("order").generator()).tolist()
        numbers = recipe.draw(made, slice(0, count))  # [V, count, P]
        crops: list[list[torch.Tensor]] = []
        index: list[int] = []
        problems: list[str] = []
        while len(crops) < count:  # a small source repeats
            position = order[len(crops) % len(order)]
            try:
                crops.append(cut_crops(source, position, recipe, numbers[:, len(crops)]))
                index.append(position)
            except DecodeError as error:
                order.remove(position)
                problems.append(f"{source.paths[position]}: {error}")
                if not order:
                    raise UserError(
                        f"data '{source.name}': none of its images can be read; the last was "
                        f"{problems[-1]}"
                    ) from None
        if problems and notes is not None:
            notes.append(
                f"{len(problems)} images could not be read and were skipped: {some(problems, '; ')}"
            )
        stacked = tuple(torch.stack(alike(view)).to(device) for view in zip(*crops, strict=True))
        places = torch.tensor(index, device=device)
        return replace(
            Batch(recipe.finish(stacked, made), places, made), step=self.step, known=self.known
        )


def _experiment_of(target: Path | str | Experiment) -> tuple[Experiment, Path | None]:
    """The experiment, and the run folder that its weights come from."""
    from hexa.recipes import plugins

    if isinstance(target, Experiment):
        return target, None
    folder = Path(target)
    if isinstance(target, Path) or folder.is_dir():
        return plugins.load(folder / CONFIG), folder
    return plugins.experiment_of(target), None


def is_known(data: str) -> bool:
    """True for sources without a path, such as digits, and those that this user has trained on."""
    return paths.parts(data).body in SOURCES or note_of(data).exists()


def own_images(run: object, data: str) -> UserError:
    """The error for images that only a run's configuration names."""
    return UserError(
        f"{run}: its configuration names the images '{data}', which are opened only on request; "
        f"add --data {shlex.quote(data)}, or --trust if the run is yours"
    )


def _to_look_at(experiment: Experiment) -> Experiment:
    """On any device there is, uncompiled, with the hard examples that are trained on and their sources only."""
    wanted = needed(experiment.hard_examples)
    kept = {name: hard for name, hard in experiment.hard_examples.items() if name in wanted}
    changes = {"device": "auto", "compile": False, "num_workers": 0}
    training = experiment.training.model_copy(update=changes)
    return experiment.model_copy(update={"training": training, "hard_examples": kept})


def _load(method: Method, folder: Path, device: torch.device) -> int:
    """Load the newest checkpoint; returns its step."""
    problems: list[str] = []
    newest = checkpoints.newest_good(folder / CHECKPOINTS, problems.append, device)
    if newest is None:
        reason = f" ({some(problems, '; ')})" if problems else ""
        raise UserError(
            f"{folder}: has no intact checkpoint{reason}; 'hexa resume {folder}' writes one"
        )
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
    """Make the picture of a run's report of these images, GALLERY in the folder.

    Returns a line if it cannot be made: a report of the rest is better than none.
    """
    if processes.world_size() > 1:
        return ["pictures are made by a single process; hexa report RUN --data SOURCE adds them"]
    try:
        made = Look.at(folder, data, opens_own=False).gallery(_REPORTED)
        save(made.draw(side=SIDE), folder / GALLERY)
    except Exception as error:
        return [f"no pictures: {reason(error)}"]
    return []
