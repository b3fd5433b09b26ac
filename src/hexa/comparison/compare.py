"""`hexa compare`: backbones beside each other on a person's images, and which of them is better."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexa.comparison import labelled, leakage, verdict
from hexa.comparison.extraction import (
    Extraction,
    affordable,
    common,
    features_of,
)
from hexa.comparison.verdict import Side, Verdict
from hexa.config import UserError, some, whole_characters
from hexa.data import Source, draw_part, open_source
from hexa.data.sources.source import Subset
from hexa.evaluation.collective import from_main
from hexa.evaluation.protocol import majority_class
from hexa.reporting.tables import told_apart
from hexa.runtime import paths, precision as precisions, processes
from hexa.runtime.progress import Progress, silent
from hexa.weights.pretrained import Backbone, load_backbone

Rows = NDArray[np.int64]

#: The verdict if there are no labels that can judge.
_UNTOLD = "without labels it cannot be told which is better; give labelled images (--labelled), a few per class, to know"


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
        judged = None if self.judge is None else self.judge.labels[self.judge.judged]
        best = self.verdict.best
        return {
            "data": self.images.facts,
            "images": len(self.images),
            "judged": 0 if judged is None else len(judged),
            "majority_class": None if judged is None else majority_class(judged),
            "verdict": self.verdict.sentence,
            "best": None if best is None else self.sides[best].name,
            "backbones": [side.record for side in self.sides],
            "pairs": [pair.record for pair in self.verdict.pairs],
            "notes": list(self.notes),
            "duplicates": [list(pair) for pair in self.duplicates],
        }


def compare(request: CompareRequest, progress: Progress = silent) -> Comparison:
    """Compare two backbones or more. Raises UserError."""
    if len(request.backbones) < 2:
        raise UserError("a comparison needs two backbones or more; give another one")
    loaded = [load_backbone(name, size=request.size) for name in request.backbones]
    channels = {len(one.mean) for one in loaded}
    if len(channels) > 1:
        several = " and ".join(map(str, sorted(channels)))
        raise UserError(f"the backbones take images of {several} channels; compare those alike")
    how: dict[str, Any] = {"max_image_pixels": request.max_image_pixels, "channels": channels.pop()}
    data = judging = open_source(request.data, "train", **how)
    if request.labelled is not None:
        judging = open_source(request.labelled, "train", **how)
    judging = draw_part(judging, request.images, request.seed)
    if request.labelled is None:
        data = judging
    labelled.take_groups(judging, request.groups)
    if request.labelled is None and not labelled.can_judge(judging.classes):
        raise UserError(
            "without labels hexa cannot tell which backbone is better; give --labelled, images of two "
            "classes or more with at least two images each"
        )
    labelled.Judge(labelled.labels_of(judging))  # raises now, before the work
    named = dict(zip(_names(request.backbones), loaded, strict=True))
    learned = any(_learned_from(one, data) for one in loaded)
    found = of_backbones(named, data, judging, request, progress, learned=learned)
    notes = [*dict.fromkeys([*data.notes(), *judging.notes()]), *found.notes]
    taught = [name for name, one in named.items() if _learned_from(one, judging)]
    if taught and found.judge is not None:
        notes.append(
            f"{some(taught)} learned from the images that judge, although without labels; --labelled gives others"
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
    side is better. trials: how many states a backbone was chosen from by these labels, which widens the intervals.
    learned: True if a backbone learned from `data`, so that labelled images must not be among these.
    """
    if not labelled.can_judge(judging.classes):
        unseen = [
            Side(name, one, torch.empty(0, one.num_features)) for name, one in backbones.items()
        ]
        few = "the labels are not used: fewer than two classes have two images or more"
        reasons = () if judging.classes is None else (few,)
        return Comparison(tuple(unseen), Verdict(None, _UNTOLD, ()), judging, None, reasons, ())
    device = precisions.pick_device(how.device)

    def chosen() -> tuple[Rows, tuple[tuple[str, str], ...], list[str]]:
        """Positions of the images to look at, near-duplicates that were left out, and notes."""
        notes = list[str]()
        twins: tuple[tuple[str, str], ...] = ()
        progress("timing the networks", 0, 0)
        rows = affordable([*backbones.values()], judging, how, device)
        if len(rows) < len(judging):
            notes.append(
                f"{len(rows):,} of {len(judging):,} images were drawn; more --time draws more"
            )
        kept, found = leakage.apart(data, judging, rows, how, notes, progress, learned)
        if labelled.can_judge(labelled.labels_of(judging)[kept]):
            rows = kept
            twins = found
        else:
            notes.append("near-duplicates stay, since too few labelled images would be left")
        return rows, twins, notes

    rows, twins, notes = from_main(chosen)
    images = Subset(judging, rows)
    judge = labelled.Judge(labelled.labels_of(images), how.seed, images.groups())
    comparisons = trials * math.comb(len(backbones), 2)
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
        lost = np.setdiff1d(np.arange(len(images)), shared.numpy())
        names = some(images.paths[place] for place in lost)
        notes.append(f"{len(lost)} of {len(images):,} images cannot be read: {names}")
        images = Subset(images, shared.numpy())
        judge = labelled.Judge(labelled.labels_of(images), how.seed, images.groups())
    notes.append(labelled.groups_note(judge, images.groups()))
    sides = list[Side]()
    for (name, backbone), features in zip(backbones.items(), every, strict=True):
        progress("judging", len(sides), len(backbones))
        scores = from_main(functools.partial(judge.scores, features))
        sides.append(Side(name, backbone, features, scores))
    progress("judging", len(sides), len(sides))
    notes += [
        f"{name}: {one.info['note']}" for name, one in backbones.items() if "note" in one.info
    ]
    if len({side.size for side in sides}) > 1:
        notes.append("each at its own image size; for one, hexa compare --size N")
    decision = from_main(functools.partial(verdict.by_labels, sides, trials))
    return Comparison(tuple(sides), decision, images, judge, tuple(notes), twins)
