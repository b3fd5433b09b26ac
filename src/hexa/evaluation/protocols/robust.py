"""Accuracy of a softmax regression on the frozen backbone (that of `probe`) where images are not as they were. Presets
`apgd`: under attack by APGD on the cross-entropy and on the targeted DLR loss, 100 steps each, on 1,000 images, ε in
grey levels; `autoattack`: by these, FAB and Square; `pgd`: by projected gradients on the cross-entropy, which overstates,
for comparison with numbers that were published so; `corruptions`: on the fifteen corruptions of ImageNet-C and CIFAR-10-C, five severities each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from hexa.config import Config, UserError
from hexa.data.loading.loaders import evaluation_batches
from hexa.data.sources.source import Labels, Subset
from hexa.data.views.evaluation import OwnAspect
from hexa.evaluation.attack import (
    Attack,
    Scores,
    Streams,
    projected_gradient,
    random_starts,
    smallest_radius,
    together,
)
from hexa.evaluation.auto_attack import apgd, apgd_name, auto_attack
from hexa.evaluation.corruptions import kinds as corruptions
from hexa.evaluation.corruptions.official import Arrays, opened
from hexa.evaluation.features import extract_part, note_lost, nothing_read
from hexa.evaluation.protocol import (
    Outcome,
    Positive,
    Protocol,
    Task,
    balanced_accuracy,
    listed,
    majority_class,
    named_changes,
)
from hexa.evaluation.protocols.probe import fit_probe
from hexa.evaluation.split import draw_images
from hexa.evaluation.supervised import Plan, tuned
from hexa.ops import draws
from hexa.ops.photometric import unit
from hexa.runtime import precision as precisions
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone

LossName = Literal["cross-entropy", "margin"]


class CorruptionOptions(Config):
    """Options of the protocol `robust`, preset corruptions."""

    head: Literal["slf", "alf", "aff"] = "slf"
    """slf: the probe; alf: a linear layer trained on images under attack; aff: the whole network with it."""
    head_epochs: int = pydantic.Field(default=25, gt=0)
    """Passes over the training images, in crops and flips, for alf and aff; rates ×0.1 at 60 % and 80 % of them."""
    head_rate: float = pydantic.Field(default=0.1, gt=0)
    """Learning rate of SGD for alf and aff, with batches of 128."""
    head_epsilon: float = pydantic.Field(default=8.0, gt=0, le=64)
    """Radius ε of the attack in training, in grey levels, for alf and aff; a step is ε / 4."""
    head_steps: int = pydantic.Field(default=10, gt=0)
    """Steps of the attack in training, from a random point, for alf and aff."""
    official: Path | None = None
    """A folder with the published files of CIFAR-10-C, which are then scored; else corruptions are made here."""
    images: int | None = pydantic.Field(default=None, gt=0)
    """Test images that are drawn, the same ones for every backbone and seed; all of them if not given."""

    @pydantic.model_validator(mode="after")
    def _head_learns(self) -> Self:
        idle = sorted(name for name in self.model_fields_set if name.startswith("head_"))
        if idle and self.head == "slf":
            raise ValueError(
                f"{', '.join(idle)}: not for head slf; leave it out, or give head alf or aff"
            )
        return self


class AttackOptions(CorruptionOptions):
    """How far pixels are moved."""

    epsilons: Positive[float] = pydantic.Field(default=(0.5, 1.0, 2.0, 4.0, 8.0), min_length=1)
    """How far a pixel may be moved, ε, in grey levels of 255 (the L∞ ball); `top1` is the accuracy at 0."""

    corruptions: bool = False
    """Score the corruptions too, on the same images."""


class PGDOptions(AttackOptions):
    """Options of the protocol `robust`, preset pgd."""

    steps: int = pydantic.Field(default=20, gt=0)
    """Steps of an attack."""
    relative_step: float = pydantic.Field(default=2.5, gt=0)
    """The length of a step, as a multiple of ε / steps."""
    restarts: int = pydantic.Field(default=2, gt=0)
    """Attacks, each from another random point of the ball, of which one has to succeed."""
    losses: Annotated[tuple[LossName, ...], pydantic.BeforeValidator(listed)] = ("cross-entropy",)
    """What the attacks raise; of several, each with all restarts. The margin max_j≠y z_j − z_y finds more."""

    def attacks(self) -> list[Attack]:
        """One of them has to succeed."""
        return random_starts(self.steps, self.relative_step, self.restarts, self.losses)

    def identity(self) -> str:
        """The name of the attack in the protocol id."""
        return f"pgd{self.steps}x{self.restarts}"

    def title(self, classes: int) -> str:
        """The name of the attack for people, where there are this many classes."""
        return f"PGD on {' and '.join(self.losses)} ({self.steps} steps, starts: {self.restarts})"


class APGDOptions(AttackOptions):
    """Options of the protocol `robust`, preset apgd."""

    images: int | None = pydantic.Field(default=1000, gt=0)
    epsilons: Positive[float] = pydantic.Field(default=(1.0, 2.0, 4.0, 8.0), min_length=1)
    steps: int = pydantic.Field(default=100, gt=0)
    """Steps of each attack: APGD on the cross-entropy, APGD for each target, for autoattack also FAB for each target."""
    targets: int = pydantic.Field(default=9, gt=0)
    """Other classes that targeted attacks aim at, the most likely first; at most those that there are."""

    def attacks(self) -> list[Attack]:
        return apgd(self.steps, self.targets)

    def identity(self) -> str:
        return f"apgd{self.steps}+apgd{self.steps}t{self.targets}"

    def title(self, classes: int) -> str:
        return apgd_name(self.steps, self.targets, classes)


class AutoAttackOptions(APGDOptions):
    """Options of the protocol `robust`, preset autoattack: AutoAttack's standard attacks."""

    queries: int = pydantic.Field(default=5000, gt=0)
    """Views that Square tries."""

    def attacks(self) -> list[Attack]:
        return auto_attack(self.steps, self.targets, self.queries)

    def identity(self) -> str:
        return f"{super().identity()}+fab{self.steps}t{self.targets}+square{self.queries}"

    def title(self, classes: int) -> str:
        return f"AutoAttack: {super().title(classes)}, FAB-T, Square ({self.queries:,} queries)"


