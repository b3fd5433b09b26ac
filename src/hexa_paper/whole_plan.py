"""The plan of all of the paper: studies that share their runs, all of one length."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import rich.table

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.reporting.tables import counted, format_duration
from hexa.runtime.console import Console
from hexa.runtime.progress import Progress, silent
from hexa.runtime.signals import Interrupted
from hexa.weights.pretrained import random_backbone
from hexa_paper import paper, storage
from hexa_paper.costs import costs_of
from hexa_paper.plan import Costs, Job, digest, experiment_of, run_name
from hexa_paper.request import Request
from hexa_paper.running import complete
from hexa_paper.storage import refuse
from hexa_paper.studies import (
    EXPERIMENTS,
    KNN,
    LEARNERS,
    PARTS,
    TABLES,
    Arm,
    Measure,
    Study,
    learned,
    shortened,
    study,
)
from hexa_paper.work import Work, measured_on, table

#: A search takes a quarter of the epochs, so with fewer than these there is none, and rates are the recipes'.
SEARCHED = 4
#: Parts that are no study.
SEARCH = "rate search"
UNTRAINED = "random weights"
#: Options of all experiments together; the others are of a single one.
_OPTIONS = {"data", "data_voc", "out", "seeds", "epochs", "fields"}


@dataclass(frozen=True)
class WholePlan:
    """The studies of the whole paper, which share their runs.

    request: what was asked for; its targets are --data, then VOC2007 if it is given.
    costs: what an image costs in every arm; None until it is measured.
    epochs: of every run.
    left_out: why parts are missing.
    failed: (part, arm) -> why, since the command was given.
    """

    request: Request
    costs: Costs | None = None
    epochs: int = 1
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, asked: Request) -> Self:
        """Check the request; write nothing. Raises UserError. Without data_voc tables 2 and 4 are left out."""
        for one in (one for one in fields(Request) if one.name not in _OPTIONS):
            given = getattr(asked, one.name) not in (None, (), [], one.default)
            refuse(
                given,
                f"--{one.name.replace('_', '-')} applies to a single experiment; leave it out",
            )
        folder = Path("runs/all" if asked.out is None else asked.out)
        request = replace(asked, out=folder).opened(
            [asked.data, *([asked.data_voc] if asked.data_voc else [])]
        )
        whole = cls(request)
        refuse(
            not whole.parts(),
            f"{asked.data}: fits none of the experiments; give images with one class each",
        )
        recipes = (experiment_of(arm, request).epochs for arm in whole.arms.values())
        whole = replace(whole, epochs=asked.epochs or min(recipes))
        whole.search.check()
        before = (
            storage.seeds_of(folder / "table1-moco") if storage.check(folder, whole.claim) else []
        )
        added = (seed for seed in asked.seeds if seed not in before)
        return replace(whole, request=replace(request, seeds=(*before, *added)))

    @property
    def out(self) -> Path:
        """The folder of everything."""
        return self.request.folder

    @property
    def claim(self) -> dict[str, Any]:
        """What all runs of the folder have in common, as JSON."""
        return {"experiment": "all", **self.request.claim}

    # -- the parts ----------------------------------------------------------------------------------------------------

    def parts(self, rates: Mapping[str, float] | None = None) -> dict[str, Work]:
        """The studies by name. rates: of arms, by their keys of `arm_key`; those of the recipes without it."""
        made: dict[str, Work] = {}
        images, *voc = self.request.targets
        for name, method in PARTS:
            part = f"{name}-{method}"
            one_run = True if name == "learning-curves" else None
            try:
                chosen = study(name, method=method, data=self.request.data, one_run=one_run)
                refuse(not voc and EXPERIMENTS[name].get("images") == "VOC07", "no --data-voc")
                sources = measured_on(name, [images.source], voc[0].source if voc else None)
                targets = tuple(
                    target for target in self.request.targets if target.source in sources
                )
                common: dict[str, Any] = {
                    "targets": targets,
                    "epochs": self.epochs,
                    "shared": "../runs",
                }
                work = Work(chosen, replace(self.request, **common, out=self.out / part))
                work.measures()  # raises if there are none
            except UserError as error:
                self.left_out[part] = str(error).removeprefix(f"{name}: ")
                continue
            arms = [
                arm
                for arm in chosen.arms
                if name not in TABLES or not arm.published or paper.row_of(name, arm)
            ]
            found = {key: {"optimizer.learning_rate": rate} for key, rate in (rates or {}).items()}
            arms = [
                replace(arm, changes={**arm.changes, **found.get(self.arm_key(arm), {})})
                for arm in arms
            ]
            measures = tuple(shortened(measure, self.epochs) for measure in chosen.measures)
            chosen = replace(
                chosen, arms=tuple(arms), measures=measures, equal_time=False, search=False
            )
            if arms:
                made[part] = replace(work, study=chosen)
        return made

    def arm_key(self, arm: Arm) -> str:
        """The same for arms of several studies that train alike, whatever their rates."""
        alike: dict[str, Any] = {"seed": 0, "epochs": 1, "optimizer.learning_rate": 1.0}
        decisive = json.dumps(
            [arm.recipe, arm.scheme, {**arm.changes, "optimizer.learning_rate": 1.0}],
            sort_keys=True,
        )
        if decisive not in self._keys:  # making an experiment takes a while
            self._keys[decisive] = run_name(arm, experiment_of(arm, self.request, **alike))
        return self._keys[decisive]

    @functools.cached_property
    def arms(self) -> dict[str, Arm]:
        """Every arm once, by its key."""
        return {self.arm_key(arm): arm for part in self.parts().values() for arm in part.study.arms}

    @functools.cached_property
    def search(self) -> Work:
        """The search for the rate of every arm, on held-out training images: all arms as one study."""
        arms = tuple(replace(arm, key=key) for key, arm in self.arms.items())
        chosen = Study("all", "", "small", "", arms, (KNN,), search=self.epochs >= SEARCHED)
        return Work(
            chosen, replace(self.request, epochs=self.epochs, out=self.out / "search"), self.costs
        )

    @functools.cached_property
    def evaluations(self) -> list[Measure]:
        """Every evaluation once, with the lengths of runs of these epochs."""
        parts = self.parts()
        once: dict[tuple[str, str], Measure] = {}
        for one in (one for part in parts.values() for one in part.measures()):
            once.setdefault((one.title, one.source), one)
        learners = LEARNERS if "table3-moco" in parts else ()
        return [
            *once.values(),
            *(one for row in learners for one in learned(row, self.epochs, self.request)),
        ]

    @property
    def passes(self) -> dict[str, int]:
        """How often the evaluations that train a network see their training images, by title."""
        return {
            one.title: one.options["epochs"]
            for one in self.evaluations
            if one.options.get("epochs")
        }

    def untrained(
        self, measure: Measure, seed: int, *, stored: bool = False
    ) -> dict[str, Any] | None:
        """The evaluation of random weights, kept in the folder; None if it failed.

        stored: None if it was not made yet, too.
        """
        first = experiment_of(next(iter(self.arms.values())), self.request)
        options = dict(measure.options)
        network = first.network.model_dump(mode="json")
        name = digest(
            [measure.source, seed, measure.protocol, options, network, first.views.test_size]
        )
        path = self.out / "random-weights" / f"{measure.protocol}-seed{seed}-{name}.json"
        kept: dict[str, Any] | None = storage.read(path)
        if kept is None and not stored:
            with self.told(UNTRAINED, measure.title):
                made = complete(first)
                backbone = random_backbone(made.network, made.views.test_size, seed)
                options |= {"seed": seed, "device": made.training.device}
                result = evaluate(measure.protocol, backbone, measure.source, **options)
                kept = {"title": measure.title, **result}
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
            self.failed.update(dict.fromkeys(((part, arm) for arm in arms), said))
            if console is not None:
                console.print(f"{part}, {', '.join(arms)}: {said}; continuing with the others")

    # -- the plan -----------------------------------------------------------------------------------------------------

    #: What is carried out, in a line.
    title = "all experiments of the paper"

    def measured(self, progress: Progress = silent) -> Self:
        """With what an image costs in every arm, which is measured once."""
        storage.claim(self.out, self.claim)
        costs = costs_of(self.arms.values(), self.request.plain_fields, self.out, progress=progress)
        return replace(self, costs=costs)

    def lines(self) -> list[dict[str, Any]]:
        """The runs by part, the search first, with seconds of pre-training."""
        seen = set[str]()
        made = [self._line(SEARCH, len(self.arms), self.search.search, self.search.search)]
        for part, work in self.parts().items():
            jobs = work.final
            new = {job.run: job for job in jobs if job.run not in seen}
            seen |= new.keys()
            made.append(self._line(part, len(work.study.arms), jobs, list(new.values())))
        return made

    def _line(
        self, part: str, arms: int, jobs: Sequence[Job], new: Sequence[Job]
    ) -> dict[str, Any]:
        passes = sum(job.experiment.epochs * self.search.seconds(job.arm) for job in new)
        counts = {"arms": arms, "runs": len(jobs), "of them new": len(new)}
        return {"": part, **counts, "training": self.request.num_images * passes}

    def plan(self) -> Iterator[rich.table.Table | str]:
        """The plan as lines for a terminal."""
        shapes = {"training": format_duration}
        yield table(self.lines(), shapes, ("runs", "of them new", *shapes))
        seeds = ", ".join(map(str, self.request.seeds))
        length = counted(self.epochs, "epoch")
        yield f"{length} for every run, seeds {seeds}; runs that several parts have are made once"
        for reason in dict.fromkeys(self.left_out.values()):
            yield f"left out: {', '.join(name for name, why in self.left_out.items() if why == reason)}: {reason}"
        yield from (
            f"{title}: passes over its training images: {n}" for title, n in self.passes.items()
        )
