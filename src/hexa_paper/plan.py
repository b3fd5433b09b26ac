"""From a study to its runs: which experiments, with which seeds and learning rates, measured by what."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.config import some
from hexa.recipes.experiment import Experiment, override
from hexa_paper import results
from hexa_paper.request import Images, Request, refuse
from hexa_paper.schemes import SCHEMES
from hexa_paper.studies import CIFAR, KNN, SVM, Arm, Measure, Study, digest

#: The learning rates that are tried, as multiples of the recipe's.
RATE_FACTORS = (0.5, 1.0, 2.0, 4.0)
#: Searching runs have this seed.
SEARCH_SEED = 1000
#: The share of the training images on which they are scored.
HOLDOUT = 0.1
#: Their length, as a share of the arm's epochs, so that four rates cost what one seed does.
SEARCH_SHARE = 0.25
#: With fewer epochs nothing is searched, unless rates are given.
SEARCHED_EPOCHS = 4
#: Turned off in studies to save time.
QUIET: dict[str, Any] = {
    "training.tensorboard": False,
    "training.report": False,
    "monitor.knn_every": 0,
}


@dataclass(frozen=True, eq=False)
class Job:
    """One run, and its evaluations."""

    name: str
    """The name of its folder and of its file of results, derived from everything that decides them."""
    arm: Arm
    experiment: Experiment
    """Complete: with data, epochs, seed and learning rate."""
    measures: tuple[Measure, ...]
    searching: bool = False
    """True if the run chooses a learning rate."""
    teacher: str = ""
    """The name of the run that is `method.teacher`; empty for none."""

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self.experiment.optimizer.learning_rate

    def fields(self, out: Path) -> dict[str, Any]:
        """Fields of the experiment that name other runs of the folder `out`."""
        teacher = str(results.run_folder(out, self.teacher))
        return {"method.teacher": teacher} if self.teacher else {}

    def missing(self, out: Path) -> list[Measure]:
        """The evaluations that its file of results lacks; none for a run that diverged."""
        found = results.read(out, self.name)
        if found is None:
            return list(self.measures)
        if "diverged" in found:
            return []
        return [measure for measure in self.measures if measure.key not in found["results"]]

    def measured(self, out: Path) -> list[tuple[Measure, dict[str, Any]]]:
        """The evaluations that are done, each with its result."""
        found = results.read(out, self.name) or {"results": {}}
        kept = found["results"]
        return [(one, kept[one.key]) for one in self.measures if one.key in kept]


@functools.cache
def _made(recipe: str, changes: str, fields: str) -> Experiment:
    """A recipe, then an arm's changes, then a request's fields; both as JSON. Raises ConfigError.

    A field of a hard example is for the arms that have it: it must not add one to the others.
    """
    made = override(recipes.get(recipe), json.loads(changes))
    given = json.loads(fields)
    return override(made, {path: given[path] for path in given if concerns(path, made)})


def experiment_of(arm: Arm, request: Request) -> Experiment:
    """The experiment of an arm, without a seed. Raises ConfigError."""
    changes = {"data": request.data, **QUIET, **arm.changes}
    return _made(arm.recipe, json.dumps(changes), json.dumps(dict(request.fields)))


def concerns(path: str, experiment: Experiment) -> bool:
    """False if a field belongs to a hard example that the experiment lacks."""
    group, _, rest = path.partition(".")
    return group != "hard_examples" or rest.partition(".")[0] in experiment.hard_examples


@dataclass(frozen=True)
class Plan:
    """A study with the images, seeds, epochs and fields of a request."""

    study: Study
    request: Request
    targets: tuple[Images, ...]
    """The images to measure on."""
    search_on: Images
    """The labelled images whose held-out training images score learning rates."""
    tables: Path
    """The folder of its tables and figures; runs and results are in the folder of the request."""

    def check(self) -> None:
        """Raise UserError for rates without a search, epochs that are published, fields that no arm has."""
        study = self.study
        request = self.request
        where = f"{study.name} at the {study.scale} scale"
        several = len(request.rates or ()) > 1
        remedy = "searches for no rate; give a single one"
        refuse(several and not study.search, f"--rates: {where} {remedy}")
        published = any(arm.epochs for arm in study.arms)
        given = request.epochs is not None
        refuse(published and given, f"--epochs: arms of {where} have published ones; leave it out")
        made = [experiment_of(arm, request) for arm in study.arms]
        known = some(sorted({name for experiment in made for name in experiment.hard_examples}))
        for path in request.fields:
            used = any(concerns(path, experiment) for experiment in made)
            remedy = f"no arm of {study.name} has that hard example; there are {known}"
            refuse(not used, f"--{path}: {remedy}")
        self.measures()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _job(
        self,
        arm: Arm,
        epochs: int,
        seed: int,
        rate: float,
        measures: Sequence[Measure],
        teacher: str = "",
    ) -> Job:
        changes = {"epochs": epochs, "seed": seed, "optimizer.learning_rate": rate}
        kept = [measure.epochs for measure in measures if measure.epochs]
        if kept:
            changes["training.keep_every"] = math.gcd(*kept)
        made = override(experiment_of(arm, self.request), changes)
        if arm.branch != "main":
            branch = {"branch": arm.branch}
            measures = [replace(one, options={**one.options, **branch}) for one in measures]
        essence = made.essence({"training", "monitor", "seed"})
        own = digest([essence, teacher.rpartition("-seed")[0]])
        name = f"{arm.recipe}-{SCHEMES[arm.scheme].name}-{epochs}ep-{own}-seed{seed}"
        searching = any(measure.holdout for measure in measures)
        return Job(name, arm, made, tuple(measures), searching, teacher)

    def _untrained(self, arm: Arm, seed: int, measures: Sequence[Measure]) -> Job:
        """The evaluations of random weights of the arm's network."""
        made = override(experiment_of(arm, self.request), {"seed": seed})
        decisive = [made.network.model_dump(mode="json"), made.views.test_size]
        return Job(f"random-weights-{digest(decisive)}-seed{seed}", arm, made, tuple(measures))

    @property
    def search(self) -> list[Job]:
        """The same search for every arm, on held-out training images; empty if there is nothing to choose from."""
        target = self.search_on
        one = SVM if target.several else KNN
        measures = [replace(one, source=target.source, holdout=HOLDOUT)]
        jobs = []
        for arm in self.study.arms if self.study.search else ():
            given = self.request.rates
            total = self.epochs_of(arm)
            enough = total >= SEARCHED_EPOCHS if given is None else len(given) > 1
            if arm.epochs == 0 or not enough:
                continue
            own = self.recipe_rate(arm)
            rates = given or [float(f"{factor * own:g}") for factor in RATE_FACTORS]
            epochs = max(1, round(SEARCH_SHARE * total))
            jobs += [self._job(arm, epochs, SEARCH_SEED, rate, measures) for rate in rates]
        return jobs

    def waiting(self) -> list[Job]:
        """The jobs that have to be trained next: those of the search, or else the final ones."""
        out = self.request.folder
        search = [job for job in self.search if job.missing(out)]
        if search:
            return search
        final = [job for job in self.final() if job.missing(out) and job.arm.epochs != 0]
        return [job for job in final if not results.is_trained(out, job.name)]

    def scores(self) -> list[tuple[Job, float]]:
        """The held-out accuracy, or mean average precision, of every search run that is done; 0 if it diverged."""
        found = []
        for job in self.search:
            if job.missing(self.request.folder):
                continue
            score = 0.0
            for _, result in job.measured(self.request.folder):
                metrics = result["metrics"]
                score = float(metrics.get("top1", metrics.get("mAP")))
            found.append((job, score))
        return found

    def rates(self) -> dict[str, float]:
        """The rate of each arm with the best held-out score so far, of equal ones the smallest.

        Without a search it is the given one, or else the recipe's.
        """
        given = self.request.rates or ()
        alone = given[0] if len(given) == 1 else None
        chosen = {arm.key: alone or self.recipe_rate(arm) for arm in self.study.arms}
        best: dict[str, tuple[float, float]] = {}
        for job, score in self.scores():
            found = (score, -job.rate)
            best[job.arm.key] = max(best.get(job.arm.key, found), found)
        return chosen | {key: -negative for key, (_, negative) in best.items()}

    def final(self) -> list[Job]:
        """Every arm with every seed, at the rates of the search so far, one seed after another; teachers first.

        Seeds of which the folder has results already join those that were asked for.
        """
        rates = self.rates()
        out = self.request.folder
        prefix = self._of_seed(0, rates)[0].name.rpartition("-seed")[0]
        names = re.compile(re.escape(prefix) + r"-seed(\d{1,9})")
        there = sorted(int(found[1]) for found in map(names.fullmatch, results.names(out)) if found)
        joined = [
            seed
            for seed in there
            if seed != SEARCH_SEED and self._of_seed(seed, rates)[0].measured(out)
        ]
        seeds = dict.fromkeys([*joined, *self.request.seeds])
        return [job for seed in seeds for job in self._of_seed(seed, rates)]

    def _of_seed(self, seed: int, rates: Mapping[str, float]) -> list[Job]:
        every = self.measures()
        jobs: list[Job] = []
        teachers: dict[str, str] = {}
        for arm in sorted(self.study.arms, key=lambda arm: bool(arm.teacher)):
            if arm.epochs == 0:
                jobs.append(self._untrained(arm, seed, every))
                continue
            measures = every
            if len(self.study.lengths) > 1:
                lengths = self.lengths_of(arm)
                measures = [replace(one, epochs=length) for length in lengths for one in every]
            teacher = teachers.get(arm.teacher, "")
            made = [
                self._job(arm, length, seed, rates[arm.key], measures, teacher)
                for length in dict.fromkeys([self.epochs_of(arm), *self.equal_times(arm)])
            ]
            teachers[arm.key] = made[0].name
            jobs += made
        return jobs

    def measures(self) -> list[Measure]:
        """Each measure on each source that suits it: images of several classes by SVMs, and those alone by detection.

        Raises UserError if nothing is left.
        """
        study = self.study
        chosen: dict[tuple[str, str], Measure] = {}
        for target in self.targets:
            for measure in study.measures:
                of_any = measure.protocol in ("svm", "low-shot")
                fits = of_any or target.several == (measure.protocol == "detect")
                if not fits and measure.protocol in ("knn", "linear", "probe"):
                    measure = SVM
                    fits = True
                # at the rates of ImageNet's classifiers those of CIFAR would learn nothing
                cifar = target.known_as in ("CIFAR-10", "CIFAR-100")
                if cifar and study.scale == "full" and measure.protocol == "linear":
                    measure = CIFAR
                if fits:
                    place = (target.source, measure.title)
                    chosen.setdefault(place, replace(measure, source=target.source))
        shown = some([target.source for target in self.targets])
        boxes = study.measures[0].protocol == "detect"
        remedy = f"needs boxes around objects, {shown} has none; give --data-voc voc:PATH"
        refuse(boxes and not chosen, f"{study.name} {remedy}")
        remedy = f"needs one class per image, but those of {shown} have several; give other images"
        refuse(not chosen, f"{study.name} {remedy}")
        return list(chosen.values())

    def column(self, measure: Measure) -> str:
        """The title of a measure, with its images if there are several sources."""
        several = len({one.source for one in self.measures()}) > 1
        return f"{measure.title} on {measure.source}" if several else measure.title

    # -- lengths and costs --------------------------------------------------------------------------------------------

    def recipe_rate(self, arm: Arm) -> float:
        """The learning rate of the arm's recipe."""
        return experiment_of(arm, self.request).optimizer.learning_rate

    def epochs_of(self, arm: Arm) -> int:
        """The epochs of an arm's longest run."""
        if arm.epochs is not None:
            return arm.epochs
        return self.request.epochs or experiment_of(arm, self.request).epochs

    def lengths_of(self, arm: Arm) -> list[int]:
        """The epochs after which an arm's longest run is measured, the longest first."""
        lengths = {max(1, round(share * self.epochs_of(arm))) for share in self.study.lengths}
        return sorted(lengths, reverse=True)

    def equal_times(self, arm: Arm) -> list[int]:
        """The epochs of an arm that take the time of all epochs of the first arm, at least 1; empty if it is unknown."""
        if not self.study.equal_time or arm.epochs == 0:
            return []
        plain = self.study.arms[0]
        return [max(1, round(self.epochs_of(plain) * self.cost(plain) / self.cost(arm)))]

    def relative_time(self, arm: Arm, epochs: int) -> float | None:
        """The time of this many epochs of an arm, over that of all epochs of the first arm; None if it is unknown."""
        if not self.study.equal_time or arm.epochs == 0:
            return None
        plain = self.study.arms[0]
        return epochs * self.cost(arm) / (self.epochs_of(plain) * self.cost(plain))

    def cost(self, arm: Arm) -> float:
        """The cost of an image in a step, in forward passes of a view of the recipe's size."""
        clean, further = self.study.passes
        made = experiment_of(arm, self.request)
        views = made.views
        area = float(views.num_views)
        for group in views.extra_crops:
            area += group.count * ((group.size or views.size) / views.size) ** 2
        terms = 0.0
        for hard in made.hard_examples.values():
            if hard.weight > 0:
                terms += hard.fraction * (1 - hard.start) * getattr(hard, "steps", 1)
        return area * (clean + further * terms)
