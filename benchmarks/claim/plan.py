"""The plan as data and pure functions: arms, steps, choice of rates, order of units, contrasts and their reading.

PLAN.md says the same in words. A row is a dictionary with `step`, `arm`, `rate`, `seed`, `kind` (of machine), `time`,
and `scores` or `diverged`. Nothing here trains, reads a file or imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scipy import stats

Row = dict[str, Any]

MOCO = "cifar10-moco-v2+small"
DEEPCLUSTER = "cifar10-deepcluster-v2+small"
ATTACK = "hard_examples.adversarial"
CUTMIX = "hard_examples.cutmix"
#: The arm of H1 and H2 in MoCo-v2's steps, and in DeepCluster-v2's.
ADVERSARIAL, DOSED = "adversarial-1", "adversarial-dose"
PLAIN, PLACEBO = "plain", "placebo-aux"
#: The seed of all choices; no test seed.
CHOICE_SEED = 100
#: The rate of LARC, as published for batches of 256.
LARC_RATE = 0.6
#: ε in 1/255 that the dose is chosen from, and the rise of the loss in nats that it has to reach.
DOSES, DOSE_RISE = tuple(1 + 0.5 * number for number in range(15)), 1.1
#: Seeds after which a setting stops if every difference of H2 is negative.
FUTILE_AFTER = 3
#: Points: H2 in this band is a matter of the step size; H2 below this bound refutes.
BAND, BOUND = 0.7, 0.5


def attack(epsilon: float) -> dict[str, Any]:
    return {f"{ATTACK}.epsilon": epsilon, f"{ATTACK}.step_size": epsilon}


def changes(arm: str, dose: float | None) -> dict[str, Any]:
    """The fields that an arm changes in the plain recipe. dose: in 1/255, None before it is known."""
    cutmix = {f"{CUTMIX}.weight": 1.0}
    if arm == PLAIN:
        return {}
    if arm == PLACEBO:
        return attack(0.001)
    if arm == ADVERSARIAL:
        return attack(1.0)
    if arm == "placebo-main":
        # the box has no pixel: the share kept is 1 within 1e-5, and a side shorter than two pixels is none
        return {f"{CUTMIX}.alpha": 1e6, f"{CUTMIX}.beta": 1.0}
    if arm == "cut-mixed":
        return cutmix
    if dose is None:
        raise ValueError(f"arm {arm} needs the dose")
    if arm == DOSED:
        return attack(dose)
    if arm == "adversarial-dose+cut-mixed":
        return attack(dose) | cutmix
    raise ValueError(f"unknown arm {arm}")


@dataclass(frozen=True)
class Step:
    """One step of the plan.

    trained, scored: data sets (run.py makes them): all, tune (without the held-out tenth), small (2,000 images).
    arms: the number of seeds of each arm. selection: the step that chooses the rates. marks: epochs that are scored too.
    """

    epochs: int
    trained: str
    scored: str
    arms: Mapping[str, int]
    selection: str | None = None
    marks: tuple[int, ...] = ()
    recipe: str = MOCO
    outcome: str = "knn"

    @property
    def tests(self) -> bool:
        """Whether test images are scored."""
        return self.scored == "all"


_GRID = (0.03, 0.06, 0.12)
#: First grids of step 2.
GRIDS = {
    PLAIN: (*_GRID, 0.24),
    PLACEBO: _GRID,
    ADVERSARIAL: _GRID,
    DOSED: _GRID,
    "placebo-main": _GRID,
    "cut-mixed": _GRID,
}
_LONG = (PLAIN, ADVERSARIAL, PLACEBO, DOSED, "cut-mixed")
STEPS: dict[str, Step] = {
    "rates": Step(12, "tune", "tune", dict.fromkeys(GRIDS, 1)),
    "small-rates": Step(480, "small", "tune", dict.fromkeys(_LONG, 1), "rates"),
    "small": Step(1600, "small", "all", dict.fromkeys(_LONG, 5), "small-rates", (200, 400, 800)),
    "long-rates": Step(30, "tune", "tune", dict.fromkeys(_LONG, 1), "rates"),
    "long": Step(
        100,
        "all",
        "all",
        {PLAIN: 5, ADVERSARIAL: 5, PLACEBO: 5, DOSED: 3, "cut-mixed": 3},
        "long-rates",
        (12, 25, 50),
    ),
    "deepcluster": Step(
        20,
        "all",
        "all",
        dict.fromkeys((PLAIN, DOSED, PLACEBO, "adversarial-dose+cut-mixed"), 6),
        recipe=DEEPCLUSTER,
        outcome="labels500",
    ),
    "short": Step(
        12,
        "all",
        "all",
        dict.fromkeys((PLAIN, ADVERSARIAL, PLACEBO, DOSED, "placebo-main", "cut-mixed"), 3),
        "rates",
    ),
}


def smaller(steps: Mapping[str, Step]) -> dict[str, Step]:
    """The steps with two epochs and one or two seeds, to try the whole path."""
    return {
        name: replace(
            step,
            epochs=2,
            arms=dict.fromkeys(step.arms, 2 if name == "small" else 1),
            marks=step.marks and (1,),
        )
        for name, step in steps.items()
    }


class Unit(NamedTuple):
    """One training and its scores, or the measurement of the dose."""

    step: str
    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.step}-{self.arm}-{self.rate:g}-{self.seed}"


#: The dose is measured on the run that this unit trains.
DOSE_RUN = Unit("rates", PLAIN, 0.06, CHOICE_SEED)
DOSE = DOSE_RUN._replace(step="dose")


def unit_of(row: Row) -> Unit:
    return Unit(row["step"], row["arm"], row["rate"], row["seed"])


# -- choices -----------------------------------------------------------------------------------------------------------


def best(found: Mapping[float, float | None]) -> float:
    """The rate with the highest score; of equal ones the smallest. A diverged run (None) is below all others."""
    return max(found, key=lambda rate: (_value(found[rate]), -rate))


def extension(found: Mapping[float, float | None], grid: Sequence[float]) -> float | None:
    """The rate to try next if the best one of the first grid is at its edge: half or double; else None."""
    winner = best({rate: found[rate] for rate in grid})
    if winner == min(grid):
        return winner / 2
    return winner * 2 if winner == max(grid) else None


def candidates(rows: Sequence[Row], name: str, arm: str) -> list[float]:
    """The rates of an arm that a choice of step 4 tries: the best one of step 2 and half of it; then, while the
    largest one wins, its double.
    """
    first = best(tried(rows, "rates", arm))
    rates, found = [first, first / 2], tried(rows, name, arm)
    while found.keys() >= set(rates) and best({rate: found[rate] for rate in rates}) == max(rates):
        rates.append(2 * max(rates))
    return rates


def common(plain: Mapping[float, float | None], adversarial: Mapping[float, float | None]) -> float:
    """H1's rate: of the rates that both arms tried, the one with the highest sum of scores, and of equal ones the
    smallest; if they share none, the smaller of their best rates.
    """
    shared = {
        rate: _value(plain[rate]) + _value(adversarial[rate])
        for rate in plain
        if rate in adversarial
    }
    return best(shared) if shared else min(best(plain), best(adversarial))


def _value(score: float | None) -> float:
    return -math.inf if score is None else score


def tried(rows: Sequence[Row], step: str, arm: str) -> dict[float, float | None]:
    """The held-out score of each rate of an arm."""
    found: dict[float, float | None] = {}
    for row in rows:
        if (row["step"], row["arm"]) == (step, arm):
            found.setdefault(row["rate"], row["scores"]["knn"] if row.get("scores") else None)
    return found


def dose_of(rises: Mapping[float, float]) -> float:
    """The smallest ε that raises the loss enough, else the largest."""
    return next((epsilon for epsilon in sorted(rises) if rises[epsilon] >= DOSE_RISE), max(rises))


def dose(rows: Sequence[Row]) -> float | None:
    return next((float(row["epsilon"]) for row in rows if row["step"] == "dose"), None)


# -- the order ---------------------------------------------------------------------------------------------------------


def units(rows: Sequence[Row], steps: Mapping[str, Step] = STEPS) -> Iterator[Unit]:
    """Every unit in the plan's order, made or not, as far as the rows decide it."""
    yield DOSE_RUN
    yield DOSE
    for name, step in steps.items():
        if name == "rates":
            yield from _first_grids(rows)
            complete = _settled(rows, name, GRIDS)
        elif not step.tests:
            chosen = {arm: candidates(rows, name, arm) for arm in _arms(rows, step)}
            for arm, rates_of_arm in chosen.items():
                yield from (Unit(name, arm, rate, CHOICE_SEED) for rate in rates_of_arm)
            complete = all(tried(rows, name, arm).keys() >= set(chosen[arm]) for arm in chosen)
        else:
            yield from _tested(rows, name, step)
            complete = True  # nothing depends on it
        if not complete:
            return


