"""The labelled images of an evaluation: which to fit on and which to score, and parts of them drawn class by class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hexa import data as sources
from hexa.config import UserError, some
from hexa.data.sources.source import Labels, Source, Subset
from hexa.evaluation.request import EvaluationRequest
from hexa.runtime import paths
from hexa.runtime.random import Stream

Mask = NDArray[np.bool_]


def fit_and_test(
    data: str,
    request: EvaluationRequest,
    channels: int,
) -> tuple[Source, Source, list[str], list[str]]:
    """Images to fit on and images to score, both labelled with the same classes, the classes' names, and notes.

    Classes without an image on either side are left out, and the others renumbered; columns of multi-label images stay.
    Only images to fit on are reduced to a part (`request.images`), after those that `holdout` scores were taken out, so
    that scores from more or fewer images are over the same test images. Raises UserError.
    """
    fit = _labelled(data, "train", request, channels)
    if request.holdout is None:
        test = _test_images(data, fit, request, channels)
    elif request.test_data is not None:
        raise UserError("holdout and test_data both say which images to score; give one of them")
    else:
        fit, test = hold_out(fit, request.holdout, Stream(request.seed).child("holdout"))
    names = _class_names(data, fit, test, request.holdout is None)
    notes = [] if request.holdout is None else _notes(fit, test, names, request.holdout)
    if fit.class_names != test.class_names and not all(map(str.isdecimal, names)):
        notes.append(f"labels that are numbers are taken for classes in this order: {some(names)}")
    if fit.classes is not None and test.classes is not None:
        both = np.concatenate([fit.classes, test.classes])
        shown, numbers = np.unique(both, return_inverse=True)
        names = [names[label] for label in shown]
        fit.labels, test.labels = np.split(numbers, [len(fit)])
    count = 1 if fit.classes is None else len(np.unique(fit.classes))
    if request.images is not None and request.images < count:
        raise UserError(f"images: too few for the classes of {fit!r}; give {count} or more")
    return sources.draw_part(fit, request.images, request.seed), test, names, notes


def _notes(fit: Source, test: Source, names: list[str], share: float) -> list[str]:
    """Notes on the groups of held-out images, and on classes without a held-out image."""
    notes = []
    groups = fit.groups()
    of_test = test.groups()
    if groups is not None and of_test is not None:
        total = len(fit) + len(test)
        whole = not np.isin(of_test, groups).any()
        together = f"groups stay together: {len(test):,} of {total:,} images are scored ({len(test) / total:.0%})"
        apart = "groups are ignored, because the held-out groups would be of one class"
        notes.append(together if whole else apart)
    if fit.classes is not None and test.classes is not None:
        unscored = np.setdiff1d(fit.classes, test.classes)
        lacking = some(names[label] for label in unscored)
        if len(unscored):
            notes.append(f"no image of {lacking} is scored, because holdout {share:g} selects none")
    return notes


def _class_names(
    data: str,
    fit: Source,
    test: Source,
    all_fitted: bool,
) -> list[str]:
    """The names of the classes, numbers if there are none. Raises UserError for sources that do not fit together.

    all_fitted: every class of the test images must have an image to fit on.
    """
    assert fit.labels is not None
    assert test.labels is not None
    if fit.labels.ndim != test.labels.ndim:
        raise UserError(f"{fit!r} and {test!r}: one of them is multi-label, the other is not")
    if (fit.fingerprint, len(fit)) == (test.fingerprint, len(test)):
        raise UserError(
            f"{fit!r} would be scored on the images it learns from; name other test images"
        )
    names = list(fit.class_names or test.class_names or ())
    if test.class_names and names != list(test.class_names):
        different = sorted(set(names) ^ set(test.class_names))
        told = some(different) if different else "in their order"
        raise UserError(f"data '{data}': the classes of train and test differ: {told}")
    one_side = not (fit.class_names and test.class_names)
    if one_side and all(map(str.isdecimal, names)):
        numbers = list(map(int, names))
        if numbers != list(range(len(names))):
            raise UserError(
                f"data '{data}': classes called {some(names)} do not sort like the numbers of the other split; "
                "name the folders 00, 01 …, or give class folders for both"
            )
    if fit.labels.ndim > 1:
        return _numbered(names, fit.labels.shape[1])
    names = _numbered(names, 1 + int(max(fit.labels.max(), test.labels.max())))
    missing = set(test.labels.tolist()) - set(fit.labels.tolist())
    if missing and all_fitted:
        lacking = some(names[label] for label in sorted(missing))
        raise UserError(
            f"data '{data}': its {test.split} has classes without an image in {fit.split}: {lacking}"
        )
    return names


def _numbered(names: list[str], count: int) -> list[str]:
    """The first `count` names, followed by numbers if there are fewer."""
    return [*names, *map(str, range(len(names), count))][:count]


def _labelled(
    data: str,
    split: str | None,
    request: EvaluationRequest,
    channels: int,
) -> Source:
    source = sources.open_source(
        data, split, max_image_pixels=request.max_image_pixels, channels=channels
    )
    if source.labels is None:
        raise UserError(
            f"data '{data}' has no labels in its split {source.split}, which an evaluation needs; "
            f"{source.why_unlabelled}"
        )
    return source


def _test_images(
    data: str,
    fit: Source,
    request: EvaluationRequest,
    channels: int,
) -> Source:
    if request.test_data is None:
        if not fit.has_test:
            raise UserError(
                f"data '{data}' has no split test; "
                "give test images with --test-data SOURCE, or score a part of these with --holdout 0.2"
            )
        return _labelled(fit.name, "test", request, channels)
    test = _labelled(request.test_data, None, request, channels)
    if paths.parts(request.test_data).split is None and test.has_test:
        return _labelled(request.test_data, "test", request, channels)
    return test


def hold_out(
    source: Source,
    share: float,
    stream: Stream,
) -> tuple[Source, Source]:
    """The labelled images of a source without a part of it (`held_part`), and that part."""
    assert source.labels is not None
    held = held_part(source.labels, share, stream, source.groups())
    return Subset(source, (~held).nonzero()[0]), Subset(source, held.nonzero()[0])


def held_part(
    labels: Labels,
    share: float,
    stream: Stream,
    groups: Labels | None = None,
) -> Mask:
    """True for the images of a part of `share` of every class; bool [N].

    With groups, the part has whole groups, and at most about half of the images; if it would be of one class, groups
    are ignored.
    """
    held = np.zeros(len(labels), dtype=np.bool_)
    if groups is not None and labels.ndim == 1:
        for fold in folds(labels, max(2, round(1 / share)), stream, groups):
            part = whole_groups(fold, groups)
            if len(np.unique(labels[part])) > len(np.unique(labels[held])):
                held[:] = False
                held[part] = True
    if len(np.unique(labels[held])) < 2:
        held = stratified_part(labels, share, stream)
    return held


def whole_groups(part: Labels, groups: Labels) -> Labels:
    """The positions of a part without images of groups that are in the part only partly. groups: [N], of all images."""
    outside = np.delete(groups, part)
    return part[~np.isin(groups[part], outside)]


def shuffled(labels: Labels, stream: Stream) -> dict[int, Labels]:
    """The positions of each class in a drawn order."""
    generator = np.random.default_rng(stream.integer())
    return {
        int(label): generator.permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels)
    }


def stratified_part(
    labels: Labels,
    share: float,
    stream: Stream,
) -> Mask:
    """True for the images of a part of `share` of every class; bool [N]. A class keeps at least one image outside.

    Multi-label images, labels [N, C], are drawn from all alike. Raises UserError for an empty part.
    """
    if labels.ndim > 1:
        labels = np.zeros(len(labels), dtype=np.int64)
    held = np.zeros(len(labels), dtype=np.bool_)
    for rows in shuffled(labels, stream).values():
        held[rows[: min(round(share * len(rows)), len(rows) - 1)]] = True
    if not held.any():
        raise UserError(
            f"holdout or selection: a share of {share:g} selects no image, because each class keeps "
            "one or more; give a larger share, such as 0.5, or more images of each class"
        )
    return held


def draw_images(
    total: int,
    count: int | None,
    stream: Stream,
) -> Labels:
    """Positions of `count` of `total` images, in order; of all of them if there are no more, or for None."""
    return np.sort(torch.randperm(total, generator=stream.generator())[:count].numpy())


def draw_classes(
    labels: Labels,
    most: int,
    stream: Stream,
) -> Labels:
    """Positions of about `most` images, in order: a like share of every class, but two of each at least.

    Where that is too many, classes drawn at random are left out; those of one image always are.
    """
    share = most / len(labels)
    chosen = list[Labels]()
    count = 0
    several = [rows for rows in shuffled(labels, stream).values() if len(rows) > 1]
    for place in np.random.default_rng(stream.child("classes").integer()).permutation(len(several)):
        if count < most:
            chosen.append(several[place][: max(2, round(share * len(several[place])))])
            count += len(chosen[-1])
    return np.sort(np.concatenate(chosen))


def draw_per_class(
    labels: Labels,
    count: int,
    stream: Stream,
    names: Sequence[str] = (),
) -> Labels:
    """Positions of `count` images of every class. Raises UserError if a class, called by its name, has fewer."""
    drawn = shuffled(labels, stream)
    for label, rows in drawn.items():
        if len(rows) < count:
            name = names[label] if names else label
            raise UserError(
                f"class {name} has {len(rows)} labelled images, fewer than the {count} asked for"
            )
    return np.concatenate([rows[:count] for rows in drawn.values()])


def folds(
    labels: Labels,
    count: int,
    stream: Stream,
    groups: Labels | None = None,
) -> list[Labels]:
    """`count` disjoint parts that together hold every image of classes with two or more; fewer where classes are small.

    A class of one image can't be held out and is in no fold. Empty if there is nothing to hold out. groups: [N]; images
    of one group are in one part, or in none if all images of their class would be in it. So a group with images of
    several classes may be in its part only partly (`whole_groups`).
    """
    most = 0 if groups is None else min(count, len(np.unique(groups)), np.bincount(labels).max())
    if most > 1:
        from sklearn.model_selection import StratifiedGroupKFold  # importing takes a second

        split = StratifiedGroupKFold(most, shuffle=True, random_state=stream.integer() % 2**32)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of small classes
            parts = [part for _, part in split.split(labels, labels, groups)]
        parts = [part[np.isin(labels[part], np.delete(labels, part))] for part in parts]
    else:
        several = [rows for rows in shuffled(labels, stream).values() if len(rows) > 1]
        turns = [[rows[number::count] for rows in several] for number in range(count)]
        parts = [np.sort(np.concatenate([labels[:0], *turn])) for turn in turns]
    return [part for part in parts if len(part)]
