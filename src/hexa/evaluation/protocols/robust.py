"""Robust accuracy: the softmax regression of `probe` on the frozen backbone, under adversarial attack or image corruption.
Presets `apgd`: APGD on the cross-entropy and on the targeted DLR loss, 100 steps each, on 1,000 images, ε in 1/255;
`autoattack`: also FAB and Square; `pgd`: projected gradients on the cross-entropy, which overstates robust accuracy, for
comparison with published numbers; `corruptions`: the fifteen corruptions of ImageNet-C and CIFAR-10-C, five severities each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

from hexa.config import Config, UserError
from hexa.data.loading.evaluation_stream import evaluation_batches, floats
from hexa.data.sources.decode import unit
from hexa.data.sources.source import Labels, Subset
from hexa.evaluation.attack import (
    Attack,
    Scores,
    Streams,
    channels_last,
    projected_gradient,
    smallest_radius,
    together,
)
from hexa.evaluation.auto_attack import apgd, apgd_name, auto_attack
from hexa.evaluation.corruptions import kinds as corruptions
from hexa.evaluation.corruptions.official import opened
from hexa.evaluation.features import for_inference, nothing_read
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocol import (
    Outcome,
    Positive,
    Protocol,
    Task,
    balanced_accuracy,
    majority_class,
    named_changes,
)
from hexa.evaluation.protocols.probe import fit_probe
from hexa.evaluation.split import draw_images
from hexa.runtime.random import Stream


class RobustOptions(Config):
    """Options of every preset of the protocol `robust`."""

    images: int | None = pydantic.Field(default=None, gt=0)
    """Number of test images, the same ones for every backbone and seed; none scores all."""


class CorruptionOptions(RobustOptions):
    """Options of the protocol `robust`, preset corruptions."""

    official: Path | None = None
    """A folder with the published files of CIFAR-10-C, which are then scored; else corruptions are made here."""


class _AttackOptions(RobustOptions):
    """Options of every preset with an attack."""

    epsilons: Positive[float] = pydantic.Field(default=(1.0, 2.0, 4.0, 8.0), min_length=1)
    """Radii ε of the attack, in 1/255 (the L∞ ball); `top1` is the accuracy at 0."""


class PGDOptions(_AttackOptions):
    """Options of the protocol `robust`, preset pgd."""

    epsilons: Positive[float] = pydantic.Field(default=(0.5, 1.0, 2.0, 4.0, 8.0), min_length=1)
    steps: int = pydantic.Field(default=20, gt=0)
    """Steps of an attack, each of 2.5 · ε / steps."""
    restarts: int = pydantic.Field(default=2, gt=0)
    """Attacks, each from another random point of the ball, of which one has to succeed."""

    def attacks(self, classes: int) -> list[Attack]:
        return [
            partial(projected_gradient, steps=self.steps, restart=restart)
            for restart in range(self.restarts)
        ]

    def identity(self) -> str:
        return f"pgd{self.steps}x{self.restarts}"

    def title(self, classes: int) -> str:
        return f"PGD on cross-entropy ({self.steps} steps, starts: {self.restarts})"


class APGDOptions(_AttackOptions):
    """Options of the protocol `robust`, preset apgd."""

    images: int | None = pydantic.Field(default=1000, gt=0)
    steps: int = pydantic.Field(default=100, gt=0)
    """Steps of each attack: APGD on the cross-entropy, APGD for each target, for autoattack also FAB for each target."""
    targets: int = pydantic.Field(default=9, gt=0)
    """Other classes that targeted attacks aim at, the most likely first; at most those that there are."""

    def attacks(self, classes: int) -> list[Attack]:
        return apgd(self.steps, self.targets, classes)

    def identity(self) -> str:
        return f"apgd{self.steps}+apgd{self.steps}t{self.targets}"

    def title(self, classes: int) -> str:
        return apgd_name(self.steps, self.targets, classes)


class AutoAttackOptions(APGDOptions):
    """Options of the protocol `robust`, preset autoattack: AutoAttack's standard attacks."""

    queries: int = pydantic.Field(default=5000, gt=0)
    """Views that Square tries."""

    def attacks(self, classes: int) -> list[Attack]:
        return auto_attack(self.steps, self.targets, classes, self.queries)

    def identity(self) -> str:
        return f"{super().identity()}+fab{self.steps}t{self.targets}+square{self.queries}"

    def title(self, classes: int) -> str:
        return f"AutoAttack: {super().title(classes)}, FAB-T, Square ({self.queries:,} queries)"


