"""The studies of the whole paper, which share their runs, and what they are all measured by."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
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
from hexa_paper.plan import Evaluation
from hexa_paper.request import Request
from hexa_paper.running import complete
from hexa_paper.storage import refuse
from hexa_paper.studies import ALL, EXPERIMENTS, KNN, LEARNERS, TABLES, Arm, Study, learned, shortened, study
from hexa_paper.work import Work, measured_on

#: The studies, with their methods.
PARTS = ALL
#: A search takes a quarter of the epochs, so with fewer than these there is none, and rates are the recipes'.
SEARCHED = 4
#: Parts that are no study.
SEARCH, UNTRAINED = "rate search", "random weights"
#: Options of all experiments together; the others are of a single one.
_OPTIONS = {"data", "data_voc", "time", "out", "seeds", "epochs", "workers", "fields"}


@dataclass
class Parts:
    """What was asked for, and what is known of it. request.targets: --data, then VOC2007 if it is given.

    seconds: for everything, over all commands. left_out: why parts are missing. failed: (part, arm) -> why, since the
    command was given. clock: the time since then.
    """

    request: Request
    seconds: float | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(lambda: 0.0))
    _keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, asked: Request) -> Self:
        """Check the request; write nothing. Raises UserError. Without data_voc tables 2 and 4 are left out."""
        for one in (one for one in fields(Request) if one.name not in _OPTIONS):
            given = getattr(asked, one.name) not in (None, (), [], one.default)
            refuse(given, f"--{one.name.replace('_', '-')} applies to a single experiment; leave it out")
        both = asked.time is not None and asked.epochs is not None
        refuse(both, "--time and --epochs exclude each other; give one of them")
        seconds = None if asked.time is None else seconds_of(asked.time)
        folder = Path("runs/all" if asked.out is None else asked.out)
        request = replace(asked, out=folder).opened([asked.data, *([asked.data_voc] if asked.data_voc else [])])
        whole = cls(request, seconds)
        refuse(not whole.parts(1), f"{asked.data}: fits none of the experiments; give images with one class each")
        plan.check(whole.search(1).study, request)
        if storage.check(folder, whole.claim):
            before = storage.seeds_of(folder / "table1-moco")
            added = (seed for seed in asked.seeds if seed not in before)
            whole.request = replace(request, seeds=(*before, *added))
        return whole

    @property
    def out(self) -> Path:
        """The folder of everything."""
        return self.request.folder

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of the folder have in common, as JSON."""
        return {"experiment": "all", **self.request.claim}

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
                request = replace(self.request, targets=targets, epochs=epochs, shared="../runs", out=self.out / part)
                plan.measures_of(chosen, request)
            except UserError as error:
                self.left_out[part] = str(error).removeprefix(f"{name}: ")
                continue
            arms = [arm for arm in chosen.arms if name not in TABLES or not arm.published or paper.row_of(name, arm)]
            arms = [self._with_rate(arm, rates or {}) for arm in arms]
            measures = tuple(shortened(measure, epochs) for measure in chosen.measures)
            chosen = replace(chosen, arms=tuple(arms), measures=measures, equal_time=False, search=False)
            if arms:
                made[part] = Work(chosen, request)
        return made

    def _with_rate(self, arm: Arm, rates: Mapping[str, float]) -> Arm:
        rate = rates.get(self.arm_key(arm))
        return arm if rate is None else replace(arm, changes={**arm.changes, "optimizer.learning_rate": rate})

    def arm_key(self, arm: Arm) -> str:
        """The same for arms of several studies that train alike, whatever their rates."""
        alike: dict[str, Any] = {"seed": 0, "epochs": 1, "optimizer.learning_rate": 1.0}
        decisive = json.dumps([arm.recipe, arm.scheme, {**arm.changes, "optimizer.learning_rate": 1.0}], sort_keys=True)
        if decisive not in self._keys:  # making an experiment takes a while
            self._keys[decisive] = plan.run_name(arm, plan.experiment_of(arm, self.request, **alike))
        return self._keys[decisive]

    @functools.cached_property
    def arms(self) -> dict[str, Arm]:
        """Every arm once, by its key."""
        return {self.arm_key(arm): arm for part in self.parts(1).values() for arm in part.study.arms}

    def search(self, epochs: int) -> Work:
        """The search for the rate of every arm, on held-out training images: all arms as one study."""
        arms = tuple(replace(arm, key=key) for key, arm in self.arms.items())
        chosen = Study("all", "", "small", "", arms, (KNN,), search=epochs >= SEARCHED)
        return Work(chosen, replace(self.request, epochs=epochs, out=self.out / "search"))

    def evaluations(self, epochs: int) -> Iterator[Evaluation]:
        """Every evaluation once, with the lengths of runs of these epochs."""
        parts = self.parts(epochs)
        once: dict[tuple[str, str], Evaluation] = {}
        for one in (one for part in parts.values() for one in plan.measures_of(part.study, part.request)):
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
