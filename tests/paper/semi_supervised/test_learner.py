"""Each semi-supervised learner's losses, against written loops over images with torch's functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.core import MAIN, Batch, Setting
from hexa.objective import STD, Objective
from hexa.runtime.random import Stream
from hexa_paper.semi_supervised.learner import Learner, RotationLearner
from hexa_paper.semi_supervised.options import SemiSupervisedOptions
from hexa_paper.semi_supervised.training import LearnersObjective
from tests.laws.cases import backward

CLASSES = 3
SIZE = 6
LABELLED = 2
RATIO = 2
COUNT = LABELLED * (1 + RATIO)
KNOWN = [2, 0]  # classes of the two labelled images, at positions 4 and 1 of the data
MEAN = (0.4, 0.5, 0.6)
STD_DEV = (0.2, 0.25, 0.3)
WEIGHT = 0.7


class Plain(nn.Module):
    """Without batch-norm, so that an image's scores are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 10), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Normed(Plain):
    """The statistics of its batch-norm are those of the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.norm(images))


def objective(name: str, network: nn.Module | None = None, **fields: Any) -> Objective:
    """Return the objective of a learner around the small network, in fp64, with a threshold that
    some of the images reach."""
    known = {"learner": name, "ratio": RATIO, "unlabelled_weight": WEIGHT, "steps": 10}
    options = SemiSupervisedOptions.from_fields({**known, **fields})
    torch.manual_seed(0)
    rotates = name == "s4l"
    head = nn.Linear(10, CLASSES + 4 * rotates)
    classes = torch.tensor([-1, KNOWN[1], -1, -1, KNOWN[0], -1])
    setting = Setting(6, COUNT, num_crops=1, mean=MEAN, std=STD_DEV)
    given = (options.rule, network or Plain(), head, classes, setting, options.ema)
    learner = RotationLearner(*given, weight=WEIGHT) if rotates else Learner(*given)
    return LearnersObjective(learner.double(), options)


def batch(step: int = 9) -> Batch:
    generator = torch.Generator().manual_seed(1)
    crops = torch.rand(COUNT, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)
    index = torch.tensor([4, 1, 0, 1, 2, 3])
    stream = Stream(0).child("step", step)
    return Batch((crops,), index, stream, step)


def scores(learner: Learner, image: Tensor) -> Tensor:
    """Return the scores of one image, normalised by hand."""
    mean = torch.tensor(MEAN)[:, None, None]
    std = torch.tensor(STD_DEV)[:, None, None]
    pixels = ((image - mean) / std).double()
    features = learner.encoder.backbone(pixels[None])
    return learner.encoder.head(features)[0]


def trained(
    made: Objective, given: Batch
) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, ...]]]:
    """The gradients that a step leaves, and the views of every term."""
    views = {name: part.example.crops for name, part in backward(made, given).items()}
    learner = made.method
    gradients = {
        name: p.grad.clone() for name, p in learner.encoder.named_parameters() if p.grad is not None
    }
    learner.zero_grad()
    return gradients, views


def check(gradients: dict[str, Tensor], learner: Learner, loss: Any) -> None:
    """The gradients of a step are those of this loss."""
    loss.backward()
    for name, gradient in gradients.items():
        expected = learner.encoder.get_parameter(name).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def of_unlabelled(name: str, learner: Learner, weak: Tensor, view: Tensor) -> Tensor:
    """Return the loss of an unlabelled image, as published."""
    with torch.no_grad():
        clean = scores(learner, weak)
        likely = F.softmax(clean, 0)
    hard = scores(learner, view)
    zero = torch.zeros((), dtype=torch.float64)
    if name in ("fixmatch", "pseudo-label"):
        return F.cross_entropy(hard, likely.argmax()) if likely.max() >= 0.5 else zero
    if name == "uda":
        sharpened = F.softmax(clean / 0.4, 0)
        loss = -(sharpened * F.log_softmax(hard, 0)).sum()
        return loss if likely.max() >= 0.5 else zero
    return F.kl_div(F.log_softmax(hard, 0), likely, reduction="sum")


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("fixmatch", "strong"),
        ("uda", "strong"),
        ("pseudo-label", "strong"),
        ("vat", "vat"),
    ],
)
def test_learner_losses(name: str, term: str) -> None:
    """A step is the published loss."""
    fields = {} if name == "vat" else {"threshold": 0.5}
    made = objective(name, **fields)
    given = batch()
    learner = made.method
    gradients, views = trained(made, given)
    weak = given.crops[0]
    hard = views[term][0]
    assert torch.equal(weak, hard) == (name == "pseudo-label")
    labelled = []
    for i in range(LABELLED):
        own = torch.tensor(KNOWN[i])
        labelled.append(F.cross_entropy(scores(learner, weak[i]), own))
    rest = [of_unlabelled(name, learner, weak[i], hard[i]) for i in range(LABELLED, COUNT)]
    if name != "vat":
        below = sum(value.item() == 0 for value in rest)
        assert 0 < below < len(rest), "the threshold decides"
    loss = sum(labelled) / LABELLED + WEIGHT * sum(rest) / (RATIO * LABELLED)
    if name == "vat":  # entropy minimisation
        likely = [F.softmax(scores(learner, weak[i]), 0) for i in range(LABELLED, COUNT)]
        entropy = sum(-(p * p.log()).sum() for p in likely)
        loss = loss + 0.06 * entropy / (RATIO * LABELLED)
    check(gradients, learner, loss)


def test_s4l_loss() -> None:
    """S4L is classes and rotations of four turned images."""
    made = objective("s4l")
    given = batch()
    learner = made.method
    gradients, views = trained(made, given)
    assert list(views) == [STD]
    loss = torch.zeros((), dtype=torch.float64)
    for i, image in enumerate(given.crops[0]):
        for turns in range(4):
            found = scores(learner, image.rot90(turns, (1, 2)))
            rotation = F.cross_entropy(found[CLASSES:], torch.tensor(turns))
            loss = loss + WEIGHT * rotation / (4 * COUNT)
            if i < LABELLED:
                own = F.cross_entropy(found[:CLASSES], torch.tensor(KNOWN[i]))
                loss = loss + own / (4 * LABELLED)
    check(gradients, learner, loss)


def test_vat_power_iteration() -> None:
    """The virtual direction is that of a written power iteration."""
    made = objective("vat")
    given = batch()
    learner = made.method
    weak = 0.25 + given.crops[0] / 2  # nothing is clipped
    given = replace(given, crops=(weak,))
    _, views = trained(made, given)
    generator = given.stream.child("hard example", "vat").child(0).child(0).generator()
    first = torch.randn(weak.shape, generator=generator).double()
    for i in range(LABELLED, COUNT):
        # a root mean square of one grey level
        length = SIZE * 3**0.5 / 255
        step = (first[i] / first[i].norm() * length).requires_grad_()
        clean = F.softmax(scores(learner, weak[i]), 0).detach()
        moved = F.log_softmax(scores(learner, weak[i] + step), 0)
        away = F.kl_div(moved, clean, reduction="sum")
        (direction,) = torch.autograd.grad(away, step)
        root_mean_square = direction.square().mean().sqrt()
        expected = 6.24 / 255 * direction / root_mean_square
        delta = views["vat"][0][i] - weak[i]
        torch.testing.assert_close(delta, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["vat", "pseudo-label"])
def test_labelled_running_statistics(name: str) -> None:
    """Neither unlabelled images nor virtual views move them; either has batch statistics of its own."""
    made = objective(name, Normed())
    given = batch()
    learner = made.method
    norm = learner.encoder.backbone.norm
    moments = (torch.tensor(MEAN), torch.tensor(STD_DEV))
    pixels = (given.crops[0] - moments[0][:, None, None]) / moments[1][:, None, None]
    trained(made, given)
    labelled = pixels[:LABELLED].transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, 0.1 * labelled.mean(1))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * labelled.var(1))
    assert norm.num_batches_tracked == 1
    others = given.crops[0].clone()
    others[:LABELLED] = 0.5 * others[:LABELLED]
    still = replace(MAIN, update=False)
    before = learner.embed((given.crops[0],), still)[0, LABELLED:]
    after = learner.embed((others,), still)[0, LABELLED:]
    assert torch.equal(before, after)


def test_slow_copy_momentum() -> None:
    """The slow copy follows weights and takes statistics."""
    made = objective("fixmatch", ema=0.9)
    given = batch(step=0)
    learner = made.method
    before = {name: p.detach().clone() for name, p in learner.twin.named_parameters()}
    for step, momentum in ((0, 1 / 10), (200, 0.9)):
        for _ in made.losses(replace(given, step=step)):
            pass
        with torch.no_grad():
            for parameter in learner.encoder.parameters():
                parameter.add_(0.1)
        made.commit(replace(given, step=step))
        fast = dict(learner.encoder.named_parameters())
        for name, slow in learner.twin.named_parameters():
            before[name] = momentum * before[name] + (1 - momentum) * fast[name].detach()
            torch.testing.assert_close(slow, before[name])


def test_mixed_pseudo_labels() -> None:
    """Each unlabelled image's share counts with its own pseudo-label, that of a labelled image not at all."""
    made = objective("fixmatch", strong="weak", threshold=0.5, hard="cutmix")
    learner = made.method
    given = batch()
    terms = backward(made, given)
    weak = given.crops[0]
    mixed = terms["cutmix"].example.crops[0]
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(COUNT):
        kept = float((mixed[i] == weak[i]).all(0).double().mean())
        other = next((j for j in range(COUNT) if j != i and (mixed[i] == weak[j]).all(0).any()), i)
        for source, share in ((i, kept), (other, 1 - kept)):
            if source >= LABELLED:
                likely = F.softmax(scores(learner, weak[source]), 0)
                if likely.max() >= 0.5:
                    loss = F.cross_entropy(scores(learner, mixed[i]), likely.argmax())
                    expected = expected + share * loss / (RATIO * LABELLED)
    torch.testing.assert_close(terms["cutmix"].loss, expected.detach(), rtol=1e-6, atol=1e-9)
