"""The six schemes of the paper's ablation (F17): hard examples in addition to the clean views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hexa.objective import STD

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment

#: A term of the objective: the name its hard example has in recipes, and the fields of that.
TERMS: dict[str, tuple[str, dict[str, Any]]] = {
    "adv": ("adversarial", {"kind": "adversarial"}),
    "cmx": ("cutmix", {"kind": "cutmix"}),
    "cmxA": ("cutmix_adversarial", {"kind": "cutmix", "source": "adversarial"}),
}


@dataclass(frozen=True)
class Scheme:
    """terms: those in addition to the clean one."""

    terms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in benchmarks: std+adv+cmxA."""
        return "+".join(("std", *self.terms))

    @property
    def title(self) -> str:
        """The name in tables and figures: Std+Adv+CmxA."""
        return "+".join(term[0].upper() + term[1:] for term in ("std", *self.terms))

    @property
    def modifiers(self) -> str:
        """The modifiers of a recipe: +adversarial+cutmix-adversarial."""
        return "".join(f"+{TERMS[term][0].replace('_', '-')}" for term in self.terms)

    @property
    def hard_examples(self) -> dict[str, dict[str, Any]]:
        """Its hard examples as fields of an experiment, with the published values, which are the defaults."""
        return dict(TERMS[term] for term in self.terms)


#: By their numbers in the paper.
SCHEMES = {
    "i": Scheme(),
    "ii": Scheme(("adv",)),
    "iii": Scheme(("cmx",)),
    "iv": Scheme(("adv", "cmx")),
    "v": Scheme(("adv", "cmxA")),
    "vi": Scheme(("adv", "cmx", "cmxA")),
}


def own_fields(experiment: Experiment, kind: str) -> dict[str, Any]:
    """The fields of the first hard example of this kind that is made of clean views, or the kind alone."""
    own = (
        hard
        for hard in experiment.hard_examples.values()
        if hard.kind == kind and hard.source == STD
    )
    return next((hard.model_dump(mode="json") for hard in own), {"kind": kind})
