"""Every method × every hard example, found automatically: a new file in either package is tested at
once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hexa import testing
from hexa.config import choices
from hexa.core import Batch, Example, HardExample, Method, MethodConfig
from hexa.objective import Objective, ObjectiveConfig
from hexa.objective.term import Part
from hexa.testing.cases import (
    BATCH as BATCH,
    NETWORK as SMALLEST,
    SIZE as SIZE,
    one_step as one_step,
)

#: What makes a method small; methods without an entry are built with their defaults.
SMALL: dict[str, dict[str, Any]] = {
    "moco": {"queue_size": 32, "dim": 8, "bn_groups": 2},
    "deepcluster-v2": {"hidden": 16, "dim": 8, "num_prototypes": (6, 5, 4), "bn_groups": 2},
    "swav": {
        "hidden": 16,
        "dim": 8,
        "num_prototypes": 6,
        "bn_groups": 2,
        "freeze_prototypes_steps": 1,
    },
    "pcl-v2": {
        "contrast.queue_size": 32,
        "contrast.dim": 8,
        "contrast.bn_groups": 2,
        "num_clusters": (30, 5),
        "num_negatives": 8,
        "warmup_epochs": 0,
    },
    "simclr": {"dim": 8, "bn_groups": 2},
    "byol": {"dim": 8, "hidden": 16, "bn_groups": 2},
    "simsiam": {"dim": 16, "predictor_hidden": 8, "bn_groups": 2},
    "instdisc": {"dim": 8, "num_negatives": 16, "bn_groups": 2},
    "cmc": {"dim": 8, "num_negatives": 16, "bn_groups": 2},
    "cpc": {
        "patch": 6,
        "stride": 2,
        "ahead": (2,),
        "dim": 4,
        "hidden": 8,
        "layers": 2,
        "scale": 1.0,
        "bn_groups": 2,
    },
    "pirl": {"dim": 8, "num_negatives": 16, "puzzle": {"grid": 2}, "bn_groups": 2},
    "infomin": {
        "contrast.queue_size": 32,
        "contrast.dim": 8,
        "contrast.bn_groups": 2,
        "puzzle": {"grid": 2},
    },
    "jigsaw": {"hidden": 8, "puzzle": {"grid": 2}, "num_permutations": 24, "bn_groups": 2},
    "rotation": {"bn_groups": 2},
    "teacher": {"projector": "linear", "bn_groups": 2},
    "dino": {
        "hidden": 16,
        "bottleneck": 8,
        "num_prototypes": 12,
        "freeze_prototypes_epochs": 0,
        "warmup_epochs": 2,
        "bn_groups": 2,
    },
}

#: Networks of methods that need one of their own.
NETWORK: dict[str, dict[str, Any]] = {"cmc": {"streams": "lab"}}

#: Sizes of the crops of each method, small ones last; methods without an entry get two of SIZE.
CROPS: dict[str, tuple[int, ...]] = {
    "deepcluster-v2": (SIZE, SIZE, 8),
    "swav": (SIZE, SIZE, 8),
    "dino": (SIZE, SIZE, 8),
    "instdisc": (SIZE,),
    "cmc": (SIZE,),
    "cpc": (SIZE,),
    "rotation": (SIZE,),
    "jigsaw": (16,),
    "pirl": (16, 16),
    "infomin": (16, 16, 16),
}

#: Variants of each kind of hard example worth a law of their own; kinds without an entry get their defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "adversarial": [
        {},
        {"norm": "l2", "unit": "pixel"},
        {"norm": "l2", "unit": "rms"},
        {"epsilon": (0.25, 1.0, 4.0), "step_size": 4.0},
        {"steps": 3, "epsilon": 4.0, "step_size": 2.0},
        {"random_start": True},
        {"random_start": 2.0, "project": False},
        {"generation": "aux_train"},
        {"generation": "aux_eval"},
        {"generation": "main_eval"},
        {"branch": "main"},
        {"crops": "large"},
    ],
    "cutmix": [
        {},
        {"per_sample": True},
        {"inside": True},
        {"branch": "mixed"},
        {"branch": "aux", "update_statistics": False},
    ],
    "mixup": [{}, {"per_sample": True, "alpha": 0.2}, {"branch": "mixed"}],
    "unmix": [{}, {"box_probability": 0.0}, {"box_probability": 1.0}],
    "vat": [
        {},
        {"iterations": 2, "generation": "aux_eval"},
        {"branch": "main", "epsilon": 4.0},
        {"measure": "loss"},
    ],
    "randaugment": [{}, {"operations": 0}],
}

KINDS = sorted(choices(HardExample, "kind", "hexa.hard_examples"))
#: Methods that strain every variant: keys, a queue and shuffling; several crops, a bank and clusters.
STRAINING = ("moco", "deepcluster-v2")

METHODS: dict[str, list[dict[str, Any]]] = {
    "moco": [
        {},
        {"symmetric": True},
        {"head": "linear", "bn_groups": 1},
        {"mixed_positives": "pair"},
        {"mixed_positives": "batch"},
    ],
    "deepcluster-v2": [{}, {"bn_groups": 1, "freeze_prototypes_steps": 0}],
    "swav": [{}, {"queue_size": 16, "queue_start_epoch": 0, "freeze_prototypes_steps": 0}],
    "pcl-v2": [
        {},
        {"warmup_epochs": 1},
        {"contrast.bn_groups": 1},
        {"contrast.symmetric": True},
        {"contrast.mixed_positives": "pair"},
        {"contrast.mixed_positives": "batch"},
    ],
    "simclr": [
        {},
        {"adversarial_terms": "joint"},
        {"adversarial_terms": "clae"},
        {"head_layers": 3, "bn_groups": 1},
    ],
    "simsiam": [{}, {"projector_layers": 2, "bn_groups": 1}],
    "instdisc": [{}, {"objective": "softmax", "bn_groups": 1}],
    "cmc": [{}, {"objective": "softmax", "bn_groups": 1}],
    "cpc": [{}, {"ahead": (1, 3), "bn_groups": 1}],
    "pirl": [{}, {"puzzle_weight": 0.2, "bn_groups": 1}],
    "infomin": [{}, {"puzzle_weight": 0.2, "contrast.bn_groups": 1}],
    "teacher": [
        {},
        {"projector": "none", "bn_groups": 1},
        {"projector": "mlp", "distance": "cosine"},
    ],
    "dino": [{}, {"freeze_prototypes_epochs": 1}, {"teacher_crops": 1, "bn_groups": 1}],
}


@dataclass(frozen=True)
class Case:
    """One method with some hard examples.

    kept: the backbone's batch-norm statistics are those it begins with. sizes: of the crops, if not those of CROPS.
    """

    method: str
    fields: dict[str, Any] = field(default_factory=dict)
    hard_examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: bool = False
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        fields = ",".join(f"{k}={v}" for k, v in self.fields.items())
        hard = "+".join(
            name + "".join(f",{k}={v}" for k, v in entry.items() if k != "kind")
            for name, entry in self.hard_examples.items()
        )
        sizes = "".join(f"-{size}" for size in self.sizes)
        return f"{self.method}({fields})-{hard or 'plain'}{'-kept' * self.kept}{sizes}"

    def made(self) -> testing.Case:
        """Return the method of the case."""
        config_class = choices(MethodConfig, "name", "hexa.methods")[self.method]
        config = config_class(**nested({**SMALL.get(self.method, {}), **self.fields}))
        network = SMALLEST.model_copy(update=NETWORK.get(self.method, {}))
        return testing.Case(
            config,
            self.hard(),
            self.sizes or CROPS.get(self.method, (SIZE, SIZE)),
            network,
            self.kept,
        )

    def build(self, dtype: torch.dtype = torch.float64, network: nn.Module | None = None) -> Method:
        """The method in fp64 with seeded weights."""
        return self.made().build(dtype, network)

    def batch(self, step: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        """A seeded batch of random crops that touch 0 and 1; under several processes it is this one's share."""
        return self.made().batch(step, dtype=dtype)

    @property
    def fits(self) -> bool:
        """True if all hard examples work with the method."""
        return self.made().fits

    def hard(self) -> dict[str, HardExample]:
        known = choices(HardExample, "kind", "hexa.hard_examples")
        return {
            name: known[entry.get("kind", name)].model_validate({"kind": name, **entry})
            for name, entry in self.hard_examples.items()
        }

    def objective(
        self, method: Method, config: ObjectiveConfig | None = None, **options: Any
    ) -> Objective:
        return self.made().objective(method, config, **options)

    def examples(self, network: nn.Module | None = None) -> dict[str, Example]:
        """Return the examples of the first batch, including the clean ones, made for a new
        method."""
        return self.objective(self.build(network=network)).examples(self.batch())


