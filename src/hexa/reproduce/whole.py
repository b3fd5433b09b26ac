"""All of the paper in one folder: studies share their runs, and one length of all runs fits the given time."""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.reporting.tables import counted, format_duration
from hexa.reproduce import paper, plan, storage
from hexa.reproduce.arms import METHODS, Arm
from hexa.reproduce.costs import Progress, costs_of
from hexa.reproduce.plan import Costs, Evaluation, Job, Request
from hexa.reproduce.printing import Part
from hexa.reproduce.rows import LEARNERS, TABLES
from hexa.reproduce.running import complete
from hexa.reproduce.session import Session, plain_fields, requested
from hexa.reproduce.studies import KNN, OF_VOC, WITH_VOC, Measure, Study, learned, shortened, study
from hexa.runtime.console import Console
from hexa.runtime.parsing import seconds_of
from hexa.runtime.signals import Interrupted
from hexa.weights.pretrained import random_backbone

#: Learning curves stand first, since their runs, which the others share, keep the checkpoints that curves are made of.
PARTS = (
    ("learning-curves", "moco"),
    ("learning-curves", "dcluster"),
    *((table, method) for table in ("table1", "table2", "table3", "table5") for method in METHODS),
    ("table4", "moco"),
    ("ablation", "moco"),
    ("ablation", "dcluster"),
    ("attack-grid", "dcluster"),
    ("beta-study", "dcluster"),
)
#: A search takes a quarter of the epochs, so with fewer than these there is none, and rates are the recipes'.
SEARCHED = 4
#: Estimates may fill this share of the given time; a run costs these seconds beside its steps.
_SHARE, _RUN_SECONDS = 0.85, 3.0
#: Parts that are no study.
SEARCH, UNTRAINED = "rate search", "random weights"
DECIDED = "plan.json"


