"""The options of `semi-supervised`: which labels, which learner, and what was published for each learner."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from hexa.config import Config, choose
from hexa.core import HardExample
from hexa.hard_examples.randaugment import RandAugment
from hexa.hard_examples.vat import VAT
from hexa.objective import STD
from hexa_paper.semi_supervised.learner import Rule, Strong

#: Of USB (Wang et al., NeurIPS 2022) for CIFAR-10, whose published errors are shown next to ours; S4L: Zhai et al. 2019.
PUBLISHED = {
    "pseudo-label": Rule(ratio=1, threshold=0.95, temperature=0, ramp=0.4, apart=True),
    "vat": Rule(
        ratio=1, threshold=0, temperature=1, ramp=0.4, entropy=0.06, virtual=True, apart=True
    ),
    "s4l": Rule(ratio=1, rotates=True),
    "uda": Rule(ratio=7, threshold=0.8, temperature=0.4, strong="randaugment"),
    "fixmatch": Rule(ratio=7, threshold=0.95, temperature=0, strong="randaugment"),
}
#: The published step of virtual adversarial training, L2 norm 6 of normalised pixels (σ ≈ 0.226) of 3 × 32 × 32, as the
#: root mean square in grey levels that `VAT.epsilon` is: 255 · 0.226 · 6 / √3072.
VIRTUAL_STEP = 6.24


def _chosen(value: Any) -> Any:
    """Validator: hard examples by their kinds alone, such as adversarial,cutmix, or each by its fields, in a list."""
    named = [name.strip() for name in value.split(",")] if isinstance(value, str) else value or ()
    entries = [named] if isinstance(named, dict) else named
    if not isinstance(entries, list | tuple):
        raise ValueError(
            "a list of hard examples is needed, for instance [{kind: cutmix}, {kind: adversarial}]"
        )
    fields = ({"kind": entry} if isinstance(entry, str) else entry for entry in entries)
    return tuple(choose(HardExample, "kind", "hexa.hard_examples", entry) for entry in fields)


class SemiSupervisedOptions(Config):
    """Options of the protocol `semi-supervised`. The defaults are the paper's."""

    percent: float = pydantic.Field(default=10.0, gt=0, le=100)
    """Share of the labels to use, the same part of every class, drawn by the seed."""
    labels: PositiveInt | None = None
    """Number of labels to use instead of a share, equally many of every class, drawn by the seed."""
    list_file: str | None = None
    """File with the names of the labelled images, one per line (SimCLR's lists for ImageNet), instead of a draw."""
    draws: PositiveInt = 1
    """Number of trainings, each with other labels; scores are means, with standard deviation (`top1_std`) and half of the
    95 % interval (`top1_interval`)."""
    learner: Literal["supervised", "pseudo-label", "vat", "s4l", "uda", "fixmatch"] = "supervised"
    """supervised uses the labelled images alone; all others also learn from the rest, without their labels."""
    rates_of: Literal["hexa", "swav"] = "hexa"
    """Published learning rates to use: those of the paper, or of SwAV's code."""
    trunk_rate: PositiveFloat | None = None
    """Learning rate of the network (none: as published for the share of labels)."""
    head_rate: PositiveFloat | None = None
    """Learning rate of the classifier (none: as published for the share of labels)."""
    epochs: PositiveInt = 20
    """Passes over the labelled images; rates are ×0.2 at 60 % and 80 % of them (12 and 16 of 20)."""
    batch_size: int = pydantic.Field(default=256, gt=1)
    """Images per step."""
    weight_decay: NonNegativeFloat = 5e-4
    """Weight decay of network and classifier. Learners other than supervised leave out batch-norms and biases."""
    score_every: PositiveInt = 1
    """Epochs between two evaluations; top1 is the best of them."""
    steps: PositiveInt = 2**20
    """Length of the training. The published default takes days on a GPU. This option and all that follow are for
    learners other than supervised."""
    labelled_batch: int = pydantic.Field(default=64, gt=1)
    """Labelled images per step."""
    ratio: PositiveInt | None = None
    """μ: unlabelled images per step for each labelled one (none: as published, 7 for uda and fixmatch, else 1)."""
    learning_rate: PositiveFloat = 0.03
    """η of SGD with Nesterov momentum 0.9; at step k of K it is η·cos(7πk / 16K)."""
    threshold: float | None = pydantic.Field(default=None, ge=0, le=1)
    """τ: an unlabelled image counts if its weak view has a class of this probability (none: as published)."""
    temperature: NonNegativeFloat | None = None
    """T: pseudo-labels are softmax(z / T), at 0 the most likely class (none: as published, uda 0.4)."""
    unlabelled_weight: NonNegativeFloat = 1.0
    """λ_u: weight of the unlabelled term; for s4l, of the rotations."""
    mirrored: bool = True
    """Mirror weak views in half of the cases; give false if mirroring changes the class (characters)."""
    ema: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Momentum of the averaged weights, which are evaluated; 0 evaluates the network itself."""
    strong: Strong | None = None
    """Strong views: randaugment of the weak views, or weak: the weak views themselves (none: as published, randaugment for
    uda and fixmatch)."""
    hard: Annotated[
        tuple[pydantic.SerializeAsAny[HardExample], ...], pydantic.BeforeValidator(_chosen)
    ] = ()
    """Hard examples made of the strong views, in addition to them, or in place of weak ones: kinds such as
    adversarial,cutmix or [{kind: adversarial, epsilon: 2}]."""

    @pydantic.model_validator(mode="after")
    def _belong_together(self) -> Self:
        # by value: options may come complete, from a result
        given = {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
        if self.labels is not None and (other := given & set(WHICH)):
            raise ValueError(
                f"labels and {other.pop()} both say which labels are used; give one of them"
            )
        foreign = given & (OF_LEARNERS if self.learner == "supervised" else OF_SUPERVISED)
        if self.learner == "s4l":
            foreign |= given & {"threshold", "temperature", "strong"}
        if foreign:
            raise ValueError(
                f"{', '.join(sorted(foreign))}: not for the learner {self.learner}; leave it out"
            )
        kinds = [hard.kind for hard in self.hard]
        if len(set(kinds)) < len(kinds) or any(hard.source != STD for hard in self.hard):
            raise ValueError(
                "hard: give each kind once, without a source: all are made of the strong views"
            )
        return self

    @property
    def resolved(self) -> Self:
        """These options with the published value of the learner in place of none."""
        names = ("ratio",) if self.rule.rotates else RESOLVED
        return self.model_copy(update={name: getattr(self.rule, name) for name in names})

    @property
    def rule(self) -> Rule:
        """The published rule of the learner (not supervised), with the options that are set."""
        given = {name: value for name in RESOLVED if (value := getattr(self, name)) is not None}
        return PUBLISHED[self.learner]._replace(**given)

    @property
    def hard_examples(self) -> dict[str, HardExample]:
        """The terms in addition to the clean one, by name: `strong`, and those made of it.

        For S4L, hard examples are made of its own views.
        """
        rule = self.rule
        weight = self.unlabelled_weight
        if rule.rotates:
            return {hard.kind: hard for hard in self.hard}
        weak = rule.strong == "weak"
        virtual = VAT(measure="loss", epsilon=VIRTUAL_STEP, branch="main", update_statistics=False)
        harder = (*((virtual,) if rule.virtual else ()), *self.hard)
        unchanged: dict[str, Any] = {"operations": 0, "cutout": 0} if weak else {}
        strong = RandAugment(update_statistics=not rule.apart, **unchanged)
        terms: dict[str, HardExample] = {
            "strong": strong.but(weight=0.0 if weak and harder else weight)
        }
        for hard in harder:
            terms[hard.kind] = hard.but(source="strong", weight=weight * hard.weight)
        return terms


#: Options other than `labels` that choose the labelled images.
WHICH = ("percent", "list_file")
#: Options that are none where a learner's published value is used.
RESOLVED = ("ratio", "threshold", "temperature", "strong")
OF_SUPERVISED = {"rates_of", "trunk_rate", "head_rate", "epochs", "batch_size", "score_every"}
OF_LEARNERS = {
    "steps",
    "labelled_batch",
    "learning_rate",
    "unlabelled_weight",
    "mirrored",
    "ema",
    "hard",
    *RESOLVED,
}
