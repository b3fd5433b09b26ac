"""From a study to its jobs: a pure function that can be printed, with what the whole will cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hexa import recipes
from hexa.config import UserError
from hexa.experiment import Experiment, override
from hexa.reproduce.design import KNN, SCHEME_COSTS, SVM, Arm, Measure, Study

#: Seconds of one image on this machine: {recipe: {scheme of a benchmark: seconds}}.
Costs = Mapping[str, Mapping[str, float]]

#: What the learning rates are searched among: multiples of the recipe's.
RATE_FACTORS = (0.5, 1.0, 2.0, 4.0)
SEARCH_SEED = 1000
HOLDOUT = 0.1
#: Not needed in a study, and not free.
QUIET: dict[str, Any] = {"training.tensorboard": False, "training.report": False, "monitor.knn_every": 0}


@dataclass(frozen=True)
class Target:
    """Labelled images that backbones are measured on. several: whether an image may show more than one class."""

    source: str
    several: bool = False


@dataclass(frozen=True)
class Request:
    """What was asked for, beside the study. None leaves a thing to the recipes."""

    data: str
    targets: tuple[Target, ...]
    num_images: int
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None
    rates: tuple[float, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Job:
    """One pre-training with its evaluations; everything it needs, and a name to store it by.

    measures: (measure, source, share of the training images that is scored instead of the test images).
    """

    name: str
    phase: Literal["search", "final"]
    arm: Arm
    experiment: Experiment
    measures: tuple[tuple[Measure, str, float | None], ...]

    @property
    def rate(self) -> float:
        return self.experiment.optimizer.learning_rate

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "name": self.name,
            "phase": self.phase,
            "arm": self.arm.key,
            "epochs": self.experiment.epochs,
            "rate": self.rate,
            "seed": self.experiment.seed,
            "experiment": self.experiment.model_dump(mode="json"),
            "measures": [
                {"title": title_on(measure, source, self.measures), "protocol": measure.protocol, "data": source,
                 "options": dict(measure.options), "holdout": holdout}
                for measure, source, holdout in self.measures
            ],
        }  # fmt: skip

    @property
    def identity(self) -> str:
        """A hash of all that decides its result."""
        fields = self.record() | {"experiment": self.experiment.model_dump(mode="json", exclude={"training"})}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def title_on(measure: Measure, source: str, all_of_them: Iterable[tuple[Measure, str, float | None]]) -> str:
    """The measure's title, with the source where there are several."""
    return measure.title if len({other for _, other, _ in all_of_them}) == 1 else f"{measure.title} on {source}"


def experiment_of(arm: Arm, request: Request, **changes: Any) -> Experiment:
    """The recipe, then the arm's changes, then the request's. Raises ConfigError.

    A field of a hard example is for the arms that have it: it must not add one to the others.
    """
    made = override(recipes.get(arm.recipe), {"data": request.data, **QUIET, **arm.changes})
    fields = {path: value for path, value in request.fields.items() if _concerns(path, made)}
    return override(made, {**fields, **changes})


def _concerns(path: str, experiment: Experiment) -> bool:
    group, _, rest = path.partition(".")
    return group != "hard_examples" or rest.partition(".")[0] in experiment.hard_examples


def check(study: Study, request: Request) -> None:
    """Raise UserError for rates that nothing chooses from, epochs that are published, fields that no arm has."""
    if not study.search and len(request.rates or ()) > 1:
        raise UserError(f"--rates: {study.name} at the {study.scale} scale searches for no rate; give a single one")
    if request.epochs is not None and any(arm.epochs for arm in study.arms):
        raise UserError(f"--epochs: arms of {study.name} at the {study.scale} scale have published ones; leave it out")
    made = [experiment_of(arm, request) for arm in study.arms]
    for path in request.fields:
        if not any(_concerns(path, experiment) for experiment in made):
            there = sorted({name for experiment in made for name in experiment.hard_examples})
            raise UserError(f"--{path}: no arm of {study.name} has that hard example; there are {', '.join(there)}")


def epochs_of(arm: Arm, request: Request) -> int:
    """How long an arm trains at most."""
    return request.epochs or arm.epochs or experiment_of(arm, request).epochs


def search_jobs(study: Study, request: Request) -> list[Job]:
    """The same short search for every arm, on held-out training images; none if there is nothing to choose from.

    A run of it is a quarter as long as the arm's, so that a search among four rates costs what one seed does.
    """
    jobs = []
    for arm in study.arms if study.search else ():
        rates = _rates(arm, request)
        epochs = max(1, round(epochs_of(arm, request) / 4))
        target = request.targets[0]
        measure = SVM if target.several else KNN
        for rate in rates if len(rates) > 1 else ():
            experiment = experiment_of(
                arm, request, epochs=epochs, seed=SEARCH_SEED, **{"optimizer.learning_rate": rate}
            )
            name = f"search-{arm.key}-{epochs}ep-lr{rate:g}"
            jobs.append(Job(name, "search", arm, experiment, ((measure, target.source, HOLDOUT),)))
    return jobs


