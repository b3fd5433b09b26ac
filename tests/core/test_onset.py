"""Start of hard examples: until then a run equals the plain one, and it resumes on both sides
(fp64)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hexa.nn.branch_norm import BranchBatchNorm
from hexa.objective import Objective, ObjectiveConfig
from tests.laws.cases import KINDS, Case, batch, one_step

STEPS = 4  # of a whole training; hard examples set in at the third
#: Every kind for one method, and the attack for those with clusters, labels of the clean embedding, two networks.
LATE = [Case("moco", {}, {kind: {"start": 0.5} for kind in KINDS})]
LATE += [
    Case(method, {}, {"adversarial": {"start": 0.5}})
    for method in ("deepcluster-v2", "simclr", "byol")
]


class Run:
    """A case that is trained step by step, and how often its modules were called."""

    def __init__(
        self, case: Case, config: ObjectiveConfig | None = None, state: Any = None
    ) -> None:
        self.case = case
        self.method = case.build()
        self.calls = 0
        self.objective = case.objective(self.method, config, steps=STEPS)
        self.optimizer = torch.optim.SGD(
            [p for p in self.method.parameters() if p.requires_grad], lr=0.1, momentum=0.9
        )
        if state is not None:
            self.method.load_state_dict(state[0])
            self.optimizer.load_state_dict(state[1])
        for module in self.method.modules():
            module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.calls += 1

    def steps(self, first: int, end: int) -> Run:
        for step in range(first, end):
            one_step(self.objective, self.optimizer, self.case.batch(step))
        return self

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return copy.deepcopy((self.method.state_dict(), self.optimizer.state_dict()))


@pytest.mark.parametrize("case", LATE, ids=str)
def test_onset_plain_run_resume(case: Case) -> None:
    """Until hard examples start, a run is the plain one; it resumes on both sides."""
    plain = Run(replace(case, hard_examples={})).steps(0, 2)
    late = Run(case).steps(0, 2)
    assert late.calls == plain.calls
    before = late.state()
    assert all(
        torch.equal(value, before[0][name]) for name, value in plain.method.state_dict().items()
    )
    after = late.steps(2, 3).state()
    assert late.calls > plain.steps(2, 3).calls
    assert any(
        not torch.equal(value, after[0][name]) for name, value in plain.method.state_dict().items()
    )
    whole = late.steps(3, 4).state()[0]
    for first, state in ((2, before), (3, after)):
        resumed = Run(case, state=state).steps(first, 4).state()[0]
        assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_onset_auxiliary_batch_norms() -> None:
    """At the onset, the auxiliary batch-norms are copies of the main ones."""
    run = Run(Case("moco", {}, {"adversarial": {"start": 0.5}})).steps(0, 2)
    norms = [
        module
        for module in run.method.modules()
        if isinstance(module, BranchBatchNorm) and len(module._modules)
    ]
    assert norms
    names = list(norms[0].aux.state_dict())
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)
    run.objective.losses(run.case.batch(2))
    assert all(
        torch.equal(getattr(norm.aux, name), getattr(norm, name))
        for norm in norms
        for name in names
    )
    held = [norm.aux.weight.clone() for norm in norms]
    run.steps(2, 3)
    run.objective.losses(run.case.batch(3))  # which is not where it sets in
    assert not any(
        torch.equal(norm.aux.weight, weight) for norm, weight in zip(norms, held, strict=True)
    )
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)


def test_onset_term_weights() -> None:
    """Weights are a mean over the current terms."""
    case = Case(
        "moco", {}, {"adversarial": {"start": 0.5}, "cutmix": {"start": 0.25, "weight": 2.0}}
    )
    objective = case.objective(case.build(), ObjectiveConfig(reduction="mean"), steps=STEPS)
    assert objective.plan(0).weights == {"std": 1.0}
    found = objective.plan(1).weights
    expected = {"std": 1 / 3, "cutmix": 2 / 3}
    assert found == expected
    assert (
        objective.plan(2).weights
        == objective.plan().weights
        == {"std": 0.25, "adversarial": 0.25, "cutmix": 0.5}
    )
    assert [objective.starting(step) for step in range(STEPS)] == [
        [],
        ["cutmix"],
        ["adversarial"],
        [],
    ]


def parts(objective: Objective, step: int) -> dict[str, tuple[int, int]]:
    """Return the images of each term, and the number of its pass."""
    found = {}
    for number, term in enumerate(objective.losses(batch(step))):
        term.loss.backward()
        found |= {name: (len(part.example), number) for name, part in term.parts.items()}
    return found


@pytest.mark.parametrize("split", [True, False])
def test_onset_clean_batch(split: bool) -> None:
    """The whole batch is clean until the first hard example starts."""
    hard = {"cutmix": {"fraction": 0.25, "start": 0.25}, "mixup": {"fraction": 0.25, "start": 0.5}}
    case = Case("moco", {}, hard)
    config = ObjectiveConfig(split=split, clean_fraction=0.5, reduction="mean")
    made = [parts(case.objective(case.build(), config, steps=STEPS), step) for step in range(3)]
    if split:
        assert made[:2] == [{"std": (8, 0)}, {"std": (6, 0), "cutmix": (2, 0)}]
        assert made[2] == {"std": (4, 0), "cutmix": (2, 0), "mixup": (2, 0)}
    else:
        assert made[:2] == [{"std": (8, 0)}, {"std": (4, 0), "cutmix": (2, 1)}]
    plain = Run(Case("moco")).steps(0, 1).state()[0]
    late = Run(case, config).steps(0, 1).state()[0]
    assert all(torch.equal(value, late[name]) for name, value in plain.items())
