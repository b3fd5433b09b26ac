"""Attacks against a loop over images and against linear classifiers, whose smallest attack is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.evaluation import evaluate
from hexa.evaluation.attack import (
    Attack,
    noise,
    smallest_radius,
)
from hexa.evaluation.auto_attack import (
    apgd,
    apgd_name,
    ascend,
    auto_attack,
    least_move,
)
from hexa.evaluation.corruptions.kinds import KINDS, corrupt
from hexa.evaluation.protocols import robust
from hexa.evaluation.protocols.robust import CorruptionOptions, PGDOptions, interval
from hexa.runtime.random import Stream
from hexa.weights.pretrained import random_backbone
from tests.evaluation.given import QUIET, SMALL
from tests.evaluation.test_tuning import task


def draw(count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, images, and the classes that it takes them for, by small margins."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 3, 6, 6, generator=generator).double()
    layer = nn.Conv2d(3, 5, 3)
    last = nn.Linear(5 * 16, 4)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *last.parameters()):
            parameter.normal_(0, 0.2, generator=generator)
        network = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), last).double()
        last.bias -= network(images).mean(0)
        return network, images, network(images).argmax(1)


def one_by_one(
    scores: nn.Module,
    image: Tensor,
    label: int,
    start: Tensor,
    radius: float,
    step: float,
    steps: int,
) -> bool:
    """Return whether each iterate is misclassified, as the paper defines it."""
    x = (image + (start - image).clamp(-radius, radius)).clamp(0, 1)
    for number in range(steps + 1):
        x = x.detach().requires_grad_()
        logits = scores(x[None])
        if int(logits.argmax()) != label:
            return True
        if number < steps:
            F.cross_entropy(logits, torch.tensor([label])).backward()  # type: ignore[no-untyped-call]
            x = (image + (x.detach() + step * x.grad.sign() - image).clamp(-radius, radius)).clamp(
                0, 1
            )
    return False


@pytest.mark.parametrize("radius", [0.01, 0.02])
def test_pgd_loop(radius: float) -> None:
    scores, images, labels = draw(24)
    labels[:3] = (labels[:3] + 1) % 4  # some are misclassified from the beginning
    streams = [Stream(2).child(number) for number in range(24)]
    (attack,) = PGDOptions(steps=7, restarts=1).attacks(4)
    wrong = attack(scores, images, labels, radius, streams)
    starts = images + radius * noise(images, streams, 0)
    step = 2.5 * radius / 7
    expected = [
        one_by_one(scores, image, int(label), at, radius, step, 7)
        for image, label, at in zip(images, labels, starts, strict=True)
    ]
    assert wrong.tolist() == expected
    assert 6 < int(wrong.sum()) < 23


@pytest.mark.parametrize(
    "attacks",
    [
        PGDOptions(restarts=1).attacks(2),
        apgd(20, 1, 2)[:1],
        apgd(20, 1, 2)[1:],
        auto_attack(20, 1, 2, 1)[2:3],
    ],
)
def test_linear_classifier_margin(attacks: list[Attack]) -> None:
    """|w·x + b| / ‖w‖₁ is how far all pixels have to be moved, where none is near the end of its range."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(12, generator=generator).double()
    images = 0.4 + 0.2 * torch.rand(40, 3, 2, 2, generator=generator).double()
    own = (images.flatten(1) - 0.5) @ weight
    labels = (own > 0).long()

    def scores(x: Tensor) -> Tensor:
        own = (x.flatten(1) - 0.5) @ weight
        return torch.stack([-own, own], 1)

    radii = [0.005, 0.01, 0.02, 0.04]
    streams = [Stream(0).child(number) for number in range(40)]
    found = smallest_radius(scores, images, labels, radii, attacks, streams)
    needed = own.abs() / weight.abs().sum()
    expected = [
        min((radius for radius in radii if radius > need), default=math.inf)
        for need in needed.tolist()
    ]
    assert found.tolist() == expected
    assert {0.005, math.inf} < set(expected)
    labels[5] = 1 - labels[5]
    assert smallest_radius(scores, images, labels, radii, attacks, streams)[5] == 0


