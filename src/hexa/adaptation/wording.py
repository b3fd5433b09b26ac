"""The lines of a plan, for its user: images, method, what learns, views, labels and length."""

from __future__ import annotations

from hexa.adaptation.choice import Choice
from hexa.adaptation.looking import Seen
from hexa.comparison.labelled import Judge, count_groups, labels_of, shown_by
from hexa.data import Source
from hexa.recipes.experiment import Experiment
from hexa.reporting.tables import format_duration, format_passes
from hexa.weights.pretrained import Backbone


def length(experiment: Experiment, passes: float, seconds: float) -> str:
    """The line on how long the training is. seconds: of everything; 0 if epochs or steps decide it."""
    optimizer = experiment.optimizer
    said = format_passes(passes, experiment.start.view_sets)
    said += f", in batches of {experiment.batch_size}, by {optimizer.name} at {optimizer.learning_rate:g}"
    if not seconds:
        return f"length: {said}"
    return f"length: about {said}, {format_duration(seconds)} in all"


def lines(
    experiment: Experiment,
    seen: Seen,
    chosen: Choice,
    stages: int,
    share: float | None,
    native: int,
) -> tuple[str, ...]:
    """The lines on images, method, what learns and views.

    stages: those of the network. share: of the start's neighbourhoods that are kept at the size of the result, if that
    was measured. native: the start's own size.
    """
    start = experiment.start
    images = str(seen)
    if chosen.images < seen.count:
        images += f", {chosen.images:,} of them trained on"
    hard = [name for name, example in experiment.hard_examples.items() if example.weight > 0]
    method = " + ".join([experiment.method.name, *hard])
    statistics = "kept" if start.batch_norm == "keep" else start.batch_norm
    learning = "the whole network"
    if start.trainable_stages == 1:
        learning = f"the last of {stages} stages"
    elif start.trainable_stages is not None:
        learning = f"the last {start.trainable_stages} of {stages} stages"
    if start.freeze_backbone == 1:
        learning += ", in the first pass the head alone"
    return (
        f"images: {images}",
        f"method: {method}, from {start.weights}, batch-norm statistics {statistics}",
        f"learning: {learning}",
        f"views: {_views(experiment, seen.domain, share, native)}",
    )


def _views(experiment: Experiment, domain: str, share: float | None, native: int) -> str:
    """What the views are made for, their size, and what a smaller one costs."""
    views = experiment.views
    used = views.test_size
    said = f"{views.based_on} for {domain}"
    if domain != "photos":
        said += " (--domain names another kind)"
    said += f", {views.size} px"
    if used != views.size:
        said += f"; the result is for {used} px"
    if share is not None:
        return f"{said}, where the start keeps {share:.0%} of its neighbourhoods"
    if used < native:
        return f"{said}; the start's own {native} px may be worth more than training gains"
    return said


def too_short(minutes: int) -> str:
    """The verdict if the time is not enough, with the --time to give."""
    return (
        "The time is too short to train on these images, so the original weights are kept; try "
        f"--time {minutes}m."
    )


def sizes(start: Backbone, result: Backbone) -> str:
    """The image sizes that a verdict holds at."""
    if start.image_size == result.image_size:
        return f"at {result.image_size} px"
    return f"start at {start.image_size} px, result at {result.image_size} px"


def labels(labelled: Source | None, source: Source, compared: int) -> str:
    """The line on the images that judge, of which `compared` are looked at."""
    if labelled is None:
        return "labels: none, so whether it helped cannot be told and the start will be kept; --labelled gives some"
    groups = labelled.groups()
    kept = ", independent unless --groups is given"
    if groups is not None:
        kept = f" in {count_groups(groups)}"
    can = shown_by(Judge(labels_of(labelled), groups=groups), compared)
    if labelled is source:
        return f"labels: those of the images themselves, which it learns from{kept}; {can}"
    return f"labels: {labelled!r}{kept}; {can}"