def _first_grids(rows: Sequence[Row]) -> Iterator[Unit]:
    for arm, grid in GRIDS.items():
        if arm == DOSED and dose(rows) in (None, 1.0):
            continue
        yield from (Unit("rates", arm, rate, CHOICE_SEED) for rate in grid)
        found = tried(rows, "rates", arm)
        if found.keys() >= set(grid) and (further := extension(found, grid)) is not None:
            yield Unit("rates", arm, further, CHOICE_SEED)


def _settled(rows: Sequence[Row], name: str, grids: Mapping[str, Sequence[float]]) -> bool:
    """Whether every unit of step 2 has a row."""
    made = {unit_of(row) for row in rows}
    return dose(rows) is not None and all(
        unit in made for unit in _first_grids(rows) if unit.step == name and unit.arm in grids
    )


def _arms(rows: Sequence[Row], step: Step) -> list[str]:
    """The arms of a step of MoCo-v2; a dose of 1/255 is adversarial-1 and no arm of its own."""
    alike = dose(rows) == 1.0 and step.recipe == MOCO
    return [arm for arm in step.arms if not (alike and arm == DOSED)]


def rates(rows: Sequence[Row], name: str, steps: Mapping[str, Step] = STEPS) -> dict[str, float]:
    """The rate of each arm of a test step."""
    step = steps[name]
    if step.selection is None:
        return dict.fromkeys(step.arms, LARC_RATE)
    return {arm: best(tried(rows, step.selection, arm)) for arm in _arms(rows, step)}


