"""A chain: each hard example made of the one before, such as an attack on cut-mixed views."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic
from torch import Tensor

from hexa.config import choose
from hexa.core import Branch, Example, HardExample, MethodConfig
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.cutmix import CutMix
from hexa.runtime.random import Stream


def chosen(value: Any) -> Any:
    """Validator: hard examples by their kinds alone, such as adversarial,cutmix, or each by its fields, in a list."""
    named = [name.strip() for name in value.split(",")] if isinstance(value, str) else value or ()
    entries = [named] if isinstance(named, dict) else named
    if not isinstance(entries, list | tuple):
        raise ValueError(
            "a list of hard examples is needed, for instance [{kind: cutmix}, {kind: adversarial}]"
        )
    fields = ({"kind": entry} if isinstance(entry, str) else entry for entry in entries)
    return tuple(choose(HardExample, "kind", "hexa.hard_examples", entry) for entry in fields)


#: The type of a field that lists hard examples.
HardExamples = Annotated[
    tuple[pydantic.SerializeAsAny[HardExample], ...], pydantic.BeforeValidator(chosen)
]


class Chain(HardExample):
    """x = h_n(… h_1(x)): one term for the last example alone. The default attacks cut-mixed views.

    Unlike cut-mixing adversarial views (Cmx_A, `source: adversarial`), the attack sees the mixture, and climbs the loss
    of both pseudo-labels. Useful when either alone has become easy, or to see how much they add.
    Costs what its steps cost but for their own training passes, and one full pass: for the default one input-gradient
    pass, since nobody trains on the mixed views it attacks, and a full one.
    Cut-mix, then an adversarial step against the mixed pseudo-label.
    """

    kind: Literal["chain"] = "chain"
    steps: HardExamples = pydantic.Field(default=(CutMix(), Adversarial()), min_length=1)
    """Hard examples in the order in which they are made; their own weight, source, fraction and start are
    ignored."""

    def refusal(self, method: MethodConfig) -> str:
        return next((why for step in self.steps if (why := step.refusal(method))), "")

    def kinds(self) -> tuple[str, ...]:
        return (self.kind, *(kind for step in self.steps for kind in step.kinds()))

    def branches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(branch for step in self.steps for branch in step.branches()))

    @property
    def gradient_of_source(self) -> Branch | None:
        return self.steps[0].gradient_of_source

    def __call__(self, source: Example, stream: Stream) -> Example:
        example, facts = source, dict[str, Tensor]()
        for number, maker in enumerate(self.steps):
            example = maker(example, stream.child(number))
            example = replace(example, score=example.score.hard)
            facts |= example.facts
        return replace(example, facts=facts)
