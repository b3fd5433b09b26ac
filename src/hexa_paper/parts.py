"""The studies of the whole paper, which share their runs, and what they are all measured by."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.runtime.console import Console
from hexa.runtime.parsing import seconds_of
from hexa.runtime.signals import Interrupted
from hexa.training.clock import Clock
from hexa.weights.pretrained import random_backbone
from hexa_paper import paper, plan, storage
from hexa_paper.asking import Request, measured_on, plain_fields, requested
from hexa_paper.plan import Evaluation, Stored
from hexa_paper.refusal import refuse
from hexa_paper.running import complete
from hexa_paper.studies import ALL, EXPERIMENTS, KNN, LEARNERS, TABLES, Arm, Study, learned, shortened, study
from hexa_paper.work import Work

#: The studies, with their methods.
PARTS = ALL
#: A search takes a quarter of the epochs, so with fewer than these there is none, and rates are the recipes'.
SEARCHED = 4
#: Parts that are no study.
SEARCH, UNTRAINED = "rate search", "random weights"


@dataclass
class Parts:
    """What was asked for, and what is known of it. request.targets: --data, then VOC2007 if it is given.

    seconds: for everything, over all commands. left_out: why parts are missing. failed: (part, arm) -> why, since the
    command was given. clock: the time since then.
    """

    request: Request
    out: Path
    seconds: float | None = None
    workers: int = 1
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(lambda: 0.0))
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
    ) -> Self:
        """Check the request; write nothing. Raises UserError.

        time: such as 12h, for everything: it decides how many epochs all runs take, at most their recipes'.
        data_voc: VOC2007; without it tables 2 and 4 are left out. refused: options of single experiments.
        """
        for name, value in refused.items():
            given = value not in (None, (), []) and (name, value) != ("scale", "small")
            refuse(given, f"--{name.replace('_', '-')} applies to a single experiment; leave it out")
        both = time is not None and epochs is not None
        refuse(both, "--time and --epochs exclude each other; give one of them")
        seconds, sources = None if time is None else seconds_of(time), [data, *([data_voc] if data_voc else [])]
        asked = {"seeds": tuple(seeds), "epochs": epochs, "fields": fields or {}}
        request = requested(data, sources, "small", workers, **asked)
        whole = cls(request, Path(out) if out is not None else Path("runs/all"), seconds, workers)
        refuse(not whole.parts(1), f"{data}: fits none of the experiments; give images with one class each")
        plan.check(whole.every, request)
        if storage.check(whole.out, whole.claim):
            before = storage.seeds_of(whole.out / "table1-moco")
            whole.request = replace(request, seeds=(*before, *(seed for seed in seeds if seed not in before)))
        return whole

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of the folder have in common, as JSON."""
        given, sources = self.request, [target.source for target in self.request.targets]
        claim = {"data": given.data, "measured_on": sources, "epochs": given.epochs, "fields": plain_fields(given)}
        return {"experiment": "all", **claim}

    # -- the parts ----------------------------------------------------------------------------------------------------

    def parts(self, epochs: int, rates: Mapping[str, float] | None = None) -> dict[str, Work]:
        """The studies by name, with runs of this length. rates: of arms, by their keys of `arm_key`."""
        made = {}
        images, *voc = self.request.targets
        for name, method in PARTS:
            part, one_run = f"{name}-{method}", True if name == "learning-curves" else None
            try:
                chosen = study(name, method=method, data=self.request.data, one_run=one_run)
                refuse(not voc and EXPERIMENTS[name].get("images") == "VOC07", "no --data-voc")
                sources = measured_on(name, [images.source], voc[0].source if voc else None)
                targets = tuple(target for target in self.request.targets if target.source in sources)
                request = replace(self.request, targets=targets, epochs=epochs, shared="../runs")
                plan.measures_of(chosen, request)
            except UserError as error:
                self.left_out[part] = str(error).removeprefix(f"{name}: ")
                continue
            arms = [arm for arm in chosen.arms if name not in TABLES or not arm.published or paper.row_of(name, arm)]
            arms = [self._with_rate(arm, rates or {}) for arm in arms]
            measures = tuple(shortened(measure, epochs) for measure in chosen.measures)
            chosen = replace(chosen, arms=tuple(arms), measures=measures, equal_time=False, search=False)
            if arms:
                made[part] = Work(chosen, request, self.out / part, self.workers)
        return made

    def _with_rate(self, arm: Arm, rates: Mapping[str, float]) -> Arm:
        rate = rates.get(self.arm_key(arm))
        return arm if rate is None else replace(arm, changes={**arm.changes, "optimizer.learning_rate": rate})

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

    def search(self, epochs: int) -> Work:
        """The search for the rate of every arm, on held-out training images."""
        arms = tuple(replace(arm, key=key) for key, arm in self.arms.items())
        chosen = Study(SEARCH, "", "small", "", arms, (KNN,), search=epochs >= SEARCHED)
        return Work(chosen, replace(self.request, epochs=epochs), self.out / "search", self.workers)

    def searched(self, epochs: int) -> list[Stored]:
        """As much of the search as is done."""
        search = self.search(epochs)
        return list(search.stored(search.search))

    def rates(self, epochs: int) -> dict[str, float]:
        """The best rate of every arm by its key; the recipes' as long as nothing was searched."""
        return plan.best_rates(self.search(epochs).study, self.request, self.searched(epochs))

    def evaluations(self, epochs: int) -> Iterator[Evaluation]:
        """Every evaluation once, with the lengths of runs of these epochs."""
        parts = self.parts(epochs)
        once: dict[tuple[str, str], Evaluation] = {}
        for part in parts.values():
            for one in plan.measures_of(part.study, part.request):
                once.setdefault((one.measure.title, one.source), one)
        yield from once.values()
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
