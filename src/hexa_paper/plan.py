"""From a study to its jobs and what they cost; nothing is read or written here."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.config import some
from hexa.recipes.experiment import Experiment, override
from hexa_paper.request import Request
from hexa_paper.schemes import SCHEMES
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
QUIET: dict[str, Any] = {
    "training.tensorboard": False,
    "training.report": False,
    "monitor.knn_every": 0,
}


@dataclass(frozen=True, eq=False)
class Job:
    """One pre-training with its evaluations: everything it needs, and a name to store it by.

    name: by which it is stored.
    phase: search or final.
    arm: what is trained.
    experiment: with its data, epochs, seed and learning rate.
    measures: what it is evaluated by, each with its source.
    run: the folder of a run that several studies share; empty for runs/NAME.
    teacher: the name of the job whose run is `method.teacher`; empty for none.
    """

    name: str
    phase: str
    arm: Arm
    experiment: Experiment
    measures: tuple[Measure, ...]
    run: str = ""
    teacher: str = ""

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """All of it as JSON, with its identity: a hash of everything that decides its result."""
        several = len({measure.source for measure in self.measures}) > 1
        record = {
            "name": self.name,
            **{
                key: value for key, value in (("run", self.run), ("teacher", self.teacher)) if value
            },
            "phase": self.phase,
            "arm": self.arm.key,
            "epochs": self.experiment.epochs,
            "rate": self.experiment.optimizer.learning_rate,
            "seed": self.experiment.seed,
            "experiment": self.experiment.model_dump(mode="json"),
            "measures": [
                {
                    "title": f"{measure.title} on {measure.source}" if several else measure.title,
                    "protocol": measure.protocol,
                    "data": measure.source,
                    "options": dict(measure.options),
                    "holdout": measure.holdout,
                    **({} if measure.epochs is None else {"epochs": measure.epochs}),
                }
                for measure in self.measures
            ],
        }
        return record | {
            "identity": digest(record | {"experiment": self.experiment.essence({"training"})}, 16)
        }


def taught(record: Mapping[str, Any], runs: Path) -> dict[str, Any]:
    """The field of a job that names the run it learns from, a folder in `runs`, if any."""
    return {"method.teacher": str(runs / record["teacher"])} if "teacher" in record else {}


def options_taught(job: Job, runs: Path) -> str:
    """The same fields as options of a command."""
    return "".join(f" --{path} {value}" for path, value in taught(job.record, runs).items())


def digest(decisive: object, digits: int = 8) -> str:
    """A hash of something that JSON can hold."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:digits]


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


def run_name(arm: Arm, experiment: Experiment) -> str:
    """The name of a run derived from everything that determines it, so that studies with the same one share it."""
    scheme = SCHEMES[arm.scheme].name
    own = digest(experiment.essence({"training", "monitor"}))
    return f"{arm.recipe}-{scheme}-{experiment.epochs}ep-seed{experiment.seed}-{own}"


def search_score(stored: Stored) -> float:
    """The held-out accuracy, or mean average precision, of a stored search job; 0 for a run that diverged."""
    if stored.get("diverged"):
        return 0.0
    metrics = stored["results"][0]["metrics"]
    return float(metrics.get("top1", metrics.get("mAP")))