def common_rate(rows: Sequence[Row], name: str, steps: Mapping[str, Step] = STEPS) -> float:
    """H1's rate of a test step."""
    selection = steps[name].selection
    if selection is None:
        return LARC_RATE
    return common(tried(rows, selection, PLAIN), tried(rows, selection, ADVERSARIAL))


def _tested(rows: Sequence[Row], name: str, step: Step) -> Iterator[Unit]:
    """Seed by seed over the arms of H1 and H2, then over the others; plain and adversarial at the common rate too if
    that is not their own.
    """
    own, shared = rates(rows, name, {name: step}), common_rate(rows, name, {name: step})
    at_one_rate = (PLAIN, ADVERSARIAL) if step.recipe == MOCO else ()
    for primary in (True, False):
        for seed in range(max(step.arms.values())):
            if seed >= FUTILE_AFTER and futile(rows, name, {name: step}):
                break
            arms = [arm for arm in own if seed < step.arms[arm]]
            made = [Unit(name, arm, own[arm], seed) for arm in arms]
            extra = [Unit(name, arm, shared, seed) for arm in at_one_rate if own[arm] != shared]
            yield from made[:3] + extra if primary else made[3:]


def held_back(
    unit: Unit, rows: Sequence[Row], kind: str, steps: Mapping[str, Step] = STEPS
) -> bool:
    """Whether another kind of machine began this test unit's seed, and this kind did not."""
    step = steps.get(unit.step)
    kinds = {row["kind"] for row in rows if (row["step"], row["seed"]) == (unit.step, unit.seed)}
    return step is not None and step.tests and bool(kinds) and kind not in kinds


def is_made(unit: Unit, rows: Sequence[Row], kind: str, steps: Mapping[str, Step] = STEPS) -> bool:
    """Whether a unit has a row; a test unit one of this kind of machine."""
    step = steps.get(unit.step)
    tests = step is not None and step.tests
    return any(unit_of(row) == unit and (row["kind"] == kind or not tests) for row in rows)


