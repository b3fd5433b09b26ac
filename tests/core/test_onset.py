"""When hard examples set in: until then a run is the plain one, and from there it goes on from it (fp64)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hexa.config import choices
from hexa.core import HardExample, Method, MethodConfig, Objective, ObjectiveConfig
from hexa.core.onset import Onset
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.chain import Chain
from hexa.hard_examples.cutmix import CutMix
from hexa.hard_examples.mixup import Mixup
from hexa.hard_examples.unmix import UnMix
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.runtime.random import Stream
from tests.laws.cases import BATCH, Case, batch, one_step

STEPS = 4  # of a whole training; hard examples set in at the third
KINDS = choices(HardExample, "kind", "hexa.hard_examples")
LATE = [
    case
    for method in choices(MethodConfig, "name", "hexa.methods")
    for kind in KINDS
    if (case := Case(method, {}, {kind: {"start": 0.5}})).fits
]


class Run:
    """A case that is trained step by step, and how often its modules were called."""

    def __init__(self, case: Case, config: ObjectiveConfig | None = None, state: Any = None) -> None:
        self.case, self.method, self.calls = case, case.build(), 0
        self.objective = case.objective(self.method, config, steps=STEPS)
        trained = [p for p in self.method.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
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
def test_until_it_sets_in_a_run_is_the_plain_one_and_resumes_on_both_sides(case: Case) -> None:
    plain = Run(replace(case, hard_examples={})).steps(0, 2)
    late = Run(case).steps(0, 2)
    assert late.calls == plain.calls
    before = late.state()
    assert all(torch.equal(value, before[0][name]) for name, value in plain.method.state_dict().items())
    after = late.steps(2, 3).state()
    assert late.calls > plain.steps(2, 3).calls
    assert any(not torch.equal(value, after[0][name]) for name, value in plain.method.state_dict().items())
    whole = late.steps(3, 4).state()[0]
    for first, state in ((2, before), (3, after)):
        resumed = Run(case, state=state).steps(first, 4).state()[0]
        assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_its_batch_norms_begin_as_the_main_ones_are_then() -> None:
    run = Run(Case("moco", {}, {"adversarial": {"start": 0.5}})).steps(0, 2)
    norms = [module for module in run.method.modules() if isinstance(module, BranchBatchNorm) and len(module._modules)]
    assert norms
    names = list(norms[0].aux.state_dict())
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)
    run.objective.losses(run.case.batch(2))
    assert all(torch.equal(getattr(norm.aux, name), getattr(norm, name)) for norm in norms for name in names)
    held = [norm.aux.weight.clone() for norm in norms]
    run.steps(2, 3)
    run.objective.losses(run.case.batch(3))  # which is not where it sets in
    assert not any(torch.equal(norm.aux.weight, weight) for norm, weight in zip(norms, held, strict=True))
    assert not any(torch.equal(norm.aux.weight, norm.weight) for norm in norms)


def test_a_branch_that_is_in_use_already_is_left_alone() -> None:
    case = Case("moco", {}, {"adversarial": {}, "cmxA": {"kind": "cutmix", "source": "adversarial", "start": 0.5}})
    run = Run(case).steps(0, 2)
    before = run.state()[0]
    run.objective.losses(case.batch(2))
    assert all(torch.equal(value, before[name]) for name, value in run.method.state_dict().items())


@pytest.mark.parametrize("steps", [10, 30, 1000])
@pytest.mark.parametrize(("start", "ramp"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.5), (0.3, 0.4), (0.7, 1.0), (1.0, 0.0)])
def test_weight_and_strength_against_the_formula(steps: int, start: float, ramp: float) -> None:
    hard: dict[str, HardExample] = {
        "adversarial": Adversarial(weight=2, start=start, ramp=ramp, epsilon=4, step_size=2, ramps="strength"),
        "cutmix": CutMix(weight=2, start=start, ramp=ramp),
    }
    onset = Onset(hard, steps)
    for step in range(steps):
        passed = (step - round(start * steps)) / steps
        share = 0.0 if passed < 0 else min(1.0, passed / ramp) if ramp else 1.0
        now = onset.at(step)
        assert list(now) == (list(hard) if share > 0 else [])
        if now:
            attack = now["adversarial"]
            assert isinstance(attack, Adversarial)
            assert (attack.epsilon, attack.step_size, attack.weight) == pytest.approx((4 * share, 2 * share, 2))
            assert now["cutmix"].weight == pytest.approx(2 * share)
    assert onset.at() == hard


@pytest.mark.parametrize("maker", [CutMix(inside=True), Mixup(), UnMix(box_probability=0)])
def test_what_is_pasted_shrinks_in_proportion(maker: HardExample) -> None:
    case = Case("moco", {"bn_groups": 1})
    data = batch(dtype=torch.float64)
    large = torch.rand(BATCH, 3, 96, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clean = case.objective(case.build()).examples(replace(data, crops=(large, large)))["std"]
    for number in range(6):
        stream = Stream(number)
        whole, half, none = (maker.weakened(share)(clean, stream).mixture[0][1] for share in (1.0, 0.5, 0.0))
        torch.testing.assert_close(1 - half, (1 - whole) / 2, atol=0.02, rtol=0)  # whole pixels
        assert bool((none == 1).all())
        assert torch.equal(maker.weakened(0.0)(clean, stream).crops[0], clean.crops[0])


def test_what_is_made_of_another_waits_for_it_and_grows_from_there() -> None:
    hard: dict[str, HardExample] = {
        "mixed": CutMix(source="adversarial", start=0.2, ramp=0.2),
        "adversarial": Adversarial(start=0.5, weight=0),
        "own": CutMix(start=0.2),
    }
    onset = Onset(hard, 10)
    assert [list(onset.at(step)) for step in (1, 2, 5)] == [[], ["own"], ["adversarial", "own"]]
    assert [onset.at(step)["mixed"].weight for step in (6, 7, 9)] == pytest.approx([0.5, 1.0, 1.0])
    assert [onset.new(step) for step in (0, 2, 3, 5, 6)] == [set(), {"own"}, set(), {"adversarial"}, {"mixed"}]


def test_weights_are_a_mean_over_the_terms_that_are_there() -> None:
    hard: dict[str, dict[str, Any]] = {"adversarial": {"start": 0.5}, "cutmix": {"ramp": 0.5, "weight": 2.0}}
    case = Case("moco", {}, hard)
    objective = case.objective(case.build(), ObjectiveConfig(reduction="mean"), steps=STEPS)
    assert objective.weights(0) == {"std": 1.0}
    assert objective.weights(1) == {"std": 0.5, "cutmix": 0.5}
    assert objective.weights(2) == objective.weights() == {"std": 0.25, "adversarial": 0.25, "cutmix": 0.5}
    assert [objective.setting_in(step) for step in range(STEPS)] == [[], ["cutmix"], ["adversarial"], []]


def parts(objective: Objective, step: int) -> dict[str, tuple[int, int]]:
    """Images of each term, and the number of its pass."""
    found = {}
    for number, term in enumerate(objective.losses(batch(step))):
        term.loss.backward()
        found |= {name: (len(part.example), number) for name, part in term.parts.items()}
    return found


@pytest.mark.parametrize("split", [True, False])
def test_the_whole_batch_is_clean_until_the_first_sets_in(split: bool) -> None:
    hard = {"cutmix": {"fraction": 0.25, "start": 0.25}, "mixup": {"fraction": 0.25, "start": 0.5}}
    case, config = Case("moco", {}, hard), ObjectiveConfig(split=split, clean_fraction=0.5, reduction="mean")
    objective = case.objective(case.build(), config, steps=STEPS)
    made = [parts(objective, step) for step in range(3)]
    if split:
        assert made[:2] == [{"std": (8, 0)}, {"std": (6, 0), "cutmix": (2, 0)}]
        assert made[2] == {"std": (4, 0), "cutmix": (2, 0), "mixup": (2, 0)}
    else:
        assert made[:2] == [{"std": (8, 0)}, {"std": (4, 0), "cutmix": (2, 1)}]
    plain = Run(Case("moco")).steps(0, 1).state()[0]
    late = Run(case, config).steps(0, 1).state()[0]
    assert all(torch.equal(value, late[name]) for name, value in plain.items())


def test_a_kind_without_strength_says_so() -> None:
    class Plain(HardExample):
        kind: str = "plain"

    with pytest.raises(ValueError, match="plain has no strength that could grow; use ramps: weight"):
        Plain(ramp=0.1, ramps="strength")
    with pytest.raises(ValueError, match="chain has no strength"):
        Chain(steps=[{"kind": "cutmix"}, Plain()], ramps="strength")
    assert Plain(ramp=0.1).grown(0.5).weight == 0.5


def test_looking_and_measuring_know_no_time() -> None:
    case = Case("moco", {}, {"adversarial": {"start": 1.0}})
    method: Method = case.build()
    assert list(parts(case.objective(method), 0)) == ["std", "adversarial"]
    assert list(case.objective(method, steps=STEPS).examples(batch())) == ["std", "adversarial"]
    assert list(parts(case.objective(method, steps=STEPS), 3)) == ["std"]
