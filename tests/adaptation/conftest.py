"""A machine of a fixed speed, so that no plan of a test depends on the speed of this one."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from hexa.adaptation.given import Budget
from hexa.data import Source
from hexa.measure.costs import Costs
from hexa.recipes.experiment import Experiment
from hexa.weights import start


def quick_costs(
    draft: Experiment, source: Source, fields: Collection[str], *, partly: bool = True
) -> Costs:
    """A millisecond of each image at 64 px for the head, as much for all stages of the backbone."""
    most = draft.start.trainable_stages or start.count_stages(start.of(draft.start).network)
    fewer = {most // 2, most // 4, 1} - {0, most} if partly else set()
    if draft.start.trainable_stages is not None or "start.trainable_stages" in fields:
        fewer = set()
    learning = [most, *sorted(fewer, reverse=True), *([0] if partly else [])]
    steps = {stages: 1e-3 * (1 + stages / most) for stages in learning}
    return Costs(size=64, read=1e-4, steps=steps, look=2e-4, setup=0.5)


def be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make costs and the speed of attacks constants, and attacks short."""
    monkeypatch.setattr("hexa.adaptation.given.measure", quick_costs)
    monkeypatch.setattr("hexa.adaptation.harden_verdict.images_per_second", lambda *_: 1000.0)
    monkeypatch.setattr("hexa.adaptation.robustness.STEPS", 3)
    monkeypatch.setattr("hexa.adaptation.robustness.TARGETS", 1)


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs, clock and speed of attacks are constants."""
    be_quick(monkeypatch)
    monkeypatch.setattr(Budget, "spent", 2.0)
