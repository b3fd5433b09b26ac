"""`hexa compare`: compare backbones on the user's images."""

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

from hexa.comparison import labelled, leakage, verdict, wording
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
from hexa.evaluation.protocol import majority_class
from hexa.reporting.tables import told_apart
from hexa.runtime import paths, precision as precisions, processes
from hexa.runtime.console import Progress, silent
from hexa.runtime.processes import from_main
from hexa.weights.pretrained import Backbone, load_backbone

Rows = NDArray[np.int64]

#: The verdict without usable labels.
_UNTOLD = "a comparison needs labels; give --labelled, images of two classes or more"


@dataclass(frozen=True, kw_only=True)
class CompareRequest(Extraction):
    """The options of `hexa compare`."""

    backbones: tuple[str | Path | Backbone, ...]
    """Two backbones or more; differences are from the first."""
    data: str
    """Source of images; also the source of labelled images if `labelled` is None."""
    labelled: str | None = None
    """Source of labelled images for the scores (default: `data`)."""
    images: int | None = None
    """Number of labelled images to draw, by the seed (default: all)."""
    groups: str | None = None
    """Source of group labels: FILE.csv, column:NAME or key:NAME (`groups_of`)."""
    size: int | None = None
    """Image size in pixels for all backbones (default: native resolution of each)."""
    max_image_pixels: int | None = None
    """Images with more pixels count as unreadable."""


@dataclass(frozen=True)
class Comparison:
    """The backbones with their scores, and the verdict."""

    sides: tuple[Side, ...]
    verdict: Verdict
    images: Source
    """The evaluated images."""
    judge: labelled.Judge | None
    """Folds and groups of the labelled images; None without labels."""
    notes: tuple[str, ...]
    """Notes for the user, such as on images that were left out."""
    duplicates: tuple[tuple[str, str], ...]
    """Pairs of paths of near-duplicates; the first image of a pair was left out."""

    @property
    def record(self) -> dict[str, Any]:
        """All numbers of the comparison, for JSON."""
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
    """Compare two backbones or more by their scores on labelled images. Raises UserError."""
    if len(request.backbones) < 2:
        raise UserError("a comparison needs two backbones or more; give another one")
    loaded = [load_backbone(name, size=request.size) for name in request.backbones]
    channels = {len(one.mean) for one in loaded}
    if len(channels) > 1:
        several = " and ".join(map(str, sorted(channels)))
        raise UserError(
            f"the backbones take images of {several} channels; compare backbones with equal channels"
        )
    how: dict[str, Any] = {"max_image_pixels": request.max_image_pixels, "channels": channels.pop()}
    data = judging = open_source(request.data, "train", **how)
    if request.labelled is not None:
        judging = open_source(request.labelled, "train", **how)
    judging = draw_part(judging, request.images, request.seed)
    if request.labelled is None:
        data = judging
    labelled.take_groups(judging, request.groups)
    labelled.labels_of(judging)  # raises UserError before the work
    named = dict(zip(_names(request.backbones), loaded, strict=True))
    # if a folder grew since the training, its former images are still in it
    learned = any(_learned_from(one, data) or _is_named(one, data) for one in loaded)
    found = of_backbones(named, data, judging, request, progress, learned=learned)
    notes = [
        f"classes: {some(judging.class_names or np.unique(labelled.labels_of(judging)))}",
        *dict.fromkeys([*data.notes(), *judging.notes()]),
        *found.notes,
    ]
    taught = [name for name, one in named.items() if _learned_from(one, judging)]
    if len({one.image_size for one in loaded}) > 1:
        notes.append("each backbone has its own image size; --size N sets one size for all")
    if taught and found.judge is not None:
        notes.append(
            f"{some(taught)} was trained on the labelled images, without their labels; give other images by --labelled"
        )
    return replace(found, notes=tuple(notes))


def _learned_from(backbone: Backbone, images: Source) -> bool:
    """True if the backbone's run was trained on these images: by contents, or by name if the run has no fingerprint."""
    if "data_fingerprint" in backbone.info:
        return bool(backbone.info["data_fingerprint"] == images.whole.fingerprint)
    return _is_named(backbone, images)


