"""`hexa harden`: makes given weights robust on a person's images within a time, and says what it gained and cost."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch

from hexa.adaptation import wording
from hexa.adaptation.choice import SPARE
from hexa.adaptation.command import AdaptRequest, Outcome, Trained
from hexa.adaptation.plan import NATIVE_SHARE, Given, Plan
from hexa.adaptation.robustness import (
    CLEAN,
    Rows,
    Shown,
    Side,
    attack_all,
    attack_of,
    crossed,
    decide,
    difference,
    halves_of,
    lost_by,
    table,
)
from hexa.comparison.extraction import common, features_of as extracted, images_per_second
from hexa.comparison.labelled import Judge, can_judge, groups_note, labels_of
from hexa.comparison.leakage import apart
from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.source import Subset
from hexa.evaluation.split import draw_classes, draw_images
from hexa.measure.costs import Costs
from hexa.recipes.experiment import override
from hexa.runtime import precision
from hexa.runtime.progress import Progress
from hexa.runtime.random import Stream
from hexa.weights import start as starts
from hexa.weights.pretrained import Backbone

#: Views of all passes together from which on a larger size is taken.
_ENOUGH = 30_000
#: Views of all passes together that are worth a smaller size than `_SMALLEST`, and the fewest of any training.
_WANTED = 3000
_LEAST = 1000
#: Smallest size of views as a share of the start's own, unless the time is short.
_SMALLEST = 3 / 7
#: Share of the time for attacks in the verdict.
_JUDGING = 0.16
#: Forward passes that attacking an image takes, of 560 if the result withstands everything.
_PASSES = 400
#: Bounds on the number of attacked images.
_ATTACKED = (24, 500)
#: Bounds on the number of images that clean accuracy is measured on.
_JUDGED = (200, 2000)
#: Factor by which the share of a state that costs too much is cut.
_BACK = 0.85
#: States that one half of the labels tries, at most.
_TRIED = 5
#: States that are scored; rarely more, if both halves step back several times.
_SCORED = 7
#: Smallest share that is tried.
_NEAREST = 1 / 16
#: Share without labels: it has 6 to 40 % of what the end loses and 68 to 88 % of its robustness at ε = 1.
_UNTOLD = 0.5
#: Steps from which on a training attacks in two: one of 2,284 overfitted to a single step
#: (docs/decisions/adapt-and-harden.md).
_LONG = 700
#: Size of each of two steps as a share of ε.
_OF_TWO = 0.75
_STEPS = "hard_examples.adversarial.steps"
_STEP_SIZE = "hard_examples.adversarial.step_size"
#: Seconds to write the results, which are not measured.
_END = 5.0


def _check(name: str, value: object, meaning: str, low: float, high: float) -> None:
    """Raise UserError unless this is a number from `low` to `high`; Python callers may give anything."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    if number is None or not low <= number <= high:
        given = value if number is None else f"{number:g}"
        raise UserError(f"{name} {given} is {meaning}; give one from {low:g} to {high:g}")