@dataclass
class Whole:
    """What was asked for, and what is known of it. request.targets: --data, then VOC2007 if it is given.

    seconds: for everything, over all sessions. left_out: why parts are missing. failed: (part, arm) -> why, since the
    command was given, at `began`.
    """

    request: Request
    out: Path
    seconds: float | None = None
    workers: int = 1
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        data: str,
        *,
        data_voc: str | None = None,
        time: str | None = None,
        out: Path | str | None = None,
        seeds: Sequence[int] = (0, 1, 2),
        epochs: int | None = None,
        workers: int = 1,
        fields: Mapping[str, Any] | None = None,
        **refused: Any,
    ) -> Whole:
        """Everything checked, nothing written. Raises UserError.

        time: such as 12h, for everything: it decides how many epochs all runs take, at most their recipes'.
        data_voc: VOC2007; without it tables 2 and 4 are left out. refused: options of single experiments.
        """
        for name, value in refused.items():
            if value not in (None, (), []) and (name, value) != ("scale", "small"):
                raise UserError(f"--{name.replace('_', '-')} applies to a single experiment; leave it out")
        if time is not None and epochs is not None:
            raise UserError("--time and --epochs exclude each other; give one of them")
        seconds = None if time is None else seconds_of(time)
        request = requested(data, [data, *([data_voc] if data_voc else [])], "small", seeds, epochs, workers, fields)
        whole = cls(request, Path(out) if out is not None else Path("runs/all"), seconds, workers)
        if not whole.parts(1):
            raise UserError(f"{data}: fits none of the experiments; give images with one class each")
        plan.check(whole.every, request)
        if storage.check(whole.out, whole._claim):
            before = storage.seeds_of(whole.out / "table1-moco")
            whole.request = replace(request, seeds=(*before, *(seed for seed in seeds if seed not in before)))
        return whole

    @property
    def _claim(self) -> dict[str, Any]:
        given, sources = self.request, [target.source for target in self.request.targets]
        claim = {"data": given.data, "measured_on": sources, "epochs": given.epochs, "fields": plain_fields(given)}
        return {"experiment": "all", **claim}

    # -- the plan -----------------------------------------------------------------------------------------------------

    def parts(self, epochs: int, rates: Mapping[str, float] | None = None) -> dict[str, Session]:
        """The studies by name, with runs of this length. rates: of arms, by their keys of `arm_key`."""
        made = {}
        for name, method in PARTS:
            part, one_run = f"{name}-{method}", True if name == "learning-curves" else None
            try:
                chosen = study(name, method=method, data=self.request.data, one_run=one_run)
                request = replace(self.request, targets=self._targets(name), epochs=epochs, shared="../runs")
                plan.measures_of(chosen, request)
            except UserError as error:
                self.left_out[part] = str(error).removeprefix(f"{name}: ")
                continue
            arms = [arm for arm in chosen.arms if name not in TABLES or not arm.published or paper.row_of(name, arm)]
            arms = [self._with_rate(arm, rates or {}) for arm in arms]
            measures = tuple(shortened(measure, epochs) for measure in chosen.measures)
            chosen = replace(chosen, arms=tuple(arms), measures=measures, equal_time=False, search=False)
            if arms:
                made[part] = Session(chosen, request, self.out / part, self.workers)
        return made

    def _with_rate(self, arm: Arm, rates: Mapping[str, float]) -> Arm:
        rate = rates.get(self.arm_key(arm))
        return arm if rate is None else replace(arm, changes={**arm.changes, "optimizer.learning_rate": rate})

    def _targets(self, name: str) -> tuple[plan.Target, ...]:
        """What an experiment is measured on. Raises UserError for what needs VOC2007."""
        images, *voc = self.request.targets
        if name in OF_VOC and not voc:
            raise UserError("no --data-voc")
        return tuple(voc) if name in OF_VOC else (images, *voc) if name == WITH_VOC else (images,)

    def arm_key(self, arm: Arm) -> str:
        """The same for arms of several studies that train alike, whatever their rates."""
        alike: dict[str, Any] = {"seed": 0, "epochs": 1, "optimizer.learning_rate": 1.0}
        fields = json.dumps([arm.recipe, arm.scheme, {**arm.changes, "optimizer.learning_rate": 1.0}], sort_keys=True)
        if fields not in self._keys:  # making an experiment takes a while
            self._keys[fields] = plan.run_name(arm, plan.experiment_of(arm, self.request, **alike))
        return self._keys[fields]

    @functools.cached_property
    def arms(self) -> dict[str, Arm]:
        """Every arm once, by its key."""
        return {self.arm_key(arm): arm for part in self.parts(1).values() for arm in part.study.arms}

    @property
    def every(self) -> Study:
        """All arms as one study."""
        return Study("all", "", "small", "", tuple(self.arms.values()), ())

    def search(self, epochs: int) -> tuple[Study, list[Job]]:
        """The search for the rate of every arm, on held-out training images."""
        arms = tuple(replace(arm, key=key) for key, arm in self.arms.items())
        chosen = Study(SEARCH, "", "small", "", arms, (KNN,), search=epochs >= SEARCHED)
        return chosen, plan.search_jobs(chosen, replace(self.request, epochs=epochs))

    def searched(self, epochs: int) -> list[plan.Stored]:
        """As much of the search as is done."""
        stored = (storage.stored(self.out / "search", job.name, job.identity) for job in self.search(epochs)[1])
        return [job for job in stored if job]

    def rates(self, epochs: int) -> dict[str, float]:
        """The best rate of every arm by its key; the recipes' as long as nothing was searched."""
        return plan.best_rates(self.search(epochs)[0], self.request, self.searched(epochs))

    def costs(self, progress: Progress | None = None) -> Costs:
        """What an image costs in every arm, measured once; so is every evaluation, on random weights."""
        storage.claim(self.out, self._claim)
        costs = costs_of(self.every, self.request, self.out, progress=progress)
        evaluations = list(self.evaluations(1))
        for number, evaluation in enumerate(evaluations):
            if progress is not None:
                progress("measuring evaluations", number, len(evaluations))
            self.untrained(evaluation, self.request.seeds[0])
        return costs

    def evaluations(self, epochs: int) -> Iterator[Evaluation]:
        """Every evaluation once, with the lengths of runs of these epochs."""
        seen, parts = set(), self.parts(epochs)
        for part in parts.values():
            for evaluation in plan.measures_of(part.study, part.request):
                if (key := (evaluation.measure.title, evaluation.source)) not in seen:
                    seen.add(key)
                    yield evaluation
        for row in LEARNERS if "table3-moco" in parts else ():
            for measure in learned(row, epochs, self.request.num_images):
                yield Evaluation(measure, self.request.targets[0].source)

    def passes(self, epochs: int) -> dict[str, int]:
        """How often the evaluations that train a network see their training images, by title."""
        every = ((one.measure.title, one.measure.options.get("epochs")) for one in self.evaluations(epochs))
        return {title: passes for title, passes in every if passes}

    def untrained(self, evaluation: Evaluation, seed: int, *, stored: bool = False) -> dict[str, Any] | None:
        """The evaluation of random weights with the seconds it `took`, kept in the folder; None where it failed.

        stored: None if it was not made yet, too.
        """
        measure, source, *_ = evaluation
        first = plan.experiment_of(next(iter(self.arms.values())), self.request)
        decisive = [source, seed, measure.protocol, dict(measure.options), first.network.model_dump(mode="json")]
        name = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:8]
        path = self.out / "random-weights" / f"{measure.protocol}-seed{seed}-{name}.json"
        kept: dict[str, Any] | None = storage.read(path)
        if kept is None and not stored:
            with self.told(UNTRAINED, measure.title):
                made = complete(first)
                backbone, begin = random_backbone(made.network, made.views.size, seed), time.perf_counter()
                device = made.training.device
                result = evaluate(measure.protocol, backbone, source, seed=seed, device=device, **measure.options)
                kept = {"title": measure.title, "took": time.perf_counter() - begin, **result}
                storage.write(path, kept)
        return kept

    def lines(self, epochs: int, costs: Costs) -> list[Part]:
        """The plan of runs of this length: the search, every part, and random weights."""
        once = {}
        for short, long in zip(self.evaluations(1), self.evaluations(epochs), strict=True):
            kept = self.untrained(short, self.request.seeds[0], stored=True) or {"took": 0.0}
            longer = _length(long.measure) / _length(short.measure)
            once[long.measure.title, long.source] = kept["took"] * longer

        def training(jobs: Iterable[Job]) -> float:
            passes = (job.experiment.epochs * plan.seconds_per_image(job.arm, costs) for job in jobs)
            return sum(_RUN_SECONDS + self.request.num_images * seconds for seconds in passes)

        search, seeds, seen = self.search(epochs)[1], len(self.request.seeds), set[str]()
        scored = next(iter(once.values()), 0.0)
        made = [Part(SEARCH, len(self.arms), len(search), len(search), training(search), len(search) * scored)]
        for part, session in self.parts(epochs).items():
            jobs = session.jobs(None)[1]
            new = {job.run: job for job in jobs if job.run not in seen}
            seen |= new.keys()
            measured = sum(once[measure.title, source] for job in jobs for measure, source, *_ in job.measures)
            arms = len(session.study.arms)
            made.append(Part(part, arms, len(jobs), len(new), training(new.values()), measured))
        return [*made, Part(UNTRAINED, 1, 0, 0, 0.0, seeds * sum(once.values()))]

    def decide(self, costs: Costs) -> int:
        """The epochs of every run: as decided before, as given, or the most that fit. Raises UserError if none do."""
        kept = storage.read(self.out / DECIDED)
        if kept is not None and self.request.epochs in (None, kept["epochs"]):
            return int(kept["epochs"])
        if self.request.epochs is not None:
            return self.request.epochs
        most = min(plan.epochs_of(arm, self.request) for arm in self.arms.values())
        if self.seconds is None:
            return most
        lengths = [epochs for epochs in range(1, most + 1) if epochs < SEARCHED or epochs % SEARCHED == 0]

        def seconds(epochs: int) -> float:
            return sum(line.seconds for line in self.lines(epochs, costs)) / self.workers / _SHARE

        fit = bisect.bisect_right(lengths, self.seconds, key=seconds)
        if fit:
            return lengths[fit - 1]
        raise UserError(
            f"--time {format_duration(self.seconds)} is too short for one epoch of everything with "
            f"{counted(len(self.request.seeds), 'seed')}: give at least {math.ceil(seconds(1) / 60)}m, or fewer "
            "--seeds or images"
        )

    @contextlib.contextmanager
    def told(self, part: str, *arms: str, console: Console | None = None) -> Iterator[None]:
        """Note an error as the reason why these arms of a part have no result, and go on."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            said = str(error).partition("\n")[0][:300] or type(error).__name__
            self.failed |= {(part, arm): said for arm in arms}
            if console is not None:
                console.print(f"{part}, {', '.join(arms)}: {said}; continuing with the others")


def _length(measure: Measure) -> float:
    """The epochs or steps that the time of an evaluation grows with; 1 where it has neither."""
    return float(measure.options.get("epochs") or measure.options.get("steps") or 1)
