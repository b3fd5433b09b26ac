"""Measures what hard examples cost on this machine: all schemes in one run, interleaved, medians of several repeats."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from hexa.assembly.build import (
    Machine,
    build_method,
    build_objective,
    build_optimizer,
    kernels,
    refusals,
    roomy_setting,
    settled,
)
from hexa.core import MAIN, STD, Batch, Objective
from hexa.core import schemes as published
from hexa.data import ArraySource
from hexa.data.loaders import PretrainLoader
from hexa.data.views import Views
from hexa.experiment import Experiment, override
from hexa.runtime.random import Stream
from hexa.session.memory import MEASURE, peak_bytes
from hexa.training.journal import environment

#: The schemes of the ablation by name: their terms beside the clean one.
SCHEMES = {scheme.name: scheme.terms for scheme in published.SCHEMES.values()}
NAIVE = ("std+adv", "std+adv+cmx")
#: Shortest measurement in seconds, so that on a fast device launches do not dominate.
LEAST_SECONDS = 0.3
_BATCHES_OF_DATA = 4
#: The number of the first step, after every warm-up (PCL-v2's, a queue to fill, frozen prototypes).
_SETTLED = 10**9


def benchmark(
    experiment: Experiment,
    repeats: int = 5,
    *,
    schemes: Collection[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure an experiment's method, network, views and batch size in every scheme, on random images of that size.

    The images are kept on the device, as those of any small source. Returns {"machine", "recipe", "precision",
    "query_share", "schemes": {name: {"images_per_second", "relative_cost", "peak_memory_bytes"}}, "naive": the same
    for steps in which generation is a separate pass, "views_images_per_second", "end_to_end_images_per_second"}.
    relative_cost is the time over that of scheme i; query_share the time of the query's forward, loss and backward
    over that of the plain step, so that with shared gradients std+adv should cost 1 + q (REFERENCE §6.2). End to end is
    the experiment's own scheme; "own" is its step, if its hard examples are those of no scheme. Hard examples that the
    method does not support are left out. schemes: measure only these and the plain one, and nothing naive. say: takes
    a line for each scheme after its first measurement.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be ≥ 1, got {repeats}")
    machine, size = Machine.of(experiment), experiment.batch_size
    about = environment(machine.device, machine.precision)
    if alone := experiment.start.freeze_backbone:
        say(f"not measured: the first {alone} epochs, in which only the head learns, are faster")
    with kernels(experiment.training.deterministic):
        bench = Bench(experiment, machine, schemes)
        work = bench.work()
        counts, peaks, plain = dict[str, int](), dict[str, int](), 0.0
        for name, step in work.items():
            step()  # compiles kernels, chooses algorithms, fills caches
            once = timed(machine.device, step, 1)
            counts[name], plain = max(1, round(LEAST_SECONDS / once)), plain or once
            if name in bench.objectives:
                peaks[name] = peak_bytes(step, machine.device, bench.standing())
                memory = f"{peaks[name] / 2**20:,.0f} MiB"
                say(f"{name}: {size / once:,.0f} images/s, {once / plain:.2f} × the plain step, {memory}")
        measured: dict[str, list[float]] = {name: [] for name in work}
        for repeat in range(repeats):
            for number, (name, step) in enumerate(work.items()):
                measured[name].append(timed(machine.device, step, counts[name]))
                if progress is not None:
                    progress("measuring", repeat * len(work) + number + 1, repeats * len(work))
    seconds = {name: statistics.median(values) for name, values in measured.items()}

    def row(name: str) -> dict[str, float | int]:
        return {
            "images_per_second": round(size / seconds[name], 1),
            "relative_cost": round(seconds[name] / seconds["std"], 4),
            "peak_memory_bytes": peaks[name],
        }

    kept = ("device", "device_type", "platform", "threads", "cores", "versions", "commit", "time")
    return {
        "machine": {
            **{name: about[name] for name in kept},
            "batch_size": size,
            "image_size": experiment.views.size,
            "repeats": repeats,
            "memory_measure": MEASURE[machine.device.type],
        },
        "recipe": experiment.recipe,
        "precision": machine.precision,
        "query_share": round(seconds["query"] / seconds["std"], 4),
        "schemes": {name: row(name) for name in bench.schemes},
        "naive": {name: row(f"naive {name}") for name in NAIVE if f"naive {name}" in seconds},
        **({"own": row("own")} if "own" in seconds else {}),
        "views_images_per_second": round(size / seconds["views"], 1),
        "end_to_end_images_per_second": round(size / seconds["end to end"], 1),
    }


def table(measured: dict[str, Any]) -> Table:
    """The result of a benchmark as a table for the terminal."""
    machine, q = measured["machine"], measured["query_share"]
    title = f"{measured['recipe']}, {machine['device']}, {measured['precision']}, batch {machine['batch_size']}"
    shown = Table("step", "images/s", "relative cost", "by counting", "peak memory", title=title)
    for kind, prefix in (("schemes", ""), ("naive", "naive ")):
        for name, row in measured[kind].items():
            passes = 1 + q * (name.count("+") + (kind == "naive"))
            memory = f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB"
            speed, cost = f"{row['images_per_second']:,.0f}", f"{row['relative_cost']:.2f}"
            shown.add_row(prefix + name, speed, cost, f"{passes:.2f}", memory)
    if "own" in measured:
        row = measured["own"]
        speed, memory = f"{row['images_per_second']:,.0f}", f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB"
        shown.add_row("the recipe's own", speed, f"{row['relative_cost']:.2f}", "", memory)
    shown.add_row("views alone", f"{measured['views_images_per_second']:,.0f}", "", "", "")
    shown.add_row("end to end", f"{measured['end_to_end_images_per_second']:,.0f}", "", "", "")
    shown.caption = f"the query's share of the plain step is q = {q:.2f}; by counting: 1 + q for every further pass"
    return shown


def _hard_examples(experiment: Experiment, terms: Iterable[str]) -> dict[str, Any]:
    """The hard examples of a scheme, with the fields of the experiment's own of that kind, or the defaults."""

    def fields(kind: str) -> dict[str, Any]:
        own = (hard for hard in experiment.hard_examples.values() if hard.kind == kind and hard.source == STD)
        return next((hard.model_dump(mode="json") for hard in own), {"kind": kind})

    every = {"adv": fields("adversarial"), "cmx": fields("cutmix"), "cmxA": {**fields("cutmix"), "source": "adv"}}
    return {term: {**every[term], "weight": 1.0, "fraction": 1.0} for term in terms}


