"""The request of `hexa harden`: robust weights within a time limit and an allowed loss of clean accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hexa.adaptation import harden_plan, harden_verdict
from hexa.adaptation.given import Given, Plan
from hexa.adaptation.request import AdaptRequest, Outcome, Trained
from hexa.config import UserError
from hexa.runtime.console import Progress


def _check(name: str, value: object, meaning: str, low: float, high: float) -> None:
    """Raise UserError unless `value` is a number from `low` to `high`; Python callers may pass anything."""
    if not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"{name} {value} is {meaning}; give one from {low:g} to {high:g}")


@dataclass(frozen=True)
class HardenRequest(AdaptRequest):
    """The options of `hexa harden`."""

    strength: float = 4.0
    """Radius ε of the attack during training, in units of 1/255."""
    price: float = 2.0
    """Allowed loss of clean accuracy, in percentage points."""
    recipe: ClassVar = "teacher"
    command: ClassVar = "harden"
    larger: ClassVar = 7 / 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("--strength", self.strength, "a radius in units of 1/255", 0.25, 64)
        _check("--price", self.price, "a loss in percentage points", 0, 100)
        if "hard_examples.adversarial.epsilon" in self.fields:
            raise UserError(
                "--hard_examples.adversarial.epsilon: hexa harden sets this field by --strength; give --strength"
            )

    def of_domain(self, name: str) -> dict[str, Any]:
        """Return the fields of the attack, and the mirroring of the domain, which changes nothing else here."""
        changes = super().of_domain(name)
        kept = {path: value for path, value in changes.items() if "flip_probability" in path}
        kept["hard_examples.adversarial.epsilon"] = self.strength
        if harden_plan.STEP_SIZE not in self.fields:
            kept[harden_plan.STEP_SIZE] = self.strength
        return kept

    def plan(self, given: Given) -> Plan:
        """Return the plan that fits the time; see `harden_plan.plan`."""
        return harden_plan.plan(given, self.strength)

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """Return the most robust weights within the allowed loss; see `harden_verdict.outcome`."""
        return harden_verdict.outcome(trained, self.price, self.seconds, progress)