def test_least_move_linear_programming() -> None:
    """min t: −t ≤ δ ≤ t, ⟨slopes, δ⟩ = gap, 0 ≤ points + δ ≤ 1, or the most of gap that the bounds allow."""
    generator = torch.Generator().manual_seed(4)
    points = torch.rand(30, 5, generator=generator).double()
    slopes = torch.randn(30, 5, generator=generator).double()
    gap = torch.randn(30, 1, generator=generator).double()
    slopes[0, 2] = 0.0
    found = least_move(points, slopes, gap)
    reached = 0
    for point, slope, move, need in zip(points, slopes, found, gap[:, 0], strict=True):
        eye = np.eye(5)
        within = {
            "A_ub": np.block([[eye, -np.ones((5, 1))], [-eye, -np.ones((5, 1))]]),
            "b_ub": np.zeros(10),
        }
        room = [(-float(x), 1 - float(x)) for x in point]
        on_plane = {"A_eq": np.append(slope, 0)[None], "b_eq": [float(need)]}
        best = linprog([0] * 5 + [1], **within, **on_plane, bounds=[*room, (0, None)])
        if best.success:
            assert float(move.abs().max()) == pytest.approx(best.fun, abs=1e-9)
            assert float(slope @ move) == pytest.approx(float(need), abs=1e-9)
        else:
            most = linprog(-float(need.sign()) * slope.numpy(), bounds=room)
            assert abs(float(slope @ move)) == pytest.approx(-most.fun, abs=1e-9)
        reached += best.success
    assert 5 < reached < 30


@pytest.mark.parametrize(
    "attacks",
    [PGDOptions(steps=3).attacks(4), auto_attack(5, 2, 4, 20)],
    ids=["pgd", "autoattack"],
)
def test_attack_draws_by_image(attacks: list[Attack]) -> None:
    """The random numbers for an image do not depend on its batch."""
    network, images, labels = draw(16)
    images = images.contiguous(memory_format=torch.channels_last)

    def scores(x: Tensor) -> Tensor:
        assert x.grad_fn is None  # or each step would keep the graph of those before
        return network(x)  # type: ignore[no-any-return]

    streams = [Stream(3).child(number) for number in range(16)]
    how = ([0.01, 0.03], attacks)
    together = smallest_radius(scores, images, labels, *how, streams)
    parts = [
        smallest_radius(scores, images[p], labels[p], *how, streams[p])
        for p in (slice(0, 5), slice(5, 16))
    ]
    assert together.tolist() == torch.cat(parts).tolist()
    assert len(set(together.tolist())) > 1


def apgd_of_one(
    scores: nn.Module, image: Tensor, label: int, start: Tensor, radius: float, stops: bool
) -> tuple[Tensor, bool]:
    """The view of the largest cross-entropy in 100 steps of APGD, and whether one was misclassified: algorithm 1 in
    whole percents of the steps, counted as the authors' code does. stops: at a view that is misclassified.
    """
    checkpoints = [0, 22]
    while checkpoints[-1] < 100:
        checkpoints.append(checkpoints[-1] + max(checkpoints[-1] - checkpoints[-2] - 3, 6))

    def project(x: Tensor) -> Tensor:
        return (image + (x - image).clamp(-radius, radius)).clamp(0, 1)

    x = project(start)
    before = best = x
    best_slope = slope = torch.zeros_like(x)
    size = 2 * radius
    largest = -math.inf
    found = False
    values: list[float] = []
    at_check = (size, -math.inf)  # the step size and the largest value at the last checkpoint
    for number in range(101):
        leaf = x.detach().requires_grad_()
        logits = scores(leaf[None])
        value = F.cross_entropy(logits, torch.tensor([label]))
        (slope,) = torch.autograd.grad(value, leaf)
        values.append(value.item())
        found |= int(logits.argmax()) != label
        if found and stops:
            return x, True
        if values[-1] > largest:
            best = x
            best_slope = slope
            largest = values[-1]
        if number == 0:
            at_check = (-1.0, largest)  # it counts as halved: there is nothing to compare with
        elif number in checkpoints:
            last = checkpoints[checkpoints.index(number) - 1]
            risen = sum(values[k + 1] > values[k] for k in range(last, number))
            old = size
            if risen <= 0.75 * (number - last) or at_check == (size, largest):
                size = size / 2
                x = best
                slope = best_slope
            at_check = (old if size == old else -1.0, largest)
        z = project(x + size * slope.sign())
        ahead = z if number == 0 else project(x + 0.75 * (z - x) + 0.25 * (x - before))
        before = x
        x = ahead
    return best, found