#: Options of an attack: `attacks`, one of which has to succeed, its name in the protocol id, and that for people.
AttackOptions = PGDOptions | APGDOptions


def run(task: Task, options: CorruptionOptions | AttackOptions) -> Outcome:
    """Score the probe under the attack or the corruptions of the options. Raises UserError, before the work."""
    outcome = (
        attacked(task, options) if isinstance(options, AttackOptions) else corrupted(task, options)
    )
    return replace(outcome, grouped=task.fit_groups() is not None)


def attacked(task: Task, options: AttackOptions) -> Outcome:
    """`top1` of the images as they are, and `robust@ε`: the share that no attack within ε makes misclassified.

    Per image, `smallest_epsilon` is the first ε at which an attack succeeds: 0 if none is needed, None if none does.
    """
    scores = classifier(task)
    attacks = options.attacks(task.num_classes)
    epsilon_of = {epsilon / 255: epsilon for epsilon in (0.0, *sorted(set(options.epsilons)))}
    radii = [*epsilon_of][1:]
    positions = []
    smallest = []
    for images, labels, places, streams in test_batches(task, options.images, "attacking"):
        smallest.append(smallest_radius(scores, images, labels, radii, attacks, streams).numpy())
        positions.append(places)
    places = np.concatenate(positions)
    broken = np.concatenate(smallest)  # the radius that was enough
    shares = {
        f"robust@{epsilon:g}" if epsilon else "top1": broken > radius
        for radius, epsilon in epsilon_of.items()
    }
    title = options.title(task.num_classes)
    intervals = {name: interval(right) for name, right in shares.items()}
    metrics = {name: 100 * float(right.mean()) for name, right in shares.items()}
    details = {
        "attack": title,
        "images": len(places),
        "intervals": intervals,
        "positions": places.tolist(),
        "smallest_epsilon": [epsilon_of.get(radius) for radius in broken.tolist()],
    }
    ends = [f"{name} {low:.1f} to {high:.1f} %" for name, (low, high) in intervals.items()]
    note = f"robust accuracy is by {title} on {len(places):,} images; 95 % intervals over images: "
    note += ", ".join(ends)
    return Outcome(metrics | _balanced(task, shares["top1"], places), details, [note])


def _balanced(
    task: Task,
    right: NDArray[np.bool_],
    places: Labels,
) -> dict[str, float]:
    """Balanced accuracy and majority class of the test images at these positions."""
    assert task.test.classes is not None, "a task for this has one label per image"
    labels = task.test.classes[places]
    return {
        "balanced_accuracy": balanced_accuracy(right, labels),
        "majority_class": majority_class(labels),
    }


@torch.no_grad()
def corrupted(task: Task, options: CorruptionOptions) -> Outcome:
    """`top1` of the images as they are, `corrupted`: the mean over 15 corruptions and 5 severities, and over groups.

    Per image, `right` counts the 75 corrupted versions that are classified correctly.
    """
    if len(task.backbone.mean) != 3:
        raise UserError("corruptions are made for RGB images: take --preset apgd")
    assert task.test.labels is not None, "a task has labelled sources"
    folder = options.official
    official = None if folder is None else opened(folder, task.test.labels)
    scores = classifier(task)
    cases = list(itertools.product(corruptions.KINDS, range(corruptions.NUM_SEVERITIES)))
    positions = []
    tables = []

    def recognised(pixels: Tensor, labels: Tensor) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = (scores(channels_last(pixels)).argmax(1) == labels).cpu().numpy()
        return right

    for images, labels, places, streams in test_batches(task, options.images, "corrupting"):
        right = [recognised(images, labels)]
        for kind, severity in cases:
            if official is None:
                made = corruptions.corrupt(kind, images, severity + 1, streams)
            else:
                saved = torch.from_numpy(official[kind][severity * len(task.test) + places])
                made = unit(task.transform(saved.permute(0, 3, 1, 2)).to(task.device))
            right.append(recognised(made, labels))
        tables.append(np.stack(right, 1))
        positions.append(places)
    table = np.concatenate(tables)  # bool [N, 1 + 75]
    places = np.concatenate(positions)
    unharmed = table[:, 0]
    harmed = table[:, 1:]
    by_kind = 100 * harmed.mean(0).reshape(len(corruptions.KINDS), -1)  # [15, 5]
    kinds = dict(zip(corruptions.KINDS, by_kind, strict=True))
    metrics = {"top1": 100 * float(unharmed.mean()), "corrupted": float(by_kind.mean())}
    metrics |= _balanced(task, unharmed, places)
    for group, names in corruptions.GROUPS.items():
        metrics[group] = float(np.mean([kinds[name] for name in names]))
    intervals = {"top1": interval(unharmed)}
    if len(places) > 1:
        half = half_width(100 * harmed.mean(1))
        ends = np.array([-half, half]) + metrics["corrupted"]
        intervals["corrupted"] = ends.clip(0, 100).tolist()
    details = {
        "intervals": intervals,
        "corruptions": {kind: values.tolist() for kind, values in kinds.items()},
        "positions": places.tolist(),
        "right": harmed.sum(1).tolist(),
    }
    return Outcome(metrics, details)


