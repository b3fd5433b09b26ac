"""The batch size and rounds of a benchmark, chosen so that it ends within two minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hexa.assembly.build import Machine, kernels, roomy_setting
from hexa.config import ConfigError
from hexa.experiment import Experiment, override
from hexa.session.benchmark import LEAST_SECONDS, NAIVE, SCHEMES, Bench, has_own, possible, timed

#: Seconds that everything after the plan may take; two minutes are left for it and what comes before.
BUDGET = 90.0
_MOST_REPEATS, _WANTED_REPEATS = 5, 3
_PROBE, _SMALLEST = 32, 4


@dataclass(frozen=True)
class Plan:
    """What a benchmark will measure."""

    experiment: Experiment
    """The experiment with the batch size to measure."""
    repeats: int
    seconds: float
    """Expected."""
    own_batch_size: int
    """The recipe's."""
    schemes: int
    naive: int

    def __str__(self) -> str:
        batch, length = self.experiment.batch_size, max(1, round(self.seconds / 10)) * 10
        smaller = "" if batch == self.own_batch_size else f" (instead of {self.own_batch_size}, to end in two minutes)"
        about = f"{length} s" if length < 120 else f"{round(length / 60)} min"
        rounds = f"{self.repeats} round{'s' if self.repeats != 1 else ''}"
        naive = f", {self.naive} of them the naive way too" if self.naive else ""
        return (
            f"{self.experiment.recipe}: {self.schemes} schemes{naive}, batch {batch}{smaller}, {rounds}, about {about}"
        )


def plan(experiment: Experiment, repeats: int | None = None, keep_batch: bool = False) -> Plan:
    """Time a step of the plain scheme, first with a small batch, and choose the batch size and repeats.

    keep_batch: keep the experiment's batch size, however long it takes.
    """
    machine, own = Machine.of(experiment), experiment.batch_size

    def probe(batch: int) -> tuple[float, dict[str, float]]:
        """Seconds of the plain step, and every piece of work in such steps."""
        with kernels(experiment.training.deterministic):
            work = Bench(_at(experiment, batch), machine, ()).work()
            for name in ("std", "query"):
                work[name]()  # chooses algorithms, allocates memory
            step, query = (timed(machine.device, work[name], 1) for name in ("std", "query"))
        own = len(experiment.hard_examples)
        costs = units(list(possible(experiment)), query / step, own)
        return step, costs | ({"own": 1 + query / step * own} if has_own(experiment) else {})

    first = own if keep_batch else min(own, _PROBE)
    step, work = probe(first)
    batch = own if keep_batch else fit_batch(_sizes(experiment), step / first, work, repeats or _WANTED_REPEATS)
    if batch != first:
        step, work = probe(batch)
    repeats = repeats or fit_repeats(step, work)
    naive = sum(name.startswith("naive ") for name in work)
    schemes = sum(name in SCHEMES for name in work)
    return Plan(_at(experiment, batch), repeats, expected(step, work, repeats), own, schemes, naive)


def units(schemes: list[str], query: float, own: int) -> dict[str, float]:
    """The cost of each piece of work in plain steps, by counting: `query` for every further pass.

    own: the number of hard examples of the experiment, whose own step is measured end to end.
    """
    costs = {name: 1 + query * name.count("+") for name in schemes}
    naive = {f"naive {name}": costs[name] + query for name in NAIVE if name in costs}
    return {**costs, **naive, "query": query, "views": 0.1, "end to end": 1.1 + query * own}


def expected(step: float, work: Mapping[str, float], repeats: int) -> float:
    """Seconds of a benchmark whose plain step takes `step` seconds.

    Each piece of work runs twice at first, schemes once more for their memory, then `repeats` measurements of at least
    LEAST_SECONDS each follow.
    """
    total = 0.0
    for name, cost in work.items():
        once = 2 + (name in SCHEMES or name == "own" or name.startswith("naive "))
        total += once * cost * step + repeats * max(cost * step, LEAST_SECONDS)
    return total


def fit_batch(sizes: list[int], per_image: float, work: Mapping[str, float], repeats: int) -> int:
    """The first of these sizes with which the benchmark should fit the budget, or the last."""
    return next((size for size in sizes if expected(size * per_image, work, repeats) <= BUDGET), sizes[-1])


def fit_repeats(step: float, work: Mapping[str, float]) -> int:
    """The number of rounds, one to five, that fits the budget."""
    return next((n for n in range(_MOST_REPEATS, 1, -1) if expected(step, work, n) <= BUDGET), 1)


def _at(experiment: Experiment, batch: int) -> Experiment:
    return override(experiment, {"batch_size": batch})


def _sizes(experiment: Experiment) -> list[int]:
    """The experiment's batch size and its halves, for as long as the method supports them."""
    sizes = [experiment.batch_size]
    while sizes[-1] % 2 == 0 and sizes[-1] // 2 >= _SMALLEST:
        try:
            roomy_setting(_at(experiment, sizes[-1] // 2), sizes[-1])
        except ConfigError:
            break
        sizes.append(sizes[-1] // 2)
    return sizes