@dataclass(frozen=True)
class HardenRequest(AdaptRequest):
    """What the user asks for."""

    strength: float = 4.0
    """ε of the attack in training, in grey levels."""
    price: float = 2.0
    """Points of clean accuracy that robustness may cost."""
    recipe: ClassVar = "teacher"
    command: ClassVar = "harden"
    larger: ClassVar = 7 / 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("--strength", self.strength, "a radius in grey levels of 255", 0.25, 64)
        _check("--price", self.price, "in points of accuracy", 0, 100)
        if "hard_examples.adversarial.epsilon" in self.fields:
            raise UserError(
                "--hard_examples.adversarial.epsilon is given to hexa harden by --strength; give that one"
            )

    def of_domain(self, name: str) -> dict[str, Any]:
        """The fields of the attack, and those of mirroring: a domain changes nothing else of these views."""
        mirrored = {
            path: v
            for path, v in super().of_domain(name).items()
            if path.endswith("flip_probability")
        }
        step = {_STEP_SIZE: self.strength} if _STEP_SIZE not in self.fields else {}
        return mirrored | {"hard_examples.adversarial.epsilon": self.strength} | step

    def plan(self, given: Given) -> Plan:
        """The largest size that leaves time for enough images, up to the start's own; see `choose`."""
        draft = given.draft
        source = given.source
        labelled = given.labelled
        seen = given.seen
        costs = given.costs(partly=False)
        budget = given.budget
        by_clock = given.by_clock
        native = draft.views.size
        spent = budget.spent

        def judging(size: int, seconds: float) -> int:
            """The number of images that judge, where --time is this many seconds."""
            fast = int(np.clip(0.02 * seconds / costs.score(given.used(size)), *_JUDGED))
            return min(fast, len(labelled or source))

        def at_native(size: int, seconds: float) -> bool:
            """Whether there is time for clean accuracy of the start at its own image size."""
            extracted = judging(size, seconds) * costs.score(native)
            return extracted <= NATIVE_SHARE * seconds or not by_clock

        def others(size: int, seconds: float) -> float:
            """Seconds for all but training at this size, where --time is this many seconds."""
            at = costs.score(given.used(size))
            clean = (1 + _SCORED) * at + 3 * costs.read
            if at_native(size, seconds):
                clean += costs.score(native)
            attacked = max(_JUDGING * seconds, _ATTACKED[0] * _PASSES * at)
            fixed = spent + 1.5 * costs.setup + budget.here(_END)
            return fixed + attacked + judging(size, seconds) * clean

        def room(size: int) -> float:
            """Seconds for training at this size."""
            return SPARE * (budget.seconds - others(size, budget.seconds))

        start = starts.of(draft.start)
        start.prepared(
            size=given.used(native)
        )  # raises UserError for a size that is given and not accepted
        sizes = given.fitting(costs, max(costs.steps))
        size, images = choose(costs, sizes, room, seen.size)
        if by_clock and images < _LEAST:
            training = _LEAST * costs.train(size, max(costs.steps)) / SPARE
            return given.too_short(training, functools.partial(others, size))
        judged = judging(size, budget.seconds)
        batch = given.batch(costs, size, max(costs.steps)) or draft.batch_size
        draft = override(draft, {"batch_size": batch})
        given = replace(given, draft=draft)
        per_epoch = len(source) // draft.batch_size
        passes = (
            images / len(source)
            if by_clock
            else min(draft.epochs, (draft.max_steps or math.inf) / per_epoch)
        )
        changes: dict[str, Any] = {
            "monitor.knn_every": 0,
            "training.report": False,
            "training.resident_limit_bytes": costs.resident,
        }
        turns = draft.optimizer.name == "muon"
        two = passes * per_epoch > _LONG and turns and not {_STEPS, _STEP_SIZE} & self.fields.keys()
        changes |= {_STEPS: 2, _STEP_SIZE: _OF_TWO * self.strength} if two else {}
        passes *= (
            7 / 10 if two and by_clock else 1
        )  # passes of the network: 1 + 3 + 3, or 1 + 2 · 3 + 3
        # things as large as the result sees them, and fewer images learned by heart (docs/decisions/adapt-and-harden.md)
        if "views.scale" not in self.fields and (least := (size / given.used(size)) ** 2) < 1:
            changes |= {"views.scale": (least, 1.0), "views.ratio": (3 / 4, 4 / 3)}
        if by_clock:
            changes |= {"epochs": math.ceil(passes), "max_steps": max(1, int(passes * per_epoch))}
            changes |= {"training.max_seconds": room(size) / SPARE}
        experiment = override(
            given.at(size), {path: v for path, v in changes.items() if path not in self.fields}
        )
        views = experiment.views
        result = f"; the result is for {views.test_size} px" if views.test_size != size else ""
        without = (
            "labels: none: how far features move is measured, and what that costs cannot be told"
        )
        cut = "crops of " if views.scale[0] < 1 else ""
        mirrored = ", mirrored or not" if views.flip_probability > 0 else ""
        changed = ", in changing contrast" if views.jitter_probability * views.contrast > 0 else ""
        lines = (
            f"images: {seen}",
            f"method: teacher, from {draft.start.weights}: a copy learns to give views that are attacked within "
            f"{self.strength:g} grey levels the features that these weights give the clean images",
            f"views: {cut}the images{mirrored}{changed}, {size} px{result}",
            wording.labels(labelled, source, judged) if labelled else without,
            wording.length(experiment, passes, budget.seconds if by_clock else 0)
            + (", attacked in two steps" if two else ""),
        )
        return Plan(experiment, lines, judged, at_native(size, budget.seconds))

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """The state farthest from the start at the price, beside the start at the same size."""
        how = trained.how
        device = precision.pick_device(trained.how.device)
        native = trained.start
        size = trained.result.image_size
        start = native.prepared(size=size)
        result = trained.result.prepared(size=size)
        images, notes = drawn(trained, progress)
        networks = {"start": start, "result": result}
        if trained.native and native.image_size != size:
            networks["start at its own size"] = native
        told = [(one, functools.partial(progress, name)) for name, one in networks.items()]
        features, shared = common([extracted(one, images, how, device, tell) for one, tell in told])
        if len(shared) < len(images):
            notes.append(f"{len(images) - len(shared)} of {len(images):,} images cannot be read")
        images = Subset(images, shared.numpy())
        judge = (
            Judge(labels_of(images), how.seed, images.groups())
            if can_judge(images.classes)
            else None
        )
        if judge is not None:
            notes.append(groups_note(judge, images.groups()))
        elif can_judge(trained.judging.classes):
            notes.append("--price could not be kept: too few labelled images are left to judge by")
        before, after = (
            Side.of(network, x, judge)
            for network, x in zip((start, result), features, strict=False)
        )
        sides = {1.0: after}

        def side(share: float) -> Side:
            if share not in sides:
                network = between(start, result, share)
                sides[share] = Side.of(network, extracted(network, images, how, device)[0], judge)
            return sides[share]

        def cost(half: Rows, share: float) -> float:
            return lost_by(before, side(share), half)

        within = True
        if judge is None:
            shares = [_UNTOLD]
            share = _UNTOLD
            after = side(share)
        else:
            halves = halves_of(judge)
            shares = [at_price(self.price, functools.partial(cost, half)) for half in halves]
            both = zip(halves, shares, strict=True)
            within = all(cost(half, one) <= self.price for half, one in both)
            share = mean_share(shares, halves)
            values = crossed([side(one) for one in shares], halves)
            after = replace(side(share), values=values)
        count = np.clip(
            _JUDGING * self.seconds * images_per_second(start, device) / _PASSES, *_ATTACKED
        )
        shown = Shown.of(images, start, int(count), judge, device, how.seed)
        attack_all(
            (before, after),
            shown,
            judge,
            functools.partial(progress, "start and result under attack"),
        )
        rows = list[list[str]]()
        at_own = ""
        if len(features) > 2 and judge is not None:
            own = Side.of(native, features[2], judge)
            at = native.image_size
            at_own = f", the start at its own {at} px {own.mean(CLEAN):.1f} %"
            rows = [
                [f"{name} at {at} px, % ↑", f"{own.mean(name):.1f}", "", ""] for name in own.values
            ]
        attack = attack_of(judge) | {"images": len(shown.places)}
        attacked = f"{attack['name']} of {len(shown.places)} images"
        notes.append(
            f"{len(shown.places)} of the {len(images):,} images were corrupted, and attacked by {attack['name']}; "
            "stronger attacks find more (hexa evaluate robust)"
        )
        where = f" at {size} px"
        better, verdict = decide(before, after, self.price, within, attacked, where, at_own)
        if share < 1:
            why = (
                "without labels to tell what it costs,"
                if judge is None
                else f"for --price {self.price:g}"
            )
            notes.append(f"{why} the result is {share:.4g} of the way from the start to the end")
        if len(set(shares)) > 1:
            notes.append(
                "clean accuracy of each half of the labels is that of the weights that the other half chose, "
                f"{' and '.join(f'{one:.4g}' for one in shares)} of the way"
            )
        record: dict[str, Any] = {
            "images": len(images),
            "attacked": len(shown.places),
            "attack": attack,
            "share": share,
            "chosen": shares,
            "within price": within,
            "size": size,
        }
        record |= {name: [before.mean(name), after.mean(name)] for name in before.values}
        changes = {name: difference(before, after, name) for name in before.values}
        record["changes"] = {name: [d.points, min(d.half, 100.0)] for name, d in changes.items()}
        made = table(before, after, size)
        winner = after.backbone if better else native
        return Outcome(
            winner,
            verdict,
            replace(made, rows=[*made.rows, *rows]),
            notes,
            judge is not None,
            record,
        )


