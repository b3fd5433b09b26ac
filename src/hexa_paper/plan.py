"""From a study to its jobs, and what they cost: pure functions."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hexa import recipes
from hexa.config import some
from hexa.objective.schemes import SCHEMES
from hexa.recipes.experiment import Experiment, override
from hexa_paper.request import Request
from hexa_paper.storage import refuse
from hexa_paper.studies import CIFAR, KNN, SVM, Arm, Measure, Study

#: Seconds of one image on this machine: {recipe: {scheme of a benchmark: seconds}}.
Costs = Mapping[str, Mapping[str, float]]
Stored = Mapping[str, Any]
"""What a finished job left."""

#: What the learning rates are searched among: multiples of the recipe's.
RATE_FACTORS = (0.5, 1.0, 2.0, 4.0)
SEARCH_SEED = 1000
HOLDOUT = 0.1
#: Turned off in studies to save time.
QUIET: dict[str, Any] = {"training.tensorboard": False, "training.report": False, "monitor.knn_every": 0}
WATCHED: dict[str, Any] = {"monitor.knn_every": 1, "monitor.holdout": HOLDOUT}


class Evaluation(NamedTuple):
    """holdout: the share of the training images that is scored instead of the test images, if any.

    epochs: of the run that is measured, if not all.
    """

    measure: Measure
    source: str
    holdout: float | None = None
    epochs: int | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """One pre-training with its evaluations; everything it needs, and a name to store it by. phase: search or final.

    run: the folder of a run that studies share; runs/NAME if there is none.
    """

    name: str
    phase: str
    arm: Arm
    experiment: Experiment
    measures: tuple[Evaluation, ...]
    run: str = ""

    @property
    def rate(self) -> float:
        return self.experiment.optimizer.learning_rate

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """All of it as JSON, with its identity: a hash of all that decides its result."""
        several = len({source for _, source, *_ in self.measures}) > 1
        record = {
            "name": self.name,
            **({"run": self.run} if self.run else {}),
            "phase": self.phase,
            "arm": self.arm.key,
            "epochs": self.experiment.epochs,
            "rate": self.rate,
            "seed": self.experiment.seed,
            "experiment": self.experiment.model_dump(mode="json"),
            "measures": [
                {
                    "title": f"{measure.title} on {source}" if several else measure.title,
                    "protocol": measure.protocol,
                    "data": source,
                    "options": dict(measure.options),
                    "holdout": holdout,
                    **({} if epochs is None else {"epochs": epochs}),
                }
                for measure, source, holdout, epochs in self.measures
            ],
        }
        decisive = json.dumps(record | {"experiment": self.experiment.essence({"training"})}, sort_keys=True)
        return record | {"identity": hashlib.sha256(decisive.encode()).hexdigest()[:16]}


def experiment_of(arm: Arm, request: Request, **changes: Any) -> Experiment:
    """The recipe, then the arm's changes, then the request's. Raises ConfigError.

    A field of a hard example is for the arms that have it: it must not add one to the others.
    """
    usual = QUIET if request.until is None else QUIET | WATCHED | {"monitor.until": request.until}
    made = override(recipes.get(arm.recipe), {"data": request.data, **usual, **arm.changes})
    fields = {path: value for path, value in request.fields.items() if _concerns(path, made)}
    return override(made, {**fields, **changes})


def _concerns(path: str, experiment: Experiment) -> bool:
    group, _, rest = path.partition(".")
    return group != "hard_examples" or rest.partition(".")[0] in experiment.hard_examples


def check(study: Study, request: Request) -> None:
    """Raise UserError for several rates without a search, epochs that are published, fields that no arm has."""
    where, several = f"{study.name} at the {study.scale} scale", len(request.rates or ()) > 1
    refuse(several and not study.search, f"--rates: {where} searches for no rate; give a single one")
    published = any(arm.epochs for arm in study.arms)
    refuse(published and request.epochs is not None, f"--epochs: arms of {where} have published ones; leave it out")
    made = [experiment_of(arm, request) for arm in study.arms]
    known = some(sorted({name for experiment in made for name in experiment.hard_examples}))
    for path in request.fields:
        nobodys = not any(_concerns(path, experiment) for experiment in made)
        refuse(nobodys, f"--{path}: no arm of {study.name} has that hard example; there are {known}")


# -- jobs -------------------------------------------------------------------------------------------------------------


def _job(arm: Arm, request: Request, epochs: int, seed: int | None, rate: float, measures: list[Evaluation]) -> Job:
    """seed: None for the search."""
    phase, beside = ("search-", "") if seed is None else ("", f"-seed{seed}")
    kept = [measure.epochs for measure in measures if measure.epochs]
    changes = {"epochs": epochs, "seed": SEARCH_SEED if seed is None else seed, "optimizer.learning_rate": rate}
    experiment = experiment_of(arm, request, **changes, **({"training.keep_every": math.gcd(*kept)} if kept else {}))
    run = f"{request.shared}/{run_name(arm, experiment)}" if request.shared else ""
    name = f"{phase}{arm.key}-{epochs}ep-lr{rate:g}{beside}"
    return Job(name, "search" if seed is None else "final", arm, experiment, tuple(measures), run)


def run_name(arm: Arm, experiment: Experiment) -> str:
    """The name of a run derived from everything that determines it, so that studies with the same one share it."""
    decisive = json.dumps(experiment.essence({"training", "monitor"}), sort_keys=True)
    digest = hashlib.sha256(decisive.encode()).hexdigest()[:8]
    scheme = SCHEMES[arm.scheme].name
    return f"{arm.recipe}-{scheme}-{experiment.epochs}ep-seed{experiment.seed}-{digest}"


def search_jobs(study: Study, request: Request) -> list[Job]:
    """The same search for every arm, on held-out training images; empty if there is nothing to choose from.

    Runs are a quarter as long as the arm's, so that four rates cost what one seed does.
    """
    target, request = request.targets[0], replace(request, until=None)
    measures = [Evaluation(SVM if target.several else KNN, target.source, HOLDOUT)]
    jobs = []
    for arm in study.arms if study.search else ():
        own = experiment_of(arm, request).optimizer.learning_rate
        rates = request.rates or tuple(float(f"{factor * own:g}") for factor in RATE_FACTORS)
        epochs = max(1, round(epochs_of(arm, request) / 4))
        jobs += [_job(arm, request, epochs, None, rate, measures) for rate in rates if len(rates) > 1]
    return jobs


def final_jobs(study: Study, request: Request, rates: Mapping[str, float], costs: Costs | None) -> list[Job]:
    """Every arm with every seed: for all epochs (and the shares of them the study asks for), and for equal time."""
    measures = of_run = measures_of(study, request)
    jobs = []
    for seed in request.seeds:
        for arm in study.arms:
            lengths = lengths_of(study, arm, request, costs)
            if study.one_run:
                of_run = [measure._replace(epochs=epochs) for epochs in lengths for measure in measures]
                lengths = lengths[:1]
            jobs += [_job(arm, request, epochs, seed, rates[arm.key], of_run) for epochs in lengths]
    return jobs


def measures_of(study: Study, request: Request) -> list[Evaluation]:
    """Each measure on each source that suits it: images of several classes by SVMs, and those alone by detection.

    Raises UserError if nothing is left.
    """
    chosen: dict[tuple[str, str], Evaluation] = {}
    for target in request.targets:
        for measure in study.measures:
            fits = measure.protocol in ("svm", "low-shot") or target.several == (measure.protocol == "detect")
            if not fits and measure.protocol in ("knn", "linear", "probe"):
                measure, fits = SVM, True
            # at the rates of ImageNet's classifiers those of CIFAR would learn nothing
            cifar = target.known_as in ("CIFAR-10", "CIFAR-100")
            measure = CIFAR if cifar and study.scale == "full" and measure.protocol == "linear" else measure
            if fits:
                chosen.setdefault((target.source, measure.title), Evaluation(measure, target.source))
    shown, boxes = ", ".join(target.source for target in request.targets), study.measures[0].protocol == "detect"
    needs = f"{study.name} needs boxes around objects, {shown} has none; give --data-voc voc:PATH"
    refuse(boxes and not chosen, needs)
    refuse(not chosen, f"{study.name} needs one class per image, but those of {shown} have several; give other images")
    return list(chosen.values())


# -- learning rates ---------------------------------------------------------------------------------------------------


def best_rates(study: Study, request: Request, search: Sequence[Stored]) -> dict[str, float]:
    """The rate of each arm with the best held-out score, of equal ones the smallest; without a search the given one,
    else the recipe's.

    search: what search jobs stored.
    """
    found: dict[str, float] = {}
    for job in sorted(search, key=lambda job: (-search_score(job), job["rate"])):
        found.setdefault(job["arm"], float(job["rate"]))
    given = request.rates[0] if request.rates and len(request.rates) == 1 else None
    return {
        arm.key: found.get(arm.key) or given or experiment_of(arm, request).optimizer.learning_rate
        for arm in study.arms
    }


def search_score(stored: Stored) -> float:
    """The held-out accuracy, or mean average precision, of a stored search job; 0 for a run that diverged."""
    if stored.get("diverged"):
        return 0.0
    metrics = stored["results"][0]["metrics"]
    return float(metrics.get("top1", metrics.get("mAP")))


# -- lengths and costs ------------------------------------------------------------------------------------------------


def epochs_of(arm: Arm, request: Request) -> int:
    """How long an arm trains at most."""
    return request.epochs or arm.epochs or experiment_of(arm, request).epochs


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
    """The time of this many epochs of an arm, over that of all epochs of the first arm."""
    plain = study.arms[0]
    return epochs * seconds_per_image(arm, costs) / (epochs_of(plain, request) * seconds_per_image(plain, costs))


def seconds_per_image(arm: Arm, costs: Costs) -> float:
    """What one image costs in an arm's step, its views included."""
    schemes, scheme = costs[arm.recipe], SCHEMES[arm.scheme].name
    remedy = "was not measured; remove the study's costs.json"
    refuse(scheme not in schemes, f"{arm.recipe}: its cost with {scheme} {remedy}")
    return schemes[scheme]
