"""What the user of `hexa harden` asks for: robust weights within a time, at a price in clean accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hexa.adaptation import harden_plan, harden_verdict
from hexa.adaptation.given import Given, Plan
from hexa.adaptation.request import AdaptRequest, Outcome, Trained
from hexa.config import UserError
from hexa.runtime.progress import Progress


def _check(name: str, value: object, meaning: str, low: float, high: float) -> None:
    """Raise UserError unless this is a number from `low` to `high`; Python callers may give anything."""
    if not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{name} {value} is {meaning}; give one from {low:g} to {high:g}")


@dataclass(frozen=True)
class HardenRequest(AdaptRequest):
    """What the user asks for."""

    strength: float = 4.0
    """ε of the attack in training, in grey levels."""
    price: float = 2.0
    """Points of clean accuracy that robustness may cost."""
    recipe: ClassVar = "teacher"
    command: ClassVar = "harden"
    larger: ClassVar = 7 / 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("--strength", self.strength, "a radius in grey levels of 255", 0.25, 64)
        _check("--price", self.price, "in points of accuracy", 0, 100)
        if "hard_examples.adversarial.epsilon" in self.fields:
            raise UserError(
                "--hard_examples.adversarial.epsilon is given to hexa harden by --strength; give that one"
            )

    def of_domain(self, name: str) -> dict[str, Any]:
        """The fields of the attack, and those of mirroring: a domain changes nothing else of these views."""
        changes = super().of_domain(name)
        kept = {path: value for path, value in changes.items() if "flip_probability" in path}
        kept["hard_examples.adversarial.epsilon"] = self.strength
        if harden_plan.STEP_SIZE not in self.fields:
            kept[harden_plan.STEP_SIZE] = self.strength
        return kept

    def plan(self, given: Given) -> Plan:
        """What fits the time; see `harden_plan.plan`."""
        return harden_plan.plan(given, self.strength)

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """The most robust state at the price; see `harden_verdict.outcome`."""
        return harden_verdict.outcome(trained, self.price, self.seconds, progress)