def classifier(task: Task) -> Scores:
    """Pixels [B, C, H, W] in [0, 1] -> class scores [B, K]: the backbone and its probe, in fp32.

    Whatever the precision of the features, images are scored in fp32: rounding hides gradients, and images that an
    attack would move are counted as robust.
    """
    groups = task.fit_groups()
    probe = fit_probe(*task.features("fit"), task.num_classes, seed=task.seed, groups=groups)
    head = probe.linear().to(task.device)
    backbone = for_inference(task.backbone, task.device)
    return lambda images: head(backbone(images).float())


def test_batches(
    task: Task,
    count: int | None,
    doing: str,
) -> Iterator[tuple[Tensor, Tensor, Labels, Streams]]:
    """`count` test images, or all, as evaluation sees them: pixels, labels, ascending positions, a stream for each.

    doing: what is reported while they are worked on. Raises UserError if none can be read.
    """
    # not by the seed: repetitions differ by their training, not by the images
    rows = draw_images(len(task.test), count, Stream(0).child("robust", "images"))
    stream = Stream(task.seed).child("robust")
    problems: dict[int, str] = {}
    source = Subset(task.test, rows)
    batch = min(task.extraction_batch, together(task.device, task.transform.size**2))
    batches = evaluation_batches(
        source, task.transform, batch, task.device, task.num_workers, problems
    )
    task.report(doing, 0, len(rows))  # the first images may take minutes
    assert task.test.labels is not None, "a task has labelled sources"
    for images, index in batches:
        places = rows[index.numpy()]
        labels = torch.from_numpy(task.test.labels[places]).to(task.device)
        streams = [stream.child(int(place)) for place in places]
        yield floats(images, task.device), labels, places, streams
        task.report(doing, int(index[-1]) + 1, len(rows))
    task.keep("test", source, np.delete(np.arange(len(rows)), [*problems]))
    if len(problems) == len(rows):
        raise nothing_read(source)


def interval(right: NDArray[np.bool_]) -> list[float]:
    """Wilson's 95 % interval of a share, in percent."""
    ends = binomtest(int(right.sum()), len(right)).proportion_ci(0.95, "wilson")
    return [100 * float(ends.low), 100 * float(ends.high)]


#: Options that an identity names in its own words.
_NAMED = ("epsilons", "steps", "restarts", "targets", "queries", "official")


def _identity(preset: str, options: CorruptionOptions | AttackOptions) -> str:
    changed = named_changes(PROTOCOL.presets[preset], options, _NAMED)
    if isinstance(options, CorruptionOptions):
        official = "" if options.official is None else "-official"
        return f"corruptions{changed}{official}"
    epsilons = ",".join(f"{epsilon:g}" for epsilon in sorted(set(options.epsilons)))
    return f"{options.identity()}-eps{epsilons}{changed}"


PROTOCOL = Protocol(
    run=run,
    presets={
        "apgd": APGDOptions(),
        "autoattack": AutoAttackOptions(),
        "pgd": PGDOptions(),
        "corruptions": CorruptionOptions(),
    },
    identity=_identity,
    extracts=lambda options: ("fit",),
)
