"""`hexa compare`: backbones beside each other on a person's images, and which of them is better."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison import labelled, leakage, verdict
from hexa.comparison.extraction import (
    FEWEST,
    Extraction,
    affordable,
    common,
    features_of,
)
from hexa.comparison.verdict import Side, Verdict, few_name
from hexa.config import UserError, some, whole_characters
from hexa.data import Source, draw_part, open_source
from hexa.data.sources.source import Subset
from hexa.evaluation.collective import from_main
from hexa.evaluation.protocol import majority_class
from hexa.reporting.tables import told_apart
from hexa.runtime import paths, precision as precisions, processes
from hexa.runtime.progress import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Extraction):
    """Which backbones are compared on which images."""

    backbones: tuple[str | Path | Backbone, ...]
    """The first is what the others are compared with."""
    data: str
    """The images, which are also the labelled ones if no others are given."""
    labelled: str | None = None
    """Labelled images to judge by; those of `data` if None."""
    images: int | None = None
    """Number of labelled images that are drawn by the seed; all if None."""
    groups: str | None = None
    """Where groups of these are stored: FILE.csv, column:NAME or key:NAME (`groups_of`)."""
    size: int | None = None
    """A common image size in pixels; each backbone's own if None."""
    max_image_pixels: int | None = None
    """Larger images count as unreadable."""


