"""The CIFAR recipe of the linear protocol against a plain loop with torch's own schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.evaluation.protocols import linear
from hexa.evaluation.protocols.linear import PROTOCOL, AdamaxOptions
from hexa.evaluation.supervised import decayed, new_classifier
from hexa.runtime.random import Stream

QUIET: dict[str, Any] = {"device": "cpu", "precision": "fp32", "preset": "cifar"}


def test_the_published_fields() -> None:
    """F23."""
    published = PROTOCOL.presets["cifar"]
    assert published == AdamaxOptions(epochs=20, batch_size=256, learning_rates=(0.1, 0.01, 0.001))
    assert PROTOCOL.identity("cifar", published) == "cifar-20ep-lr0.1,0.01,0.001"
    assert [decayed(0.1, (0.35, 0.7), epoch, 20) for epoch in (0, 6, 7, 13, 14, 19)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_fitting_is_a_loop_with_torchs_schedule() -> None:
    x, y = torch.randn(50, 6), torch.randint(0, 3, (50,))
    options = AdamaxOptions(epochs=20, batch_size=16)
    found = linear.fit_by_adamax(x, y, 3, 0.01, options, seed=4)
    stream = Stream(4).child("adamax")
    classifier = new_classifier(6, 3, stream)
    optimizer = torch.optim.Adamax(classifier.parameters(), 0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
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


def test_test_images_do_not_choose_the_rate() -> None:
    """A rate that is hopeless is not taken, and both numbers are told."""
    found = evaluate("linear", "pixels:8", "digits", learning_rates=[1e-7, 0.01], **QUIET)
    assert found["details"]["learning_rate"] == 0.01
    held, test = found["details"]["held_out"], found["details"]["test"]
    assert held["1e-07"] < held["0.01"]
    assert found["metrics"]["top1"] == test["0.01"]
    assert found["metrics"]["top1_best_rate"] == max(test.values())
    assert found["metrics"]["top1"] > 85
    assert found["protocol"] == "linear/cifar-20ep-lr1e-07,0.01"


def test_one_rate_needs_no_choice() -> None:
    found = evaluate("linear", "pixels:8", "digits", learning_rates=0.01, epochs=2, **QUIET)
    assert found["details"]["held_out"] == {}
    assert found["metrics"]["top1"] == found["metrics"]["top1_best_rate"]


def test_a_rate_must_be_above_zero() -> None:
    with pytest.raises(UserError, match=r"learning_rates: all must be above 0, got 0\.1, -1"):
        evaluate("linear", "pixels:8", "digits", learning_rates="0.1,-1", **QUIET)