Attacks = PGDOptions | APGDOptions


def run(task: Task, options: CorruptionOptions) -> Outcome:
    """By the preset that the options belong to. Raises UserError, before the work."""
    corrupts = not isinstance(options, Attacks) or options.corruptions
    official = None
    if corrupts and (len(task.backbone.mean) != 3 or isinstance(task.transform, OwnAspect)):
        raise UserError(
            "corruptions are made for square RGB images: take --preset apgd, and leave out --aspect keep"
        )
    if options.official is not None:
        if not corrupts:
            raise UserError(
                "official: holds corrupted images; give --corruptions true, or leave it out"
            )
        assert task.test.labels is not None, "a task has labelled sources"
        official = opened(options.official, task.test.labels)
    scores = classifier(task, options)
    if not isinstance(options, Attacks):
        return corrupted(task, options, scores, official)
    outcome = attacked(task, options, scores)
    if options.corruptions:
        other = corrupted(task, options, scores, official)
        outcome.metrics |= {
            name: value for name, value in other.metrics.items() if name not in outcome.metrics
        }
        intervals = other.details["intervals"] | outcome.details["intervals"]
        outcome.details = other.details | outcome.details | {"intervals": intervals}
    return outcome


def attacked(task: Task, options: Attacks, scores: Scores) -> Outcome:
    """`top1` of the images as they are, and `robust@ε`: the share that no attack within ε makes misclassified.

    Per image, `smallest_epsilon` is the first ε at which an attack succeeds: 0 if none is needed, None if none does.
    """
    epsilon_of = {epsilon / 255: epsilon for epsilon in (0.0, *sorted(set(options.epsilons)))}
    radii = [*epsilon_of][1:]
    stream = Stream(task.seed).child("robust")
    rows = drawn(task, options.images)
    smallest = np.full(len(task.test), np.nan)
    task.report("attacking", 0, len(rows))  # the first images may take minutes
    for images, labels, places, streams in test_batches(task, rows, stream):
        smallest[places] = smallest_radius(
            scores, images, labels, radii, options.attacks(), streams
        )
        task.report("attacking", int(np.searchsorted(rows, places[-1])) + 1, len(rows))
    places = np.flatnonzero(~np.isnan(smallest))
    broken = smallest[places]  # the radius that was enough
    shares = {
        f"robust@{epsilon:g}" if epsilon else "top1": broken > radius
        for radius, epsilon in epsilon_of.items()
    }
    title = options.title(task.num_classes)
    intervals = {name: interval(right) for name, right in shares.items()}
    details = {
        "attack": title,
        "images": len(places),
        "intervals": intervals,
        "positions": places.tolist(),
        "smallest_epsilon": [epsilon_of.get(radius) for radius in broken.tolist()],
    }
    metrics = {name: 100 * float(right.mean()) for name, right in shares.items()}
    within = ", ".join(
        f"{name} {low:.1f} to {high:.1f} %" for name, (low, high) in intervals.items()
    )
    note = f"robust accuracy is by {title} on {len(places):,} images; 95 % intervals over images: {within}"
    return Outcome(metrics | _balanced(task, shares["top1"], places), details, [note])


