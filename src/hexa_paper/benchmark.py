"""Measures what hard examples cost on this machine: all schemes in one run, interleaved, medians of several rounds."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.table import Table

from hexa.config import ConfigError
from hexa.core import MAIN, Batch
from hexa.data import ArraySource
from hexa.objective import Objective
from hexa.recipes.experiment import Experiment, override
from hexa.run import build
from hexa.run.build import Machine
from hexa.runtime.progress import Progress, silent
from hexa.runtime.random import Stream
from hexa.training.journal import environment
from hexa.training.step import prepared, step
from hexa_paper import schemes as schemes_of_paper

#: The schemes of the ablation by name: their terms beside the clean one.
SCHEMES = {scheme.name: scheme.terms for scheme in schemes_of_paper.SCHEMES.values()}
NAIVE = ("std+adv", "std+adv+cmx")
#: Shortest measurement in seconds, so that on a fast device launches do not dominate.
LEAST_SECONDS = 0.3
#: Seconds for all rounds.
_BUDGET = 90.0
#: Rounds that a batch should leave time for.
_ROUNDS = 3
#: Rounds at most, unless a number is given.
_MOST_ROUNDS = 5
#: Images of the batch that is timed to choose one.
_PROBE = 32
#: Images of a batch at least.
_SMALLEST = 4
_BATCHES_OF_DATA = 4
#: The number of the first step, after every warm-up (PCL-v2's, a queue to fill, frozen prototypes).
_SETTLED = 10**9


def benchmark(
    experiment: Experiment,
    repeats: int | None = None,
    *,
    schemes: Collection[str] | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure an experiment's method, network, views and batch size in every scheme, on random images of that size.

    Steps and batches are those of a run: the few images are kept on the device unless they exceed
    training.resident_limit_bytes. Returns {"machine", "recipe", "precision", "query_share", "schemes": {name:
    {"images_per_second", "relative_cost", "peak_memory_bytes"}}, "naive": the same for steps in which generation is a
    separate pass, "views_images_per_second", "end_to_end_images_per_second"}. relative_cost is the time over that of
    scheme i; query_share the time of the query's forward, loss and backward over that of the plain step, so that with
    shared gradients std+adv should cost 1 + q (F18); memory is the GPU allocator's, None on a CPU. End to end is
    the experiment's own scheme; "own" is its step, if its hard examples are those of no scheme. Hard examples that the
    method does not support are left out.

    repeats: rounds; None for at most five within 90 seconds. schemes: measure only these and the plain one, and nothing
    naive. say: takes a line for each scheme after its first measurement.
    """
    if repeats is not None and repeats < 1:
        raise ValueError(f"repeats must be ≥ 1, got {repeats}")
    machine = Machine.of(experiment)
    size = experiment.batch_size
    about = environment(machine.device, machine.precision)
    peaks = dict[str, int | None]()
    counts = dict[str, int]()
    if alone := experiment.start.freeze_backbone:
        say(f"not measured: the first {alone} epochs, in which only the head learns, are faster")
    with build.kernels(experiment.training.deterministic):
        bench = Bench(experiment, machine, schemes)
        work = bench.work()
        for name, piece in work.items():
            piece()  # compiles kernels, chooses algorithms, fills caches
            if machine.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(machine.device)
            once = timed(piece, 1)
            peaks[name] = (
                torch.cuda.max_memory_allocated(machine.device)
                if machine.device.type == "cuda"
                else None
            )
            counts[name] = max(1, round(LEAST_SECONDS / once))
            if name in bench.objectives:
                say(f"{name}: {size / once:,.0f} images/s")
        measured: dict[str, list[float]] = {name: [] for name in work}
        begin = time.perf_counter()
        most = repeats or _MOST_ROUNDS
        for done in range(most):
            if (
                repeats is None
                and done
                and (time.perf_counter() - begin) * (done + 1) / done > _BUDGET
            ):
                break
            for number, (name, piece) in enumerate(work.items(), done * len(work) + 1):
                measured[name].append(timed(piece, counts[name]))
                progress("measuring", number, most * len(work))
    seconds = {name: statistics.median(values) for name, values in measured.items()}
    rates = {name: round(size / median, 1) for name, median in seconds.items()}

    def row(name: str) -> dict[str, float | int | None]:
        cost = round(seconds[name] / seconds["std"], 4)
        return {
            "images_per_second": rates[name],
            "relative_cost": cost,
            "peak_memory_bytes": peaks[name],
        }

    kept = ("device", "device_type", "platform", "threads", "cores", "versions", "commit", "time")
    sizes = {
        "batch_size": size,
        "image_size": experiment.views.size,
        "repeats": len(measured["std"]),
    }
    return {
        "machine": {name: about[name] for name in kept} | sizes,
        "recipe": experiment.recipe,
        "precision": machine.precision,
        "query_share": round(seconds["query"] / seconds["std"], 4),
        "schemes": {name: row(name) for name in bench.schemes},
        "naive": {name: row(f"naive {name}") for name in NAIVE if f"naive {name}" in seconds},
        **({"own": row("own")} if "own" in seconds else {}),
        "views_images_per_second": rates["views"],
        "end_to_end_images_per_second": rates["end to end"],
    }