def _rates(arm: Arm, request: Request) -> tuple[float, ...]:
    own = experiment_of(arm, request).optimizer.learning_rate
    return request.rates or tuple(float(f"{factor * own:g}") for factor in RATE_FACTORS)


def best_rates(study: Study, request: Request, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each arm the rate with the best held-out score; where there was no search, or not yet, the only or own one.

    found: what search jobs stored.
    """
    best = {}
    for arm in study.arms:
        jobs = [job for job in found if job["arm"] == arm.key]
        own = experiment_of(arm, request).optimizer.learning_rate
        best[arm.key] = request.rates[0] if request.rates and len(request.rates) == 1 else own
        if jobs:
            best[arm.key] = best_of(jobs)
    return best


def best_of(found: Sequence[Mapping[str, Any]]) -> float:
    """The rate of an arm's stored search jobs with the best held-out score; of equal ones the smallest."""
    return float(min(found, key=lambda job: (-search_score(job), job["rate"]))["rate"])


def search_score(stored: Mapping[str, Any]) -> float:
    """The held-out accuracy, or mean average precision, of a stored search job; 0 for a run that diverged."""
    if stored.get("diverged"):
        return 0.0
    metrics = stored["results"][0]["metrics"]
    return float(metrics.get("top1", metrics.get("mAP")))


def final_jobs(study: Study, request: Request, rates: Mapping[str, float], costs: Costs | None) -> list[Job]:
    """Every arm with every seed: for all epochs (and the shares of them the study asks for), and for equal time."""
    jobs = {}
    for seed in request.seeds:
        for arm in study.arms:
            for epochs in lengths_of(study, arm, request, costs):
                experiment = experiment_of(
                    arm, request, epochs=epochs, seed=seed, **{"optimizer.learning_rate": rates[arm.key]}
                )
                name = f"{arm.key}-{epochs}ep-lr{rates[arm.key]:g}-seed{seed}"
                jobs[name] = Job(name, "final", arm, experiment, measures_of(study, request))
    return list(jobs.values())


def lengths_of(study: Study, arm: Arm, request: Request, costs: Costs | None) -> list[int]:
    """The numbers of epochs an arm is trained for, the longest first."""
    longest = epochs_of(arm, request)
    lengths = {max(1, round(share * longest)) for share in study.lengths}
    if study.equal_time and costs is not None:
        lengths.add(equal_time(study, arm, request, costs))
    return sorted(lengths, reverse=True)


def equal_time(study: Study, arm: Arm, request: Request, costs: Costs) -> int:
    """The epochs of an arm that cost the time of all epochs of the first arm; at least 1."""
    plain = study.arms[0]
    share = seconds_per_image(plain, costs) / seconds_per_image(arm, costs)
    return max(1, round(epochs_of(plain, request) * share))


def relative_time(study: Study, arm: Arm, epochs: int, request: Request, costs: Costs) -> float:
    """The time of so many epochs of an arm, over that of all epochs of the first arm."""
    plain = study.arms[0]
    whole = epochs_of(plain, request) * seconds_per_image(plain, costs)
    return epochs * seconds_per_image(arm, costs) / whole


def seconds_per_image(arm: Arm, costs: Costs) -> float:
    """What one image costs in an arm's step, its views included."""
    schemes = costs[arm.recipe]
    scheme = SCHEME_COSTS[arm.scheme]
    if scheme not in schemes:
        raise UserError(f"{arm.recipe}: its cost with {scheme} was not measured; remove the study's costs.json")
    return schemes[scheme]


def measures_of(study: Study, request: Request) -> tuple[tuple[Measure, str, float | None], ...]:
    """Each measure on each source that suits it: images of several classes by SVMs, and those alone by detection.

    Raises UserError if nothing is left.
    """
    found: dict[tuple[str, str], tuple[Measure, str, float | None]] = {}
    for target in request.targets:
        for measure in study.measures:
            fits = measure.protocol in ("svm", "low-shot") or target.several == (measure.protocol == "detect")
            if not fits and measure.protocol in ("knn", "linear", "probe"):
                measure, fits = SVM, True
            if fits:
                found.setdefault((target.source, measure.title), (measure, target.source, None))
    if not found:
        shown = ", ".join(target.source for target in request.targets)
        if study.measures[0].protocol == "detect":
            raise UserError(
                f"{study.name} needs boxes around objects, which {shown} has not; give --evaluate-on voc:PATH"
            )
        raise UserError(f"{study.name} needs one class an image, those of {shown} show several; give other images")
    return tuple(found.values())