def _balanced(task: Task, right: NDArray[np.bool_], places: Labels) -> dict[str, float]:
    """What stands next to the accuracy of the test images at these positions."""
    assert task.test.classes is not None, "a task for this has one label per image"
    labels = task.test.classes[places]
    return {
        "balanced_accuracy": balanced_accuracy(right, labels),
        "majority_class": majority_class(labels),
    }


def corrupted(
    task: Task, options: CorruptionOptions, scores: Scores, official: Arrays | None
) -> Outcome:
    """`top1` of the images as they are, `corrupted`: the mean over 15 corruptions and 5 severities, and over groups.

    Per image, `right` counts the 75 corrupted versions that are classified correctly. official: the published ones.
    """
    stream = Stream(task.seed).child("robust")
    rows = drawn(task, options.images)
    cases = list(itertools.product(corruptions.KINDS, range(1, corruptions.NUM_SEVERITIES + 1)))
    clean = []
    right = []
    kept = []
    done = 0
    with torch.no_grad():
        for images, labels, places, streams in test_batches(task, rows, stream):
            clean.append((scores(images).argmax(1) == labels).cpu().numpy())
            of_batch = []
            for kind, severity in cases:
                if official is None:
                    made = corruptions.corrupt(kind, images, severity, streams)
                else:
                    saved = torch.from_numpy(
                        official[kind][(severity - 1) * len(task.test) + places]
                    )
                    made = unit(task.transform(saved.permute(0, 3, 1, 2)).to(task.device))
                logits = scores(made.contiguous(memory_format=torch.channels_last))
                of_batch.append((logits.argmax(1) == labels).cpu().numpy())
                done += len(images)
                task.report("corrupting", done, len(rows) * len(cases))
            right.append(np.stack(of_batch, 1))
            kept.append(places)
    unharmed = np.concatenate(clean)
    table = np.concatenate(right)  # bool [N], [N, 75]
    by_kind = 100 * table.mean(0).reshape(len(corruptions.KINDS), -1)  # [15, 5]
    kinds = dict(zip(corruptions.KINDS, by_kind, strict=True))
    positions = np.concatenate(kept)
    metrics = {"top1": 100 * float(unharmed.mean()), "corrupted": float(by_kind.mean())}
    metrics |= _balanced(task, unharmed, positions)
    metrics |= {
        name: float(np.mean([kinds[kind] for kind in of]))
        for name, of in corruptions.GROUPS.items()
    }
    details = {
        "intervals": {
            "top1": interval(unharmed),
            "corrupted": interval_of_mean(table.mean(1), stream),
        },
        "corruptions": {kind: values.tolist() for kind, values in kinds.items()},
        "positions": positions.tolist(),
        "right": table.sum(1).tolist(),
    }
    return Outcome(metrics, details)