def choose(
    costs: Costs, sizes: Sequence[int], room: Callable[[int], float], shorter_side: int
) -> tuple[int, float]:
    """The image size, and how many images can be learned from, those of all passes together.

    sizes: the start's own first, then smaller ones. The first that leaves time for 30,000 images, in however many
    passes, and does not enlarge images (of `shorter_side` pixels) more than the smallest does; of sizes from three
    sevenths of the start's own. If there is no time for 3,000 at the smallest of these, the first below that does.
    """
    stages = max(costs.steps)
    usual = [size for size in sizes if size >= _SMALLEST * sizes[0]]
    for size in usual:
        images = room(size) / costs.train(size, stages)
        if images >= _ENOUGH and size <= max(shorter_side, min(usual)):
            break
    for smaller in sizes[len(usual) :]:
        if images >= _WANTED:
            break
        size = smaller
        images = room(size) / costs.train(size, stages)
    return size, max(0.0, images)


def at_price(price: float, cost: Callable[[float], float]) -> float:
    """The share of the way to the result at which `price` points of clean accuracy are lost, from 1 / 16 to 1.

    cost: share -> points lost. They grow roughly as its square (docs/decisions/adapt-and-harden.md), so the share is
    √(price / cost(1)) first: chance spoils the loss of many points less than that of a few. While the loss there is
    above the price, it steps back by 15 %, three times at most.
    """
    share = math.sqrt(price / cost(1.0)) if cost(1.0) > price else 1.0
    shares = [max(_NEAREST, share * _BACK**steps) for steps in range(_TRIED - 1)]
    return next((one for one in shares if cost(one) <= price), shares[-1])