def table(measured: dict[str, Any]) -> Table:
    """The result of a benchmark as a table for the terminal."""
    machine = measured["machine"]
    q = measured["query_share"]
    title = f"{measured['recipe']}, {machine['device']}, {measured['precision']}, batch {machine['batch_size']}"
    shown = Table("step", "images/s", "relative cost", "by counting", "peak memory", title=title)
    rows = measured["schemes"] | {f"naive {name}": row for name, row in measured["naive"].items()}
    for name, row in (
        rows | ({"the recipe's own": measured["own"]} if "own" in measured else {})
    ).items():
        counted = (
            f"{1 + q * (name.count('+') + name.startswith('naive')):.2f}" if name in rows else ""
        )
        memory = (
            f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB"
            if row["peak_memory_bytes"]
            else "GPU only"
        )
        shown.add_row(
            name, f"{row['images_per_second']:,.0f}", f"{row['relative_cost']:.2f}", counted, memory
        )
    for name, key in (("views alone", "views"), ("end to end", "end_to_end")):
        shown.add_row(name, f"{measured[f'{key}_images_per_second']:,.0f}")
    shown.caption = f"the query's share of the plain step is q = {q:.2f}; by counting: 1 + q for every further pass"
    return shown


def fitted(experiment: Experiment) -> Experiment:
    """The experiment with its batch halved until three rounds of a benchmark should take no more than 90 seconds."""
    sizes = [experiment.batch_size]
    while sizes[-1] % 2 == 0 and sizes[-1] // 2 >= _SMALLEST:
        try:  # not every method takes every size
            build.roomy_setting(override(experiment, {"batch_size": sizes[-1] // 2}), sizes[-1])
        except ConfigError:
            break
        sizes.append(sizes[-1] // 2)
    probed = next((size for size in sizes if size <= _PROBE), sizes[-1])
    with build.kernels(experiment.training.deterministic):
        work = Bench(override(experiment, {"batch_size": probed}), Machine.of(experiment)).work()
        work["std"]()
        seconds = timed(work["std"], 1) / probed
    passes = (2 + _ROUNDS) * sum(1 + name.count("+") for name in work)
    size = next((size for size in sizes if size * seconds * passes <= _BUDGET), sizes[-1])
    return override(experiment, {"batch_size": size})


def _hard_examples(experiment: Experiment, terms: Iterable[str]) -> dict[str, Any]:
    """The hard examples of a scheme, with the fields of the experiment's own of that kind, or the defaults."""
    attack, mixing = (build.own_fields(experiment, kind) for kind in ("adversarial", "cutmix"))
    every = {"adv": attack, "cmx": mixing, "cmxA": {**mixing, "source": "adv"}}
    return {term: {**every[term], "weight": 1.0, "fraction": 1.0} for term in terms}


class Bench:
    """One method and one optimizer that all schemes train in turn, each with its own objective."""

    def __init__(
        self, experiment: Experiment, machine: Machine, only: Collection[str] | None = None
    ) -> None:
        data_size = _BATCHES_OF_DATA * experiment.batch_size
        size = experiment.views.size
        shape = (data_size, experiment.network.channels, max(1, size // 4), max(1, size // 4))
        coarse = torch.rand(shape, generator=Stream(experiment.seed).child("benchmark").generator())
        images = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")
        source = ArraySource((255 * images).to(torch.uint8), name="drawn")
        self.experiment, _ = build.settled(experiment, source)
        self.schemes = self._possible(only)
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
        for name in NAIVE if only is None else ():
            if name in self.schemes:
                self.objectives[f"naive {name}"] = self._objective(
                    self.schemes[name], share_gradients=False
                )
        self.own = self._objective(self.experiment)
        hard_examples = [
            example for example in self.experiment.hard_examples.values() if example.weight > 0
        ]
        known = all(
            example.kind in ("adversarial", "cutmix") and example.fraction == 1
            for example in hard_examples
        )
        if only is None and hard_examples and (self.experiment.objective.split or not known):
            self.objectives["own"] = (
                self.own
            )  # the hard examples of no scheme get a row of their own
        self.steps = 0
        self._labels = None

    def _possible(self, only: Collection[str] | None) -> dict[str, Experiment]:
        """The experiment in every scheme whose hard examples its method supports. only: these and the plain one."""
        plain = {"objective.split": False, "objective.clean_fraction": 1.0}
        made = {
            name: override(
                self.experiment, {"hard_examples": _hard_examples(self.experiment, terms), **plain}
            )
            for name, terms in SCHEMES.items()
            if only is None or name in {"std", *only}
        }
        return {name: scheme for name, scheme in made.items() if not build.refusals(scheme)}

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
        return work | {"query": self._query, "views": self._views} | end_to_end

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

    def _query(self) -> None:
        """The forward, loss and backward of the clean views alone."""
        objective = self.objectives["std"]
        batch = prepared(self._next(), self.experiment.training.channels_last)
        embedding = objective.score.embed(self.method.anchors(batch), MAIN)
        if self._labels is None:
            with self.machine.autocast():
                self._labels = self.method.pseudo_labels(batch, embedding.detach())
        self.method.clean_loss(embedding, self._labels).mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.optimizer.zero_grad(set_to_none=True)

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