def classifier(task: Task, options: CorruptionOptions) -> Scores:
    """Pixels [B, C, H, W] in [0, 1] -> class scores [B, K]: the backbone and the head of the options, in fp32.

    Whatever the precision of the features, images are scored in fp32: rounding hides gradients, and images that an
    attack would move are counted as robust.
    """
    network = task.backbone
    if options.head == "slf":
        fit, labels = extract_part(task, "fit")
        head = fit_probe(fit, labels, task.num_classes, seed=task.seed).linear().to(task.device)
    else:
        network, head = adversarially_trained(task, options)
    backbone: Callable[[Tensor], Tensor] = precisions.place(network.eval(), task.device)
    return lambda images: head(backbone(images).float())


def adversarially_trained(task: Task, options: CorruptionOptions) -> tuple[Backbone, nn.Linear]:
    """A copy of the backbone and a linear layer after training on images under attack (Madry et al. 2018): min over
    the layer, for aff the whole network, of the mean over images of the cross-entropy at the end of an attack on it.
    """
    radius = options.head_epsilon / 255
    rate = options.head_rate

    def harder(scores: Scores, images: Tensor, labels: Tensor, stream: Stream) -> Tensor:
        start = images + radius * (2 * draws.uniform_like(images, stream) - 1)
        how = (radius, radius / 4, options.head_steps)
        return projected_gradient(scores, images, labels, start, *how, stops=False)[0]

    sgd = partial(torch.optim.SGD, momentum=0.9, weight_decay=2e-4)
    plan = Plan(options.head_epochs, 128, sgd, rate, rate, 0.1, (0.6, 0.8))
    stream = Stream(task.seed).child("robust", options.head)
    label = "training under attack"
    how: dict[str, Any] = {
        "score_every": options.head_epochs,
        "harder": harder,
        "frozen": options.head == "alf",
    }
    outcome, backbone, head = tuned(task, task.fit, task.test, plan, stream, label, **how)
    task.notes.extend(outcome.notes)
    return backbone, head


def drawn(task: Task, count: int | None) -> Labels:
    """Positions of `count` test images, in order, or of all."""
    # not by the seed: repetitions differ by their training, not by the images
    return draw_images(len(task.test), count, Stream(0).child("robust", "images"))


def test_batches(
    task: Task, rows: Labels, stream: Stream
) -> Iterator[tuple[Tensor, Tensor, Labels, Streams]]:
    """The test images at these positions as evaluation sees them, their labels, their positions, and a stream for each.
    Raises UserError if none can be read.
    """
    problems: dict[int, str] = {}
    source = Subset(task.test, rows)
    batch = min(task.extraction_batch, together(task.device, task.transform.size**2))
    made = evaluation_batches(
        source, task.transform, batch, task.device, task.num_workers, problems
    )
    for images, labels, index in made:
        assert labels is not None, "a task has labelled sources"
        places = rows[index.numpy()]
        yield images, labels, places, [stream.child(int(place)) for place in places]
    if problems:
        note_lost(task, source, sorted(problems), "test")
    if len(problems) == len(rows):
        raise nothing_read(source)


def interval(right: NDArray[np.bool_]) -> list[float]:
    """Wilson's 95 % interval of a share, in percent."""
    ends = binomtest(int(right.sum()), len(right)).proportion_ci(0.95, "wilson")
    return [100 * float(ends.low), 100 * float(ends.high)]


def interval_of_mean(values: NDArray[np.float64], stream: Stream, draws: int = 1000) -> list[float]:
    """95 % interval of the mean over images, in percent: quantiles of the means of images drawn with replacement."""
    generator = np.random.default_rng(stream.child("bootstrap").integer())
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(draws)]
    return [100 * float(end) for end in np.quantile(means, (0.025, 0.975))]


#: Options that an identity names in its own words.
_NAMED = ("epsilons", "steps", "restarts", "targets", "queries", "official")


def _identity(preset: str, options: CorruptionOptions) -> str:
    changed = named_changes(PROTOCOL.presets[preset], options, _NAMED) + (
        "-official" if options.official is not None else ""
    )
    if not isinstance(options, Attacks):
        return f"corruptions{changed}"
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
    extracts=lambda options: ("fit",) if options.head == "slf" else (),
)