def possible(experiment: Experiment, only: Collection[str] | None = None) -> dict[str, Experiment]:
    """The experiment in every scheme whose hard examples its method supports. only: these and the plain one."""
    plain = {"objective.split": False, "objective.clean_fraction": 1.0}
    made = {
        name: override(experiment, {"hard_examples": _hard_examples(experiment, terms), **plain})
        for name, terms in SCHEMES.items()
        if only is None or name in {"std", *only}
    }
    return {name: scheme for name, scheme in made.items() if not refusals(scheme)}


def has_own(experiment: Experiment) -> bool:
    """Whether no scheme has the hard examples of an experiment, so that its own step gets a row."""
    hard = [example for example in experiment.hard_examples.values() if example.weight > 0]
    known = all(example.kind in ("adversarial", "cutmix") and example.fraction == 1 for example in hard)
    return bool(hard) and not (known and not experiment.objective.split)


class Bench:
    """One method and one optimizer that all schemes train in turn, each with its own objective."""

    def __init__(self, experiment: Experiment, machine: Machine, only: Collection[str] | None = None) -> None:
        data_size, size = _BATCHES_OF_DATA * experiment.batch_size, experiment.views.size
        shape = (data_size, experiment.network.channels, max(1, size // 4), max(1, size // 4))
        coarse = torch.rand(shape, generator=Stream(experiment.seed).child("benchmark").generator())
        images = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")
        source = ArraySource((255 * images).to(torch.uint8), name="drawn")
        experiment, _ = settled(experiment, source)
        self.experiment, self.machine = experiment, machine
        self.schemes = possible(experiment, only)
        terms = dict.fromkeys(term for name in self.schemes for term in SCHEMES[name])
        # the experiment's own terms may need further batch-norms
        own = experiment.model_dump(mode="json")["hard_examples"]
        hard = own | _hard_examples(experiment, terms)
        needed = override(experiment, {"hard_examples": hard, "objective.split": False})
        self.method = build_method(needed, roomy_setting(needed, data_size), machine, filled=False)
        self.optimizer = build_optimizer(needed, self.method)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-6  # so that the measurement does not depend on its length
        self.views = Views(experiment.views)
        self.loader = PretrainLoader(source, self.views, experiment.batch_size, Stream(0), machine.device)
        self.batches = self._forever()
        self.batch = next(self.batches)
        self.objectives = {name: build_objective(made, self.method, machine) for name, made in self.schemes.items()}
        for name in NAIVE if only is None else ():
            if name in self.schemes:
                naive = build_objective(self.schemes[name], self.method, machine, share_gradients=False)
                self.objectives[f"naive {name}"] = naive
        self.own = build_objective(experiment, self.method, machine)
        if only is None and has_own(experiment):
            self.objectives["own"] = self.own
        self.steps = 0
        self._labels: Any = None

    def work(self) -> dict[str, Callable[[], None]]:
        """Everything that is timed, by name."""

        def training(objective: Objective) -> Callable[[], None]:
            return lambda: self._train(objective, self._next())

        steps = {name: training(objective) for name, objective in self.objectives.items()}
        return {
            **steps,
            "query": self._query,
            "views": self._views,
            "end to end": lambda: self._train(self.own, self._laid_out(next(self.batches))),
        }

    def standing(self) -> list[Tensor]:
        """The tensors that stay in memory between steps."""
        assert self.loader.store is not None
        state = [
            value for kept in self.optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)
        ]
        return [*self.method.state_dict().values(), *state, *self.batch.crops, self.loader.store.images]

    def _forever(self) -> Iterator[Batch]:
        for epoch in itertools.count():
            for batch in self.loader.epoch(epoch):
                yield replace(batch, step=_SETTLED + batch.step)

    def _next(self) -> Batch:
        self.steps += 1
        stream = Stream(1).child("step", self.steps)
        return self._laid_out(replace(self.batch, stream=stream, step=_SETTLED + self.steps))

    def _laid_out(self, batch: Batch) -> Batch:
        if not self.experiment.training.channels_last:
            return batch
        crops = tuple(crop.contiguous(memory_format=torch.channels_last) for crop in batch.crops)
        return replace(batch, crops=crops)

    def _train(self, objective: Objective, batch: Batch) -> None:
        for term in objective.losses(batch):
            term.loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        objective.commit(batch)

    def _query(self) -> None:
        """The forward, loss and backward of the clean views alone."""
        objective, batch = self.objectives["std"], self._next()
        embedding = objective.score.embed(self.method.anchors(batch), MAIN)
        if self._labels is None:
            with self.machine.autocast():
                self._labels = self.method.pseudo_labels(batch, embedding.detach())
        self.method.clean_loss(embedding, self._labels).mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def _views(self) -> None:
        assert self.loader.store is not None
        self.steps += 1
        images = self.loader.store.images[: self.experiment.batch_size]
        self.views(images, Stream(1).child("step", self.steps), slice(0, self.experiment.batch_size))


def timed(device: torch.device, work: Callable[[], None], count: int) -> float:
    """Seconds of one piece of work, the mean of `count`."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    begin = now()
    for _ in range(count):
        work()
    return (now() - begin) / count
