"""Fine-tuning, against loops written out with torch's own schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hexa.data.sources.source import ArraySource
from hexa.evaluation.protocol import Outcome, Task
from hexa.evaluation.protocols import fine_tune
from hexa.evaluation.protocols.fine_tune import FineTuneOptions
from hexa.evaluation.supervised import (
    AugmentedImages,
    Plan,
    decayed,
    new_classifier,
    tuned,
)
from hexa.runtime.random import Stream
from hexa.weights.pretrained import random_backbone
from tests.evaluation.given import SMALL, task_of
from tests.modules import unchanged


def images(count: int, seed: int) -> ArraySource:
    """Classes are hues."""
    generator = torch.Generator().manual_seed(seed)
    labels = np.arange(count) % 3
    pixels = torch.randint(0, 120, (count, 3, 8, 8), generator=generator)
    pixels[torch.arange(count), torch.from_numpy(labels)] += 100
    return ArraySource(pixels.to(torch.uint8), labels, name=f"hues{seed}")


def task(fit: ArraySource | None = None) -> Task:
    return task_of(random_backbone(SMALL, 8), fit or images(50, 0), images(30, 1))


@pytest.mark.parametrize("smallest", [1, 3])
def test_epoch_with_last_batch(smallest: int) -> None:
    """The published loaders drop nothing; what is too small for batch statistics is left out, others every time."""
    source = images(48, 0)
    source.labels = np.arange(48)
    given = AugmentedImages(task(), source, 23, Stream(0), smallest)
    first, second = ([labels.tolist() for _, labels, _ in given.epoch(epoch)] for epoch in range(2))
    sizes = [23, 23, 2] if smallest == 1 else [23, 23]
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == sizes
    assert given.steps == len(sizes)
    seen = sorted(label for batch in first for label in batch)
    again = sorted(label for batch in second for label in batch)
    assert len(set(seen)) == len(seen)
    found = seen == again == list(range(48))
    assert found == (smallest == 1)
    assert first != second
    assert bool(given.notes) == (smallest == 3)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (
            Plan(
                6,
                8,
                partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4),
                0.03,
                0.1,
                0.2,
                (0.6, 0.8),
            ),
            [4, 5],
        ),
        (Plan(8, 8, torch.optim.Adamax, 0.02, 0.02, 0.1, (0.35, 0.7)), [3, 6]),
    ],
)
def test_tuning_loop(plan: Plan, steps: list[int]) -> None:
    given = task()
    with unchanged(given.backbone):
        curve = tuned(given, given.fit, given.test, plan, Stream(3), "").details["curve"]

    backbone = random_backbone(SMALL, 8).to(memory_format=torch.channels_last)
    head = new_classifier(8, 3, Stream(3))
    rates = ((backbone, plan.trunk_rate), (head, plan.head_rate))
    optimizer = plan.optimizer(
        [{"params": list(part.parameters()), "lr": rate} for part, rate in rates]
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, steps, plan.factor)
    data = AugmentedImages(given, given.fit, 8, Stream(3).child("views"), smallest=2)
    test = torch.stack([given.test.decode(number) for number in range(30)]).float() / 255
    expected = []
    for epoch in range(plan.epochs):
        backbone.train()
        for batch, labels, _ in data.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(head(backbone(batch)), labels).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            scores = head(backbone.eval()(test))
        expected.append(100 * float((scores.argmax(1).numpy() == given.test.labels).mean()))
    found = [point["top1"] for point in curve]
    assert found == pytest.approx(expected, abs=3.4)  # one image of thirty
    assert curve[-1]["top1"] > 60


def test_fine_tune_rate_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never on the test images."""
    scored: list[tuple[str, float]] = []

    def fake(task: Task, fit: Any, test: Any, plan: Plan, *_: object, **__: object) -> Any:
        scored.append((test.name, plan.trunk_rate))
        assert len(fit) + len(test) == 50 or test is task.test
        return Outcome({"top1_last": 90.0 if plan.trunk_rate == 0.01 else 10.0})

    monkeypatch.setattr(fine_tune, "tuned", fake)
    given = task()
    given.fit.grouped = np.arange(50) // 5
    found = fine_tune.run(given, FineTuneOptions(learning_rates=(0.001, 0.01, 0.1)))
    assert found.grouped
    expected = [
        ("hues0", 0.001),
        ("hues0", 0.01),
        ("hues0", 0.1),
        ("hues1", 0.01),
    ]
    assert scored == expected
    assert found.details["learning_rate"] == 0.01
    assert found.details["held_out"] == {"0.001": 10.0, "0.01": 90.0, "0.1": 10.0}


def test_published_fine_tune_fields() -> None:
    """F26, F27."""
    options = FineTuneOptions()
    assert options.epochs == 20
    assert options.batch_size == 256
    assert options.learning_rates == (0.0005, 0.001, 0.01)
    plan = fine_tune._plan(options, 0.001)
    factors = [decayed(plan.factor, plan.decay_at, epoch, plan.epochs) for epoch in (6, 7, 13, 14)]
    assert factors == pytest.approx([1, 0.1, 0.1, 0.01])