def fitting(case: Case) -> Case:
    """Return the case without the hard examples that its method refuses, or that depend on refused
    ones."""
    kept = {
        name: entry
        for name, entry in case.hard_examples.items()
        if Case(case.method, {}, {name: {**entry, "source": "std"}}).fits
    }
    return replace(case, hard_examples=kept)


def all_cases() -> list[Case]:
    """Each variant of each method, plain and with two hard examples; each method with every kind at once, one of them
    made of another, and with statistics kept; those of STRAINING with all variants of a kind at once; MoCo and
    SimCLR with a further crop.

    Without the hard examples that a method refuses. Decision 0014 says what more of them would find.
    """
    both = {"adversarial": {}, "cutmix": {}}
    mixed = {"kind": "cutmix", "source": "adversarial"}
    cases = []
    for method in choices(MethodConfig, "name", "hexa.methods"):
        for fields in METHODS.get(method, [{}]):
            cases += [Case(method, fields), Case(method, fields, both)]
        cases.append(Case(method, {}, both, kept=True))
        cases.append(Case(method, {}, {**{kind: {} for kind in KINDS}, "cmxA": mixed}))
    cases += [Case("moco", fields, both, sizes=(SIZE, SIZE, 8)) for fields in METHODS["moco"]]
    large = {"adversarial": {"crops": "large"}, "cutmix": {}}
    for sizes in ((SIZE, SIZE, 8), (SIZE, 8, 8)):
        cases += [Case("simclr", fields, large, sizes=sizes) for fields in METHODS["simclr"]]
    cases.append(
        Case(
            "moco",
            {"mixed_positives": "batch"},
            {"adversarial": {"crops": "large"}},
            sizes=(SIZE, SIZE, 8),
        )
    )
    for method in STRAINING:
        for kind in KINDS:
            variants = VARIANTS.get(kind, [{}])
            cases.append(
                Case(
                    method,
                    {},
                    {f"{kind}{n}": {"kind": kind, **entry} for n, entry in enumerate(variants)},
                )
            )
    return [fitting(case) for case in cases]


def backward(objective: Objective, data: Batch) -> dict[str, Part]:
    """The parts of all terms, each of which was back-propagated in its turn."""
    found = {}
    for term in objective.losses(data):
        term.loss.backward()  # type: ignore[no-untyped-call]
        found |= term.parts
    return found


def count_passes(module: nn.Module, work: Callable[[], object]) -> int:
    seen = []
    handle = module.register_forward_hook(lambda *_: seen.append(1))
    work()
    handle.remove()
    return len(seen)


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a method inside a method, such as `contrast.bn_groups`, as a dictionary;
    `bn_groups` sets it too."""
    found: dict[str, Any] = {}
    for path, value in fields.items():
        parent, _, last = ([name for name in fields if name.endswith(f".{path}")] or [path])[
            0
        ].rpartition(".")
        (found.setdefault(parent, {}) if parent else found)[last] = value
    return found


def batch(step: int = 0, sizes: tuple[int, ...] = ()) -> Batch:
    """The batch of a case with crops of these sizes."""
    return Case("moco", sizes=sizes).batch(step)
