"""Every method × every hard example, found by looking: a new file in either package is under the laws at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hexa.config import choices
from hexa.core import Batch, HardExampleConfig, Method, MethodConfig, Objective, ObjectiveConfig, Setting
from hexa.nn.backbones import NetworkConfig, build
from hexa.runtime.random import Stream

BATCH, SIZE, DATA = 8, 12, 64

#: What makes a method small; methods without an entry are built with their defaults.
SMALL: dict[str, dict[str, Any]] = {"moco": {"queue_size": 32, "dim": 8, "bn_groups": 2}}

#: Variants of each kind of hard example worth a law of their own; kinds without an entry get their defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "adversarial": [
        {},
        {"norm": "l2", "unit": "pixel"},
        {"steps": 3, "epsilon": 4.0, "step_size": 2.0},
        {"random_start": True},
        {"generation": "aux_train"},
        {"generation": "aux_eval"},
        {"generation": "main_eval"},
        {"branch": "main"},
    ],
    "cutmix": [
        {},
        {"per_sample": True},
        {"inside": True},
        {"branch": "mixed"},
        {"branch": "aux", "update_statistics": False},
    ],
}

METHODS: dict[str, list[dict[str, Any]]] = {
    "moco": [
        {},
        {"symmetric": True},
        {"head": "linear", "bn_groups": 1},
        {"mixed_positives": "pair"},
        {"mixed_positives": "batch"},
    ]
}


@dataclass(frozen=True)
class Case:
    """One method with some hard examples."""

    method: str
    fields: dict[str, Any] = field(default_factory=dict)
    hard_examples: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __str__(self) -> str:
        fields = ",".join(f"{k}={v}" for k, v in self.fields.items())
        hard = "+".join(
            name + "".join(f",{k}={v}" for k, v in entry.items() if k != "kind")
            for name, entry in self.hard_examples.items()
        )
        return f"{self.method}({fields})-{hard or 'plain'}"

    def build(self, dtype: torch.dtype = torch.float64, network: nn.Module | None = None, **fields: Any) -> Method:
        """The method in fp64 with seeded weights; `fields` override the case's."""
        torch.manual_seed(0)
        config_class = choices(MethodConfig, "name", "hexa.methods")[self.method]
        config = config_class(**{**SMALL.get(self.method, {}), **self.fields, **fields})
        network = network or build(NetworkConfig(name="small-resnet", widths=(4, 8)))
        branches = dict.fromkeys(["main", *(b for h in self.hard().values() for b in h.branches())])
        setting = Setting(DATA, BATCH, branches=tuple(branches))
        return config.build(network, setting).to(dtype)

    def hard(self) -> dict[str, HardExampleConfig]:
        known = choices(HardExampleConfig, "kind", "hexa.hard_examples")
        return {
            name: known[entry.get("kind", name)].model_validate({"kind": name, **entry})
            for name, entry in self.hard_examples.items()
        }

    def objective(self, method: Method, config: ObjectiveConfig | None = None, **options: Any) -> Objective:
        hard = {name: entry.build() for name, entry in self.hard().items()}
        return Objective(method, hard, config, **options)


def all_cases() -> list[Case]:
    """Each variant of each method plain; each method with each variant of each kind; chains through a source."""
    kinds = choices(HardExampleConfig, "kind", "hexa.hard_examples")
    cases = []
    for method in choices(MethodConfig, "name", "hexa.methods"):
        for fields in METHODS.get(method, [{}]):
            cases.append(Case(method, fields))
            cases.append(Case(method, fields, {"adversarial": {}, "cutmix": {}}))
        for kind in kinds:
            cases += [Case(method, {}, {kind: variant}) for variant in VARIANTS.get(kind, [{}])]
        mixed = {"kind": "cutmix", "source": "adversarial"}
        cases.append(Case(method, {}, {"adversarial": {}, "cutmix_adversarial": mixed}))
        cases.append(Case(method, {}, {"adversarial": {}, "cutmix": {}, "cutmix_adversarial": mixed}))
    return cases


def batch(step: int = 0, seed: int = 0, dtype: torch.dtype = torch.float64, views: int = 2) -> Batch:
    """A seeded batch of smooth random crops that touch 0 and 1."""
    stream = Stream(seed).child("step", step)
    generator = stream.child("pixels").generator()
    crops = tuple(
        (torch.rand(BATCH, 3, SIZE, SIZE, generator=generator, dtype=dtype) * 1.4 - 0.2).clamp(0, 1)
        for _ in range(views)
    )
    index = torch.randperm(DATA, generator=generator)[:BATCH]
    return Batch(crops, index, stream)


def train(case: Case, steps: int = 2, method: Method | None = None, **options: Any) -> Method:
    """A few whole steps; returns the method."""
    method = method or case.build()
    objective = case.objective(method, **options)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for step in range(steps):
        one_step(objective, optimizer, batch(step))
    return method


def one_step(objective: Objective, optimizer: torch.optim.Optimizer, data: Batch) -> None:
    for term in objective.losses(data):
        term.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    objective.commit(data)
