"""Start of hard examples: until then a run equals the plain one, and it resumes on both sides
(fp64)."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from hexa.core import Method
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.objective import Objective, ObjectiveConfig
from hexa.testing.laws import differing, state
from tests.laws.cases import KINDS, Case, batch, count_passes, one_step

STEPS = 4  # of a whole training; hard examples set in at the third
#: Every kind for one method, and the attack for those with clusters, labels of the clean embedding, two networks.
LATE = [Case("moco", {}, {kind: {"start": 0.5} for kind in KINDS})]
LATE += [
    Case(method, {}, {"adversarial": {"start": 0.5}})
    for method in ("deepcluster-v2", "simclr", "byol")
]


def passes(case: Case, method: Method, first: int, end: int) -> int:
    """Train from step `first` to `end`; return the passes through the backbone."""
    objective = case.objective(method, steps=STEPS)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)

    def work() -> None:
        for step in range(first, end):
            one_step(objective, optimizer, case.batch(step))

    return count_passes(method.backbone, work)


@pytest.mark.parametrize("case", LATE, ids=str)
def test_onset_plain_run_resume(case: Case) -> None:
    """Until hard examples start, a run is the plain one; it resumes on both sides."""
    simple = replace(case, hard_examples={})
    plain = simple.build()
    late = case.build()
    assert passes(case, late, 0, 2) == passes(simple, plain, 0, 2)
    before = copy.deepcopy(late.state_dict())
    assert not differing(plain.state_dict(), before)
    assert passes(case, late, 2, 3) > passes(simple, plain, 2, 3)
    after = copy.deepcopy(late.state_dict())
    assert differing(plain.state_dict(), after)
    passes(case, late, 3, 4)
    for first, kept in ((2, before), (3, after)):
        resumed = case.build()
        resumed.load_state_dict(kept)
        passes(case, resumed, first, 4)
        assert not differing(late.state_dict(), resumed.state_dict())


def test_onset_auxiliary_batch_norms() -> None:
    """At the onset, the auxiliary batch-norms are copies of the main ones."""
    case = Case("moco", {}, {"adversarial": {"start": 0.5}})
    method = case.build()
    norms = [
        module
        for module in method.modules()
        if isinstance(module, BranchBatchNorm) and len(module._modules)
    ]
    assert norms
    passes(case, method, 0, 2)
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)
    objective = case.objective(method, steps=STEPS)
    objective.losses(case.batch(2))
    for norm in norms:
        for name, value in norm.aux.state_dict().items():
            assert torch.equal(value, getattr(norm, name))
    passes(case, method, 2, 3)
    held = state(method)
    objective.losses(case.batch(3))  # which is not where it sets in
    assert not differing(held, state(method))
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)


def test_onset_term_weights() -> None:
    """Weights are a mean over the current terms."""
    case = Case(
        "moco", {}, {"adversarial": {"start": 0.5}, "cutmix": {"start": 0.25, "weight": 2.0}}
    )
    objective = case.objective(case.build(), ObjectiveConfig(reduction="mean"), steps=STEPS)
    assert objective.plan(0).weights == {"std": 1.0}
    assert objective.plan(1).weights == {"std": 1 / 3, "cutmix": 2 / 3}
    assert (
        objective.plan(2).weights
        == objective.plan().weights
        == {"std": 0.25, "adversarial": 0.25, "cutmix": 0.5}
    )


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
    made = [
        parts(
            case.objective(case.build(), config, steps=STEPS),
            step,
        )
        for step in range(3)
    ]
    if split:
        assert made[:2] == [{"std": (8, 0)}, {"std": (6, 0), "cutmix": (2, 0)}]
        assert made[2] == {"std": (4, 0), "cutmix": (2, 0), "mixup": (2, 0)}
    else:
        assert made[:2] == [{"std": (8, 0)}, {"std": (4, 0), "cutmix": (2, 1)}]