def _is_named(backbone: Backbone, images: Source) -> bool:
    """True if the backbone's run was trained on a source of this name, whatever its images were."""
    try:
        learned = paths.parts(str(backbone.info.get("data", "")))
    except UserError:  # the file may hold any text
        return False
    mine, theirs = (
        Path(one.removeprefix("folder:")).resolve()
        for one in (learned.body, paths.parts(images.name).body)
    )
    return learned.body != "" and mine == theirs and (learned.split or "train") == images.split


def _names(given: Sequence[str | Path | Backbone]) -> list[str]:
    """Return the shortest unique display names of the backbones; duplicates get a number."""
    full = [_full_name(one) for one in given]
    return told_apart([name if ":" in name else Path(name) for name in full])


def _full_name(given: str | Path | Backbone) -> str:
    """Return the name of a backbone as the user gave it; of a loaded one its recipe or network."""
    if not isinstance(given, Backbone):
        return whole_characters(str(given))
    name = given.info.get("spec") or given.info.get("recipe") or given.network_config.name
    return whole_characters(str(name))


@processes.alone()  # work of rank 0 alone, such as k-means, must not wait for other ranks
def of_backbones(
    backbones: Mapping[str, Backbone],
    data: Source,
    judging: Source,
    how: Extraction,
    progress: Progress = silent,
    trials: int = 1,
    learned: bool = True,
) -> Comparison:
    """Compare loaded backbones, by name; differences are from the first.

    Every process calls this function; each process extracts a share of the features, and rank 0 gathers all of them.
    judging: source of labelled images; may be `data` itself. Without labels, the verdict names no better side. trials:
    number of states from which a backbone was chosen by these labels; a larger number widens the intervals. learned:
    True if a backbone was trained on `data`; labelled images that are in `data` are then left out.
    """
    if not labelled.can_judge(judging.classes):
        unseen = [
            Side(name, one, torch.empty(0, one.num_features)) for name, one in backbones.items()
        ]
        few = "the labels are ignored: fewer than two classes have two images or more"
        reasons = () if judging.classes is None else (few,)
        return Comparison(tuple(unseen), Verdict(None, _UNTOLD, ()), judging, None, reasons, ())
    device = precisions.pick_device(how.device)

    def chosen() -> tuple[Rows, tuple[tuple[str, str], ...], list[str]]:
        """Return the positions of the images to evaluate, the near-duplicates that are left out, and notes."""
        notes = list[str]()
        twins: tuple[tuple[str, str], ...] = ()
        progress("timing the networks", 0, 0)
        rows = affordable([*backbones.values()], judging, how, device)
        if len(rows) < len(judging):
            notes.append(
                f"{len(rows):,} of {len(judging):,} images were drawn to fit the time; a longer --time draws more"
            )
        kept, found = leakage.apart(data, judging, rows, how, notes, progress, learned)
        if labelled.can_judge(labelled.labels_of(judging)[kept]):
            rows = kept
            twins = found
        else:
            notes.append("near-duplicates are kept, because too few labelled images would be left")
        return rows, twins, notes

    rows, twins, notes = from_main(chosen)
    images = Subset(judging, rows)
    judge = labelled.Judge(labelled.labels_of(images), how.seed, images.groups())
    comparisons = trials * math.comb(len(backbones), 2)
    can = wording.shown_by(judge, comparisons=comparisons)
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
    notes.append(wording.groups_note(judge, images))
    sides = list[Side]()
    for (name, backbone), features in zip(backbones.items(), every, strict=True):
        progress("scoring", len(sides), len(backbones))
        scores = from_main(functools.partial(judge.scores, features))
        sides.append(Side(name, backbone, features, scores))
    progress("scoring", len(sides), len(sides))
    notes += [
        f"{name}: {one.info['note']}" for name, one in backbones.items() if "note" in one.info
    ]
    decision = from_main(functools.partial(verdict.by_labels, sides, trials))
    return Comparison(tuple(sides), decision, images, judge, tuple(notes), twins)
