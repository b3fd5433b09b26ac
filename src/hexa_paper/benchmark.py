"""Measures what hard examples cost on this machine: all schemes in one run, interleaved, medians of several rounds."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.table import Table

from hexa.config import ConfigError
from hexa.core import Batch
from hexa.data import ArraySource
from hexa.objective import Objective
from hexa.recipes.experiment import Experiment, override
from hexa.run import build
from hexa.run.build import Machine
from hexa.runtime.console import Progress, silent
from hexa.runtime.random import Stream
from hexa.training.journal import environment
from hexa.training.step import prepared, step
from hexa_paper import schemes as schemes_of_paper

#: The schemes of the ablation by name: their terms beside the clean one.
SCHEMES = {scheme.name: scheme.terms for scheme in schemes_of_paper.SCHEMES.values()}
NAIVE = ("std+adv", "std+adv+cmx")
#: Shortest measurement in seconds, so that on a fast device launches do not dominate.
LEAST_SECONDS = 0.3
#: Rounds over all schemes.
ROUNDS = 3
#: Images of a batch on a CPU, unless a number is given.
_CPU_BATCH = 32
#: Images of a batch, and steps, of the short timing of a plan.
_SHORT_BATCH = 64
_SHORT_STEPS = 3
#: Batches of images that are drawn.
_BATCHES_OF_DATA = 4
#: The number of the first step, after every warm-up (PCL-v2's, a queue to fill, frozen prototypes).
_SETTLED = 10**9
#: Entries of the environment that a benchmark keeps.
_MACHINE = ("device", "device_type", "platform", "threads", "cores", "versions", "commit", "time")


def benchmark(
    experiment: Experiment, repeats: int = ROUNDS, *, progress: Progress = silent
) -> dict[str, Any]:
    """Measure an experiment's method, network, views and batch size in every scheme, on random images of that size.

    Steps and batches are those of a run: the few images are kept on the device unless they exceed
    training.resident_limit_bytes. Returns {"machine", "recipe", "precision", "schemes": {name:
    {"images_per_second", "relative_cost", "peak_memory_bytes"}}, "naive": the same for steps in which generation is a
    separate pass, "views_images_per_second", "end_to_end_images_per_second"}. relative_cost is the time over that of
    scheme i; memory is the GPU allocator's, None on a CPU. End to end is the experiment's own scheme. Hard examples that the method does not support are left out.

    repeats: rounds over all schemes, of whose times the medians are taken.
    """
    machine = Machine.of(experiment)
    size = experiment.batch_size
    on_gpu = machine.device.type == "cuda"
    peaks: dict[str, int | None] = {}
    counts: dict[str, int] = {}
    with build.kernels(experiment.training.deterministic):
        bench = Bench(experiment, machine)
        work = bench.work()
        for name, piece in work.items():
            piece()  # compiles kernels, chooses algorithms, fills caches
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(machine.device)
            once = timed(piece, 1)
            peaks[name] = torch.cuda.max_memory_allocated(machine.device) if on_gpu else None
            counts[name] = max(1, round(LEAST_SECONDS / once))
        measured: dict[str, list[float]] = {name: [] for name in work}
        for done in range(repeats):
            for number, (name, piece) in enumerate(work.items(), done * len(work) + 1):
                measured[name].append(timed(piece, counts[name]))
                progress("measuring", number, repeats * len(work))
    seconds = {name: statistics.median(values) for name, values in measured.items()}
    rates = {name: round(size / median, 1) for name, median in seconds.items()}

    def row(name: str) -> dict[str, float | int | None]:
        return {
            "images_per_second": rates[name],
            "relative_cost": round(seconds[name] / seconds["std"], 4),
            "peak_memory_bytes": peaks[name],
        }

    about = environment(machine.device, machine.precision)
    sizes = {"batch_size": size, "image_size": experiment.views.size, "repeats": repeats}
    return {
        "machine": {name: about[name] for name in _MACHINE} | sizes,
        "recipe": experiment.recipe,
        "precision": machine.precision,
        "schemes": {name: row(name) for name in bench.schemes},
        "naive": {name: row(f"naive {name}") for name in NAIVE if f"naive {name}" in seconds},
        "views_images_per_second": rates["views"],
        "end_to_end_images_per_second": rates["end to end"],
    }


def fitted(experiment: Experiment) -> Experiment:
    """The experiment with a batch that a CPU measures in two minutes; on a GPU its own."""
    size = min(experiment.batch_size, _CPU_BATCH)
    if Machine.of(experiment).device.type == "cuda":
        return experiment
    return override(experiment, {"batch_size": size})


def seconds_of_image(experiment: Experiment) -> float:
    """Seconds of one image in a plain step and in the views, from one short timing."""
    size = min(experiment.batch_size, _SHORT_BATCH)
    try:
        experiment = override(experiment, {"batch_size": size})
    except ConfigError:  # not every method takes every size
        size = experiment.batch_size
    with build.kernels(experiment.training.deterministic):
        work = Bench(experiment, Machine.of(experiment), plain=True).work()
        seconds = 0.0
        for name in ("std", "views"):
            work[name]()
            seconds += timed(work[name], _SHORT_STEPS)
    return seconds / size


def table(measured: dict[str, Any]) -> Table:
    """The result of a benchmark as a table for the terminal."""
    machine = measured["machine"]
    title = f"{measured['recipe']}, {machine['device']}, {measured['precision']}, batch {machine['batch_size']}"
    shown = Table("step", "images/s", "relative cost", "peak memory", title=title)
    rows = measured["schemes"] | {f"naive {name}": row for name, row in measured["naive"].items()}
    for name, row in rows.items():
        peak = row["peak_memory_bytes"]
        memory = f"{peak / 2**20:,.0f} MiB" if peak else "GPU only"
        rate = f"{row['images_per_second']:,.0f}"
        shown.add_row(name, rate, f"{row['relative_cost']:.2f}", memory)
    shown.add_row("views alone", f"{measured['views_images_per_second']:,.0f}")
    shown.add_row("end to end", f"{measured['end_to_end_images_per_second']:,.0f}")
    return shown


def _hard_examples(experiment: Experiment, terms: Iterable[str]) -> dict[str, Any]:
    """The hard examples of a scheme, with the fields of the experiment's own of that kind, or the defaults."""
    attack, mixing = (
        schemes_of_paper.own_fields(experiment, kind) for kind in ("adversarial", "cutmix")
    )
    every = {"adv": attack, "cmx": mixing, "cmxA": {**mixing, "source": "adv"}}
    return {term: {**every[term], "weight": 1.0, "fraction": 1.0} for term in terms}


