"""The linear protocol: its schedule, what it reports, and what it must not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hexa.data import ArraySource
from hexa.data.sources.source import Subset
from hexa.evaluation import evaluate
from hexa.evaluation.protocols import linear
from hexa.evaluation.protocols.linear import PROTOCOL, AdamaxOptions, LinearOptions, factor
from hexa.runtime.random import Stream
from tests.evaluation.given import QUIET
from tests.evaluation.test_tuning import task
from tests.modules import unchanged

#: A published setting is made for 100 epochs of a million images.
QUICK = {"epochs": 5, "batch_size": 16, "learning_rate": 1.0}


def test_linear_classifier_initialisation() -> None:
    """The first classifier is that of the papers."""
    classifier = linear.new_classifier(512, 100, Stream(0))
    assert float(classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert abs(float(classifier.weight.detach().mean())) < 2e-4
    assert not classifier.bias.any()


def test_linear_best_and_last() -> None:
    """It learns, and reports the best and the last accuracy."""
    given = task()
    given.backbone.train()
    with unchanged(given.backbone):
        outcome = linear.train(given, LinearOptions(**QUICK))
    assert outcome.details == linear.train(task(), LinearOptions(**QUICK)).details
    curve = outcome.details["curve"]
    assert [point["epoch"] for point in curve] == [1, 2, 3, 4, 5]
    assert outcome.metrics["top1"] == max(point["top1"] for point in curve) > 80
    assert outcome.metrics["top1_last"] == curve[-1]["top1"] <= outcome.metrics["top1"]


def test_linear_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a second look at the test images, image by image, with the classifier as it ended."""
    made: list[nn.Linear] = []
    original = linear.new_classifier
    monkeypatch.setattr(
        linear, "new_classifier", lambda *given: made.append(original(*given)) or made[-1]
    )
    given = task()
    outcome = linear.train(given, LinearOptions(**QUICK))
    right = 0
    with torch.no_grad():
        for number, label in enumerate(given.test.labels):
            right += int(
                made[0](given.backbone(given.test.decode(number)[None] / 255)).argmax() == label
            )
    assert outcome.metrics["top1_last"] == pytest.approx(100 * right / 30)


def test_linear_decoding_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is decoded once, whatever the epochs."""
    given = task()
    decoded = list[tuple[str, int]]()
    decode = ArraySource.decode
    both = {
        part: Subset(source, np.arange(len(source)))
        for part, source in (("fit", given.fit), ("test", given.test))
    }

    def counted(self: ArraySource, index: int) -> Tensor:
        decoded.append((self.name, index))
        return decode(self, index)

    monkeypatch.setattr(ArraySource, "decode", counted)
    linear.train(replace(given, **both), LinearOptions(**QUICK))
    assert len(set(decoded)) == 50 + 30
    assert len(decoded) <= 50 + 30 + 2  # one more look at their sizes is allowed


@pytest.mark.parametrize("preset", ["moco", "swav"])
def test_linear_learning_rates(preset: str) -> None:
    """Rates are those of torch's schedulers."""
    options = PROTOCOL.presets[preset]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], options.learning_rate)
    schedules = torch.optim.lr_scheduler
    oracle: torch.optim.lr_scheduler.LRScheduler = schedules.CosineAnnealingLR(
        optimizer, 100, eta_min=0
    )
    if preset == "moco":
        oracle = schedules.MultiStepLR(optimizer, [60, 80], 0.1)
    for epoch in range(100):
        assert options.learning_rate * factor(options, epoch) == pytest.approx(
            oracle.get_last_lr()[0], rel=1e-9
        )
        optimizer.step()
        oracle.step()
    for epochs in (1, 10):  # one never decays (D30)
        short = [
            factor(options.model_copy(update={"epochs": epochs}), epoch) for epoch in range(epochs)
        ]
        if preset == "moco" or epochs == 1:
            assert short == pytest.approx(([1] * 6 + [0.1] * 2 + [0.01] * 2)[:epochs])


def test_adamax_loop() -> None:
    x = torch.randn(50, 6)
    y = torch.randint(0, 3, (50,))
    found = linear.fit_by_adamax(x, y, 3, 0.01, AdamaxOptions(epochs=20, batch_size=16), seed=4)
    stream = Stream(4).child("adamax")
    classifier = linear.new_classifier(6, 3, stream)
    optimizer = torch.optim.Adamax(
        classifier.parameters(), 0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [7, 14], 0.1)
    for epoch in range(20):
        order = torch.randperm(50, generator=stream.child("order", epoch).generator())
        for start in range(0, 50, 16):
            rows = order[start : start + 16]
            optimizer.zero_grad()
            F.cross_entropy(classifier(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()
    torch.testing.assert_close(found.weight, classifier.weight)
    torch.testing.assert_close(found.bias, classifier.bias)


def test_linear_rate_choice() -> None:
    """A hopeless rate is not chosen, and the accuracies of both rates are reported."""
    found = evaluate(
        "linear", "pixels:8", "digits", preset="cifar", learning_rates=[1e-7, 0.01], **QUIET
    )
    assert found["details"]["learning_rate"] == 0.01
    held = found["details"]["held_out"]
    test = found["details"]["test"]
    assert held["1e-07"] < held["0.01"]
    assert found["metrics"]["top1"] == test["0.01"]
    assert found["metrics"]["top1_best_rate"] == max(test.values())
    assert found["metrics"]["top1"] > 85
    assert found["protocol"] == "linear/cifar-20ep-lr1e-07,0.01"
    one = evaluate(
        "linear",
        "pixels:8",
        "digits",
        preset="cifar",
        learning_rates=0.01,
        epochs=2,
        selection=1e-9,
        **QUIET,
    )
    assert one["details"]["held_out"] == {}, "one rate needs no choice"
    assert one["metrics"]["top1"] == one["metrics"]["top1_best_rate"]