def mean_share(shares: Sequence[float], halves: Sequence[Rows]) -> float:
    """The share whose loss is the mean over images of the loss at the share that the other half of them chose.

    Losses grow roughly with the square of the way, so it is the root of the mean square.
    """
    others = [len(halves[1]), len(halves[0])]
    return math.sqrt(np.average(np.square(shares), weights=others))


def drawn(trained: Trained, progress: Progress) -> tuple[Source, list[str]]:
    """Images to judge by, and notes; near-duplicates are left out where there are labels."""
    judging = trained.judging
    how = trained.how
    notes = list[str]()
    stream = Stream(trained.how.seed).child("judged")
    if can_judge(judging.classes):
        found = draw_classes(labels_of(judging), how.most or len(judging), stream)
        rows, _ = apart(trained.data, judging, found, how, notes, progress)
    else:
        rows = draw_images(len(judging), how.most, stream)
    return Subset(judging, rows), notes


def between(start: Backbone, result: Backbone, share: float) -> Backbone:
    """The network whose weights are `share` of the way from those of `start` to those of `result`.

    Networks that were trained a little from the same weights lie in one valley: what is between them has something of
    both (WiSE-FT, Wortsman et al., CVPR 2022; for robustness Croce et al., CVPR 2023).
    """
    made = copy.deepcopy(result)
    end = start.state_dict()
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.is_floating_point():
                value.lerp_(end[name].to(value), 1 - share)
    return made