@dataclass(frozen=True)
class Comparison:
    """The backbones with their scores, and the verdict."""

    sides: tuple[Side, ...]
    verdict: Verdict
    images: Source
    """The images that were judged or, without labels, looked at."""
    judge: labelled.Judge | None
    """How the labels were used; None without."""
    notes: tuple[str, ...]
    """Sentences on what was left out."""
    duplicates: tuple[tuple[str, str], ...]
    """Paths of near-duplicates, the first of which was left out."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        sides = []
        for side in self.sides:
            facts = {
                "name": side.name,
                "size": side.size,
                "num_features": side.features.shape[1],
            }
            reached = (
                {name: side.reached(name) for name in side.scores.right} if side.scores else {}
            )
            few = {}
            balanced = {}
            few_balanced = {}
            if side.scores:
                few = {str(shots): draws.tolist() for shots, draws in side.scores.few.items()}
                balanced = {name: side.scores.balanced(name) for name in side.scores.right}
                few_balanced = {
                    str(shots): draws.tolist() for shots, draws in side.scores.few_balanced.items()
                }
            sides.append(
                {
                    **facts,
                    "weights": side.backbone.content_hash(),
                    "scores": reached,
                    "balanced_accuracy": balanced,
                    "few": few,
                    "few_balanced_accuracy": few_balanced,
                }
            )
        pairs = [
            {
                **vars(pair),
                "differences": {name: [d.points, d.half] for name, d in pair.differences.items()},
            }
            for pair in self.verdict.pairs
        ]
        return {
            "data": self.images.facts,
            "images": len(self.images),
            "judged": 0 if self.judge is None else len(self.judge.judged),
            "majority_class": None
            if self.judge is None
            else majority_class(self.judge.labels[self.judge.judged]),
            "verdict": self.verdict.sentence,
            "best": None if self.verdict.best is None else self.sides[self.verdict.best].name,
            "backbones": sides,
            "pairs": pairs,
            "notes": list(self.notes),
            "duplicates": [list(pair) for pair in self.duplicates],
        }


def compare(request: CompareRequest, progress: Progress = silent) -> Comparison:
    """Compare two backbones or more. Raises UserError."""
    if len(request.backbones) < 2:
        raise UserError("a comparison needs two backbones or more; give another one")
    loaded = [load_backbone(name, size=request.size) for name in request.backbones]
    channels = sorted({len(one.mean) for one in loaded})
    if len(channels) > 1:
        several = " and ".join(map(str, channels))
        raise UserError(f"the backbones take images of {several} channels; compare those alike")
    how: dict[str, Any] = {"max_image_pixels": request.max_image_pixels, "channels": channels[0]}
    data = open_source(request.data, "train", **how)
    if request.labelled is None:
        judging = data = draw_part(data, request.images, request.seed)
    else:
        judging = open_source(request.labelled, "train", **how)
        judging = draw_part(judging, request.images, request.seed)
    labelled.take_groups(judging, request.groups)
    if request.labelled is None and not labelled.can_judge(judging.classes):
        raise UserError(
            "without labels hexa cannot tell which backbone is better; give --labelled, images of two "
            "classes or more with at least two images each"
        )
    labelled.Judge(labelled.labels_of(judging))  # raises now, before the work
    named = dict(zip(_names(request.backbones), loaded, strict=True))
    found = of_backbones(
        named,
        data,
        judging,
        request,
        progress,
        learned=any(_learned_from(one, data) for one in loaded),
    )
    learned = [
        name
        for name, one in named.items()
        if found.judge is not None and _learned_from(one, judging)
    ]
    notes = [*dict.fromkeys([*data.notes(), *judging.notes()]), *found.notes]
    if learned:
        notes.append(
            f"{some(learned)} learned from the images that judge, although without labels; --labelled gives others"
        )
    return replace(found, notes=tuple(notes))


def _learned_from(backbone: Backbone, images: Source) -> bool:
    """True if the run that trained the backbone learned from these images, judged by the names of both sources."""
    learned = paths.parts(str(backbone.info.get("data", "")))
    mine, theirs = (
        Path(one.removeprefix("folder:")).resolve() for one in (learned.source, images.name)
    )
    return learned.source != "" and mine == theirs and (learned.split or "train") == images.split


def _names(given: Sequence[str | Path | Backbone]) -> list[str]:
    """Backbones by as much of the ends of their paths as tells them apart; equal ones are numbered."""
    full = [
        one.network_config.name if isinstance(one, Backbone) else whole_characters(str(one))
        for one in given
    ]
    return told_apart([name if ":" in name else Path(name) for name in full])


@processes.alone()  # so that no work of the main process alone, such as k-means, waits for the others
def of_backbones(
    backbones: Mapping[str, Backbone],
    data: Source,
    judging: Source,
    how: Extraction,
    progress: Progress = silent,
    trials: int = 1,
    learned: bool = True,
) -> Comparison:
    """Compare loaded backbones, by name; the first is what the others are compared with.

    Several processes call it alike; each extracts a share of the features, which the main one alone has in the end.

    judging: labelled images, or `data` itself, by whose labels, if it has any, backbones are judged; without labels no
    side is better, and the share of neighbourhoods that survive is all that is measured. trials: how many
    states a backbone was chosen from by these labels, which widens the intervals.
    learned: True if a backbone learned from `data`, so that labelled images must not be among these.
    """
    device = precisions.pick_device(how.device)
    several = list(backbones.values())

    def chosen() -> tuple[NDArray[np.int64], tuple[tuple[str, str], ...], list[str]]:
        """Positions of the images to look at, near-duplicates that were left out, and notes."""
        notes = list[str]()
        if judging.classes is not None and not judged:
            notes.append("the labels are not used: fewer than two classes have two images or more")
        progress("timing the networks", 0, 0)
        found = affordable(several, judging, how, judged, device)
        if len(found) < len(judging):
            notes.append(
                f"{len(found):,} of {len(judging):,} images were drawn"
                + ("; more --time draws more" if judged else "")
            )
        rows, twins = (
            leakage.apart(data, judging, found, how, notes, progress, learned)
            if judged
            else (found, ())
        )
        if judged and not labelled.can_judge(labelled.labels_of(judging)[rows]):
            notes.append("near-duplicates stay, since too few labelled images would be left")
            rows = found
            twins = ()
        if len(rows) < FEWEST:
            raise UserError(
                f"{judging!r}: too few images to compare by; give {FEWEST} distinct ones or more"
            )
        return rows, twins, notes

    judged = labelled.can_judge(judging.classes)
    rows, twins, notes = from_main(chosen)
    images = Subset(judging, rows)
    judge = _judge_of(images, how.seed) if judged else None
    if judge is not None:
        comparisons = trials * math.comb(len(several), 2)
        can = labelled.shown_by(judge, comparisons=comparisons)
        progress(can, 0, 1)
        progress(can, 1, 1)
    found = list[tuple[Tensor, Tensor]]()
    for name, backbone in backbones.items():
        tell = functools.partial(progress, f"{name}, {backbone.image_size} px")
        found.append(features_of(backbone, images, how, device, tell))
    every, shared = common(found)
    shared = from_main(lambda: shared)
    if len(shared) < len(images):
        lost = [
            images.paths[place] for place in np.setdiff1d(np.arange(len(images)), shared.numpy())
        ]
        notes.append(f"{len(lost)} of {len(images):,} images cannot be read: {some(lost)}")
        images = Subset(images, shared.numpy())
        judge = _judge_of(images, how.seed) if judged else None
    named = zip(backbones.items(), every, strict=True)
    sides = [Side(name, backbone, features) for (name, backbone), features in named]
    if judge is not None:
        classes = len(np.unique(judge.labels[judge.judged]))
        notes.append(labelled.groups_note(judge, images.groups()))
        notes += [
            f"{few_name(shots)}: on {count} of {classes} classes, since the others have too few images"
            for shots, drawn in judge.draws.items()
            if (count := min(len(np.unique(judge.labels[judge.asked(one)])) for one in drawn))
            < classes
        ]
        for place, side in enumerate(sides):
            progress("judging", place, len(sides))
            sides[place] = replace(
                side, scores=from_main(functools.partial(judge.scores, side.features))
            )
        progress("judging", len(sides), len(sides))
        notes += [constant for side in sides if (constant := verdict.constant_note(side, images))]
    told = ((name, backbone.info.get("note")) for name, backbone in backbones.items())
    notes += [f"{name}: {note}" for name, note in told if note]
    sizes = list(dict.fromkeys(side.size for side in sides))
    if len(sizes) > 1:
        notes.append(
            f"each at its own image size: {', '.join(map(str, sizes))} px; for one, hexa compare --size N"
        )
    said = from_main(
        lambda: verdict.by_labels(sides, trials) if judged else verdict.without_labels(sides)
    )
    return Comparison(tuple(sides), said, images, judge, tuple(notes), twins)


def _judge_of(images: Source, seed: int) -> labelled.Judge:
    return labelled.Judge(labelled.labels_of(images), seed, images.groups())
