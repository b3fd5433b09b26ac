"""The lines of a plan, for its user: images, method, what learns, views, labels and length."""

from __future__ import annotations

from hexa.adaptation.choice import Choice
from hexa.adaptation.looking import Seen
from hexa.comparison.labelled import Judge, count_groups, labels_of, shown_by
from hexa.data import Source
from hexa.recipes.experiment import Experiment
from hexa.reporting.tables import format_duration
from hexa.weights.pretrained import Backbone


def length(experiment: Experiment, passes: float, seconds: float) -> str:
    """The line on how long the training is. seconds: of everything; 0 if epochs or steps decide it."""
    said = f"length: {'about ' if seconds else ''}{passes:.1f} passes (epochs) in batches of {experiment.batch_size}"
    if sets := experiment.start.view_sets:
        said += f", {sets} of them with new views, which the others repeat"
    said += f", by {experiment.optimizer.name} at {experiment.optimizer.learning_rate:g}"
    return said + (f", {format_duration(seconds)} in all" if seconds else "")


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
    size = experiment.views.size
    used = experiment.views.test_size
    start = experiment.start
    method = " + ".join(
        [experiment.method.name, *(n for n, h in experiment.hard_examples.items() if h.weight > 0)]
    )
    statistics = "kept" if start.batch_norm == "keep" else start.batch_norm
    result = f"; the result is for {used} px" if used != size else ""
    smaller = (
        f"; the start's own {native} px may be worth more than training gains"
        if used < native
        else ""
    )
    smaller = (
        f", where the start keeps {share:.0%} of its neighbourhoods"
        if share is not None
        else smaller
    )
    few = {None: "whole network", 1: f"last of {stages} stages"}
    learns = few.get(start.trainable_stages, f"last {start.trainable_stages} of {stages} stages")
    learns += ", in the first pass the head alone" if start.freeze_backbone == 1 else ""
    fewer = f", {chosen.images:,} of them trained on" if chosen.images < seen.count else ""
    guessed = " (--domain names another kind)" if seen.domain != "photos" else ""
    return (
        f"images: {seen}{fewer}",
        f"method: {method}, from {start.weights}, batch-norm statistics {statistics}",
        f"learning: the {learns}",
        f"views: {experiment.views.based_on} for {seen.domain}{guessed}, {size} px{result}{smaller}",
    )


def too_short(minutes: int) -> str:
    """The verdict if the time is not enough, with the --time to give."""
    kept = "so the original weights are kept"
    return f"The time is too short to train on these images, {kept}; try --time {minutes}m."


def sizes(start: Backbone, result: Backbone) -> str:
    """The image sizes that a verdict holds at."""
    if start.image_size == result.image_size:
        return f"at {result.image_size} px"
    return f"start at {start.image_size} px, result at {result.image_size} px"


def labels(labelled: Source | None, source: Source, compared: int) -> str:
    """The line on the images that judge, of which `compared` are looked at."""
    if labelled is None:
        return "labels: none, so whether it helped cannot be told and the start will be kept; --labelled gives some"
    whose = (
        "those of the images themselves, which it learns from"
        if labelled is source
        else repr(labelled)
    )
    judge = Judge(labels_of(labelled), groups=labelled.groups())
    can = shown_by(judge, compared)
    return f"labels: {whose}{in_groups(labelled)}; {can}"


def in_groups(labelled: Source) -> str:
    """The number of groups of labelled images, or that they count as independent, as the end of a plan's sentence."""
    return (
        ", independent unless --groups is given"
        if (n := labelled.groups()) is None
        else f" in {count_groups(n)}"
    )