@dataclass(frozen=True)
class Plan:
    """A study, and what was asked for.

    study: its arms and measures.
    request: images, seeds, epochs and fields.
    costs: what an image costs in every arm; None where that is not known, so that nothing is compared at equal time.
    """

    study: Study
    request: Request
    costs: Costs | None = None

    def check(self) -> None:
        """Raise UserError for several rates without a search, epochs that are published, fields that no arm has."""
        study = self.study
        request = self.request
        where = f"{study.name} at the {study.scale} scale"
        several = len(request.rates or ()) > 1
        refuse(
            several and not study.search,
            f"--rates: {where} searches for no rate; give a single one",
        )
        published = any(arm.epochs for arm in study.arms)
        refuse(
            published and request.epochs is not None,
            f"--epochs: arms of {where} have published ones; leave it out",
        )
        made = [experiment_of(arm, request) for arm in study.arms]
        known = some(sorted({name for experiment in made for name in experiment.hard_examples}))
        for path in request.fields:
            nobodys = not any(_concerns(path, experiment) for experiment in made)
            refuse(
                nobodys,
                f"--{path}: no arm of {study.name} has that hard example; there are {known}",
            )

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _job(
        self, arm: Arm, epochs: int, seed: int | None, rate: float, measures: Sequence[Measure]
    ) -> Job:
        """seed: None for the search."""
        phase, beside = ("search-", "") if seed is None else ("", f"-seed{seed}")
        kept = [measure.epochs for measure in measures if measure.epochs]
        if arm.branch != "main":
            measures = [
                replace(one, options={**one.options, "branch": arm.branch}) for one in measures
            ]
        changes = {
            "epochs": epochs,
            "seed": SEARCH_SEED if seed is None else seed,
            "optimizer.learning_rate": rate,
        }
        changes |= {"training.keep_every": math.gcd(*kept)} if kept else {}
        experiment = experiment_of(arm, self.request, **changes)
        run = f"{self.request.shared}/{run_name(arm, experiment)}" if self.request.shared else ""
        name = f"{phase}{arm.key}-{epochs}ep-lr{rate:g}{beside}"
        return Job(
            name, "search" if seed is None else "final", arm, experiment, tuple(measures), run
        )

    @property
    def search(self) -> list[Job]:
        """The same search for every arm, on held-out training images; empty if there is nothing to choose from.

        Runs are a quarter as long as the arm's, so that four rates cost what one seed does.
        """
        target = self.request.targets[0]
        measures = [replace(SVM if target.several else KNN, source=target.source, holdout=HOLDOUT)]
        jobs = []
        for arm in self.study.arms if self.study.search else ():
            rates = self.request.rates or tuple(
                float(f"{factor * self._rate(arm):g}") for factor in RATE_FACTORS
            )
            epochs = max(1, round(self.epochs_of(arm) / 4))
            jobs += [
                self._job(arm, epochs, None, rate, measures) for rate in rates if len(rates) > 1
            ]
        return jobs

    def final_jobs(self, rates: Mapping[str, float]) -> list[Job]:
        """Every arm with every seed: for all epochs (and the shares of them the study asks for), and for equal time."""
        measures = self.measures()
        jobs = []
        for seed in self.request.seeds:
            for arm in self.study.arms:
                lengths = self.lengths_of(arm)
                of_run = measures
                if self.study.one_run:
                    of_run = [
                        replace(measure, epochs=epochs)
                        for epochs in lengths
                        for measure in measures
                    ]
                    lengths = lengths[:1]
                jobs += [self._job(arm, epochs, seed, rates[arm.key], of_run) for epochs in lengths]
        named = {(job.arm.key, job.experiment.seed): job.name for job in jobs}
        taught = (named.get((job.arm.teacher, job.experiment.seed), "") for job in jobs)
        return [
            replace(job, teacher=name) if name else job
            for job, name in zip(jobs, taught, strict=True)
        ]

    def measures(self) -> list[Measure]:
        """Each measure on each source that suits it: images of several classes by SVMs, and those alone by detection.

        Raises UserError if nothing is left.
        """
        study = self.study
        chosen = dict[tuple[str, str], Measure]()
        for target in self.request.targets:
            for measure in study.measures:
                fits = measure.protocol in ("svm", "low-shot") or target.several == (
                    measure.protocol == "detect"
                )
                if not fits and measure.protocol in ("knn", "linear", "probe"):
                    measure = SVM
                    fits = True
                # at the rates of ImageNet's classifiers those of CIFAR would learn nothing
                cifar = target.known_as in ("CIFAR-10", "CIFAR-100")
                measure = (
                    CIFAR
                    if cifar and study.scale == "full" and measure.protocol == "linear"
                    else measure
                )
                if fits:
                    chosen.setdefault(
                        (target.source, measure.title), replace(measure, source=target.source)
                    )
        shown = some([target.source for target in self.request.targets])
        boxes = study.measures[0].protocol == "detect"
        needs = (
            f"{study.name} needs boxes around objects, {shown} has none; give --data-voc voc:PATH"
        )
        refuse(boxes and not chosen, needs)
        needs = f"{study.name} needs one class per image, but those of {shown} have several; give other images"
        refuse(not chosen, needs)
        return list(chosen.values())

    def best_rates(self, search: Sequence[Stored]) -> dict[str, float]:
        """The rate of each arm with the best held-out score, of equal ones the smallest; without a search the given
        one, else the recipe's.

        search: what search jobs stored.
        """
        found: dict[str, float] = {}
        for job in sorted(search, key=lambda job: (-search_score(job), job["rate"])):
            found.setdefault(job["arm"], float(job["rate"]))
        given = (
            self.request.rates[0] if self.request.rates and len(self.request.rates) == 1 else None
        )
        return {arm.key: found.get(arm.key) or given or self._rate(arm) for arm in self.study.arms}

    def _rate(self, arm: Arm) -> float:
        """The recipe's."""
        return experiment_of(arm, self.request).optimizer.learning_rate

    # -- lengths and costs --------------------------------------------------------------------------------------------

    def epochs_of(self, arm: Arm) -> int:
        """How long an arm trains at most."""
        return self.request.epochs or arm.epochs or experiment_of(arm, self.request).epochs

    def lengths_of(self, arm: Arm) -> list[int]:
        """The numbers of epochs an arm is trained for, the longest first."""
        lengths = {max(1, round(share * self.epochs_of(arm))) for share in self.study.lengths}
        return sorted(
            lengths | ({self.equal_time(arm)} if self.compares_times else set()), reverse=True
        )

    @property
    def compares_times(self) -> bool:
        """Whether arms are trained for equal time, too."""
        return self.study.equal_time and self.costs is not None

    def equal_time(self, arm: Arm) -> int:
        """The epochs of an arm that cost the time of all epochs of the first arm; at least 1."""
        plain = self.study.arms[0]
        return max(1, round(self.epochs_of(plain) * (self.seconds(plain) / self.seconds(arm))))

    def relative_time(self, arm: Arm, epochs: int) -> float | None:
        """The time of this many epochs of an arm, over that of all epochs of the first arm; None if it is unknown."""
        if self.costs is None:
            return None
        plain = self.study.arms[0]
        return epochs * self.seconds(arm) / (self.epochs_of(plain) * self.seconds(plain))

    def seconds(self, arm: Arm) -> float:
        """What one image costs in an arm's step, its views included."""
        assert self.costs is not None
        schemes = self.costs[arm.recipe]
        scheme = SCHEMES[arm.scheme].name
        remedy = "was not measured; remove the study's costs.json"
        refuse(scheme not in schemes, f"{arm.recipe}: its cost with {scheme} {remedy}")
        return schemes[scheme]