# -- contrasts ---------------------------------------------------------------------------------------------------------


def hypotheses(
    rows: Sequence[Row], name: str, steps: Mapping[str, Step] = STEPS
) -> dict[str, tuple[tuple[str, float], tuple[str, float]]]:
    """H1 and H2 of a test step: (arm, rate) − (arm, rate)."""
    step = steps[name]
    harder = ADVERSARIAL if step.recipe == MOCO else DOSED
    own, shared = rates(rows, name, steps), common_rate(rows, name, steps)
    return {
        "H1": ((harder, shared), (PLAIN, shared)),
        "H2": ((harder, own[harder]), (PLACEBO, own[PLACEBO])),
    }


def differences(
    rows: Sequence[Row],
    name: str,
    first: tuple[str, float],
    second: tuple[str, float],
    outcome: str = "knn",
) -> dict[int, float]:
    """Seed -> the difference of two arms on one kind of machine; of several kinds, the one whose row is the oldest."""
    sides: list[dict[tuple[int, str], float]] = []
    oldest: dict[tuple[int, str], str] = {}
    for arm, rate in (first, second):
        side: dict[tuple[int, str], float] = {}
        for row in rows:
            key = (row["seed"], row["kind"])
            if (row["step"], row["arm"], row["rate"]) != (name, arm, rate):
                continue
            if (row.get("scores") or {}).get(outcome) is not None:
                side[key] = row["scores"][outcome]
                oldest[key] = min(oldest.get(key, row["time"]), row["time"])
        sides.append(side)
    found: dict[int, float] = {}
    for seed, kind in sorted(sides[0].keys() & sides[1].keys(), key=lambda key: (oldest[key], key)):
        found.setdefault(seed, sides[0][seed, kind] - sides[1][seed, kind])
    return dict(sorted(found.items()))


def futile(rows: Sequence[Row], name: str, steps: Mapping[str, Step] = STEPS) -> bool:
    """Whether the first three differences of H2 in the primary outcome are there and all negative."""
    found = differences(rows, name, *hypotheses(rows, name, steps)["H2"], steps[name].outcome)
    first = [found[seed] for seed in range(FUTILE_AFTER) if seed in found]
    return len(first) == FUTILE_AFTER and all(value < 0 for value in first)


@dataclass(frozen=True)
class Contrast:
    """Paired differences, in points."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Student's two-sided interval of the mean; infinite for one value."""
        count = len(self.values)
        if count < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(0.5 + level / 2, count - 1)) * self._error()
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float:
        """Of the paired t-test, two-sided; 1 for one value."""
        if len(self.values) < 2:
            return 1.0
        if not self._error():
            return 1.0 if not self.mean else 0.0
        return float(2 * stats.t.sf(abs(self.mean) / self._error(), len(self.values) - 1))

    def _error(self) -> float:
        count = len(self.values)
        squares = math.fsum((value - self.mean) ** 2 for value in self.values)
        return math.sqrt(squares / (count - 1) / count)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted, most = [0.0] * len(ps), 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        most = max(most, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = most
    return adjusted


def holm_intervals(contrasts: Sequence[Contrast], level: float = 0.95) -> list[tuple[float, float]]:
    """Each interval at Holm's level: of m contrasts the smallest p at 1 − α/m, the next at 1 − α/(m − 1) …, until one
    is not rejected; all after it have its level.
    """
    found = [(0.0, 0.0)] * len(contrasts)
    ps = [contrast.p for contrast in contrasts]
    share, rejected = 1 - level, True
    for place, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if rejected:
            share = (1 - level) / (len(ps) - place)
        rejected = rejected and ps[index] < share
        found[index] = contrasts[index].interval(1 - share)
    return found


def reading(h1: Contrast, h2: Contrast) -> tuple[str, ...]:
    """What a setting shows, by the rules fixed in advance."""
    first, second = (low > 0 for low, _ in holm_intervals([h1, h2]))
    if first and second:
        return ("shown",)
    said = []
    low, high = h2.interval(0.90)
    if first and low >= -BAND and high <= BAND:
        said.append("step size")
    if h2.interval(0.95)[1] < BOUND:
        said.append("refuted at this scale")
    return tuple(said) or ("open",)
