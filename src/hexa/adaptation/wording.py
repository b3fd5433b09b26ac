"""The printed lines of a plan: images, method, trained stages, views, labels and length."""

from __future__ import annotations

from hexa.adaptation.choice import Choice
from hexa.adaptation.looking import Seen
from hexa.comparison.labelled import Judge, labels_of
from hexa.comparison.wording import shown_by
from hexa.data import Source
from hexa.recipes.experiment import Experiment
from hexa.reporting.tables import format_duration, format_passes
from hexa.weights.pretrained import Backbone


def length(experiment: Experiment, passes: float, seconds: float) -> str:
    """Return the line on the length of the training. seconds: time limit; 0 if epochs or steps set the length."""
    optimizer = experiment.optimizer
    said = format_passes(passes, experiment.start.view_sets)
    said += f", batch size {experiment.batch_size}, {optimizer.name} at rate {optimizer.learning_rate:g}"
    if not seconds:
        return f"length: {said}"
    return f"length: about {said}, {format_duration(seconds)} in total"


def lines(
    experiment: Experiment,
    seen: Seen,
    chosen: Choice,
    stages: int,
    share: float | None,
    native: int,
) -> tuple[str, ...]:
    """Return the lines on images, method, trained stages and views.

    stages: number of stages of the network. share: share of neighbourhoods that the initial weights keep at the image
    size of the result, if measured. native: native resolution of the initial weights.
    """
    start = experiment.start
    images = str(seen)
    if chosen.images < seen.count:
        images += f"; trained on {chosen.images:,} images"
    hard = [name for name, example in experiment.hard_examples.items() if example.weight > 0]
    method = " + ".join([experiment.method.name, *hard])
    statistics = "frozen" if start.batch_norm == "keep" else start.batch_norm
    learning = "the whole network"
    if start.trainable_stages == 1:
        learning = f"the last of {stages} stages"
    elif start.trainable_stages is not None:
        learning = f"the last {start.trainable_stages} of {stages} stages"
    if start.freeze_backbone == 1:
        learning += ", the head alone in the first pass"
    return (
        f"images: {images}",
        f"method: {method}, from {start.weights}, batch-norm statistics {statistics}",
        f"learning: {learning}",
        f"views: {_views(experiment, seen.domain, share, native)}",
    )


def _views(experiment: Experiment, domain: str, share: float | None, native: int) -> str:
    """Return the kind and size of the views, and the effect of a smaller size."""
    views = experiment.views
    used = views.test_size
    said = f"{views.based_on} for {domain}"
    if domain != "photos":
        said += " (--domain sets another kind)"
    said += f", {views.size} px"
    if used != views.size:
        said += f"; the result is for {used} px"
    if share is not None:
        return f"{said}; at this size the initial weights keep {share:.0%} of their neighbourhoods"
    if used < native:
        return (
            f"{said}; the lower resolution may cost more than training gains (native: {native} px)"
        )
    return said


def too_short(minutes: int) -> str:
    """Return the verdict if the time is too short, with the --time to give."""
    return (
        "The time is too short to train on these images, so the original weights are kept; try "
        f"--time {minutes}m."
    )


def sizes(start: Backbone, result: Backbone) -> str:
    """Return the image sizes of a verdict."""
    if start.image_size == result.image_size:
        return f"at {result.image_size} px"
    return f"initial weights at {start.image_size} px, result at {result.image_size} px"


def labels(labelled: Source | None, source: Source, compared: int) -> str:
    """Return the line on the labelled images, of which `compared` are evaluated."""
    if labelled is None:
        return "labels: none, so the initial weights will be kept; give --labelled to measure whether training helps"
    classes = labels_of(labelled)
    judge = Judge(classes, groups=labelled.groups())
    kept = ", independent unless --groups is given" if judge.groups is None else ""
    can = shown_by(judge, compared)
    if compared < len(labelled):
        can = f"{compared:,} of them are evaluated, to fit the time; {can}"
    if labelled is source:
        return f"labels: those of the training images ({len(set(classes))} classes){kept}; {can}"
    return f"labels: {labelled!r}{kept}; {can}"