class Bench:
    """One method and one optimizer that all schemes train in turn, each with its own objective.

    plain: without hard examples.
    """

    def __init__(self, experiment: Experiment, machine: Machine, plain: bool = False) -> None:
        data_size = _BATCHES_OF_DATA * experiment.batch_size
        size = experiment.views.size
        shape = (data_size, experiment.network.channels, max(1, size // 4), max(1, size // 4))
        coarse = torch.rand(shape, generator=Stream(experiment.seed).child("benchmark").generator())
        images = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")
        source = ArraySource((255 * images).to(torch.uint8), name="drawn")
        self.experiment, _ = build.settled(experiment, source)
        self.schemes = self._possible(plain)
        # the experiment's own terms may need further batch-norms
        hard = self.experiment.model_dump(mode="json")["hard_examples"]
        hard |= _hard_examples(
            self.experiment, dict.fromkeys(term for name in self.schemes for term in SCHEMES[name])
        )
        # a low rate, so that the measurement does not depend on its length
        changes = {"hard_examples": hard, "objective.split": False}
        changes |= dict.fromkeys(("optimizer.learning_rate", "optimizer.other_rate"), 1e-6)
        needed = override(self.experiment, changes)
        setting = build.roomy_setting(needed, data_size)
        self.machine = machine
        self.method = build.build_method(needed, setting, machine, filled=False)
        self.images = source.images[: experiment.batch_size].to(machine.device)
        self.loader = build.build_loader(self.experiment, source, machine)
        self.optimizer = build.build_optimizer(needed, self.method, self.loader.steps_per_epoch)
        batches = itertools.chain.from_iterable(map(self.loader.epoch, itertools.count()))
        self.batches = (replace(batch, step=_SETTLED + batch.step) for batch in batches)
        self.batch = next(self.batches)
        self.objectives = {name: self._objective(made) for name, made in self.schemes.items()}
        for name in NAIVE:
            if name in self.schemes:
                self.objectives[f"naive {name}"] = self._objective(
                    self.schemes[name], share_gradients=False
                )
        self.own = self._objective(self.experiment)
        self.steps = 0

    def _possible(self, plain: bool) -> dict[str, Experiment]:
        """The experiment in every scheme whose hard examples its method supports."""
        whole = {"objective.split": False, "objective.clean_fraction": 1.0}
        made = {}
        for name, terms in SCHEMES.items():
            changes = {"hard_examples": _hard_examples(self.experiment, terms), **whole}
            scheme = override(self.experiment, changes)
            if not (plain and terms) and not build.refusals(scheme):
                made[name] = scheme
        return made

    def _objective(self, experiment: Experiment, share_gradients: bool = True) -> Objective:
        return build.build_objective(
            experiment, self.method, self.machine, share_gradients=share_gradients
        )

    def work(self) -> dict[str, Callable[[], None]]:
        """Everything that is timed, by name."""
        work: dict[str, Callable[[], None]] = {
            name: partial(self._train, one) for name, one in self.objectives.items()
        }
        end_to_end = {"end to end": lambda: self._train(self.own, next(self.batches))}
        return work | {"views": self._views} | end_to_end

    def _next(self) -> Batch:
        self.steps += 1
        return replace(
            self.batch, stream=Stream(1).child("step", self.steps), step=_SETTLED + self.steps
        )

    def _train(self, objective: Objective, batch: Batch | None = None) -> None:
        batch = prepared(batch or self._next(), self.experiment.training.channels_last)
        step(
            objective, self.optimizer, batch, self.optimizer.total_steps - 1
        )  # the last, in which all layers learn

    def _views(self) -> None:
        self.loader.views(self.images, self._next().stream, slice(0, len(self.images)))


def timed(work: Callable[[], None], count: int) -> float:
    """Seconds of one piece of work, the mean of `count`, until a GPU has finished it."""
    # not the timer of torch.utils.benchmark, which imports a compiler that may warn
    wait = torch.get_device_module("cuda" if torch.cuda.is_available() else "cpu").synchronize
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        work()
    wait()
    return (time.perf_counter() - begin) / count