@pytest.mark.parametrize("stops", [True, False])
def test_apgd_loop(stops: bool) -> None:
    scores, images, labels = draw(16)
    radius = 0.012
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(2)).double() * 2 - 1
    start = images + radius * noise

    def aim(views: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = scores(views)
        loss = F.cross_entropy(logits, labels[rows], reduction="none")
        return loss, (logits.argmax(1) != labels[rows]) & stops

    views, enough = ascend(aim, images, radius, start, 100)
    expected = [
        apgd_of_one(scores, image, int(label), at, radius, stops)
        for image, label, at in zip(images, labels, start, strict=True)
    ]
    torch.testing.assert_close(
        views, torch.stack([view for view, _ in expected]), atol=1e-12, rtol=0
    )
    assert 3 < sum(found for _, found in expected) < 14
    assert enough.tolist() == [found and stops for _, found in expected]


@pytest.mark.parametrize(
    ("classes", "targets"),
    [
        (2, 1),
        (3, 2),
        (10, 3),
    ],
)
def test_target_class_count(classes: int, targets: int) -> None:
    """Attacks aim at no more classes than there are."""
    weight = torch.randn(12, classes, generator=torch.Generator().manual_seed(0)).double()
    images = torch.rand(20, 3, 2, 2, generator=torch.Generator().manual_seed(1)).double()

    def scores(x: Tensor) -> Tensor:
        return x.flatten(1) @ weight

    labels = scores(images).argmax(1)
    streams = [Stream(0).child(number) for number in range(20)]
    attacks = apgd(10, 3, classes)
    assert len(attacks) == 1 + targets
    assert all(bool(attack(scores, images, labels, 1.0, streams).all()) for attack in attacks)
    assert f"{targets} target" in apgd_name(10, 3, classes)


def test_robust_result_details() -> None:
    """An evaluation tells each image, and its mean."""
    backbone = random_backbone(SMALL, 8)
    result = evaluate(
        "robust", backbone, "digits", images=60, epsilons="4,1", steps=2, targets=1, **QUIET
    )
    metrics = result["metrics"]
    details = result["details"]
    assert result["protocol"] == "robust/apgd2+apgd2t1-eps1,4-images=60"
    smallest = details["smallest_epsilon"]
    assert len(smallest) == len(details["positions"]) == 60
    assert set(smallest) <= {0.0, 1.0, 4.0, None}
    for name, least in (("top1", 0), ("robust@1", 1), ("robust@4", 4)):
        right = sum(epsilon is None or epsilon > least for epsilon in smallest)
        assert metrics[name] == pytest.approx(100 * right / 60)
        low, high = details["intervals"][name]
        assert low < metrics[name] < high
    assert metrics["top1"] > metrics["robust@1"] > metrics["robust@4"]
    assert details["attack"] == "APGD-CE and APGD-T (2 steps, 1 target)"
    assert details["images"] == 60
    assert any(details["attack"] in note for note in result["notes"])
    # the same images for every seed, whatever the size of a batch
    other = QUIET | {"epsilons": [1], "steps": 1, "extraction_batch": 17, "seed": 1}
    found = evaluate("robust", backbone, "digits", images=60, **other)["details"]["positions"]
    assert found == details["positions"]


@pytest.mark.parametrize("images", [1, 2])
def test_corrupted_interval(images: int) -> None:
    """It is within 0 and 100 %; one image has none. Notes on classes are about the images that were drawn."""
    given = task()
    details = robust.run(given, CorruptionOptions(images=images)).details
    ends = details["intervals"].get("corrupted", ())
    assert len(ends) == 2 * images - 2
    assert all(0 <= end <= 100 for end in ends)
    assert given.scored_labels().tolist() == given.test.labels[details["positions"]].tolist()


def test_wilson_interval() -> None:
    low, high = binomtest(45, 50).proportion_ci(method="wilson")
    assert interval(np.arange(50) < 45) == pytest.approx([100 * low, 100 * high])


def test_official_corruption_files(tmp_path: Path) -> None:
    """Files of our own corruptions, but for the first severity of one kind, which is black."""
    backbone = random_backbone(SMALL, 8)
    test = open_source("digits", "test")
    images = (
        torch.stack([EvaluationTransform(8)(test.decode(place)) for place in range(len(test))])
        / 255
    )
    np.save(tmp_path / "labels.npy", np.tile(test.labels, 5))
    streams = [Stream(0).child("robust", place) for place in range(len(test))]
    for kind in KINDS:
        made = torch.cat([corrupt(kind, images, severity, streams) for severity in range(1, 6)])
        made[: len(test)] *= kind != "fog"
        np.save(tmp_path / f"{kind}.npy", (made * 255).round().byte().permute(0, 2, 3, 1).numpy())
    how = {"preset": "corruptions", "images": 40, **QUIET}
    found = evaluate("robust", backbone, "digits", official=tmp_path, **how)
    assert found["protocol"] == "robust/corruptions-images=40-official"
    ours = evaluate("robust", backbone, "digits", **how)["details"]["corruptions"]
    theirs = found["details"]["corruptions"]
    assert {kind for kind in KINDS if ours[kind] != theirs[kind]} == {"fog"}
    assert ours["fog"][1:] == theirs["fog"][1:]
    for name, content in (
        ("snow.npy is uint8", np.zeros((3, 8, 8, 3), np.uint8)),
        ("labels.npy", np.tile(test.labels[::-1], 5)),
    ):
        np.save(tmp_path / name.split()[0], content)
        with pytest.raises(UserError, match=name):
            evaluate("robust", backbone, "digits", official=tmp_path, **how)
    (tmp_path / "fog.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"fog\.npy"):
        evaluate("robust", backbone, "digits", official=tmp_path, **how)
