"""The attack against its formula, written out (F13)."""

from __future__ import annotations

import pytest
import torch

from hexa.core import MAIN, Batch, Branch, Example
from hexa.hard_examples.adversarial import Adversarial
from hexa.objective import STD
from hexa.ops import draws
from tests.laws.cases import BATCH, Case, batch


def attack(
    data: Batch | None = None, **fields: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Clean view, adversarial view and ∂L/∂x of the clean view."""
    case = Case("moco", {}, {"adversarial": fields})
    objective = case.objective(case.build())
    made = objective.examples(data or batch())
    clean = made[STD]
    adversarial = made["adversarial"]
    generation = Branch.of(str(fields.get("generation", "main_train")))
    gradient = clean.gradient(generation)[0]
    return clean.crops[0], adversarial.crops[0], gradient


def test_fgsm_formula() -> None:
    """One step is the printed formula."""
    clean, adversarial, gradient = attack()
    expected = (clean + gradient.sign() / 255).clamp(0, 1)
    torch.testing.assert_close(adversarial, expected, atol=1e-15, rtol=0)


def test_random_start_first_step() -> None:
    """With a random start, the first step uses the gradient there."""
    fields = {"epsilon": 4.0, "step_size": 2.0, "random_start": True}
    case = Case("moco", {}, {"adversarial": fields})
    still = Case(
        "moco",
        {},
        {"adversarial": {**fields, "step_size": 0.0}},
    )
    objective = case.objective(case.build())
    made = objective.examples(batch())
    x = made[STD].crops[0]
    start = still.examples()["adversarial"].crops[0]
    at_start = made[STD].at((start,))
    slope = objective.score.gradient(at_start, MAIN)[0]
    delta = start - x + 2 / 255 * slope.sign()
    radius = 4 / 255
    expected = (x + delta.clamp(-radius, radius)).clamp(0, 1)
    found = made["adversarial"].crops[0]
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    clean_slope = made[STD].gradient(MAIN)[0]
    assert bool((slope.sign() != clean_slope.sign()).any())


def test_n_fgsm() -> None:
    """x + n + ε·sign ∂L/∂x(x + n), n uniform in [−2ε, 2ε]; only pixels are clipped."""
    noise = {"epsilon": 4.0, "random_start": 2.0, "project": False, "step_size": 0.0}
    case = Case("moco", {}, {"adversarial": {**noise, "step_size": 4.0}})
    objective = case.objective(case.build())
    made = objective.examples(batch())
    x = made[STD].crops[0]
    _, start, _ = attack(**noise)
    at_start = made[STD].at((start,))
    slope = objective.score.gradient(at_start, MAIN)[0]
    view = made["adversarial"].crops[0]
    expected = (start + 4 / 255 * slope.sign()).clamp(0, 1)
    torch.testing.assert_close(view, expected, atol=1e-12, rtol=0)
    moves = [attack(batch(step), **noise, clip=False) for step in range(2)]
    assert not torch.allclose(*(view - clean for clean, view, _ in moves))
    moved = 255 * (start - x)[(x > 0.1) & (x < 0.9)]
    assert 7.9 < float(moved.abs().max()) <= 8 + 1e-9
    found = abs(float(moved.abs().mean()) - 4)
    assert found < 0.2  # uniform


def test_l2_step() -> None:
    """L2 steps go along the gradient of each image."""
    fields = {"norm": "l2", "unit": "pixel", "step_size": 0.2, "clip": False}
    clean, adversarial, gradient = attack(epsilon=0.5, **fields)
    for x, view, slope in zip(clean, adversarial, gradient, strict=True):
        direction = slope / slope.norm()
        torch.testing.assert_close(view, x + 0.2 * direction)
    _, projected, _ = attack(epsilon=0.1, **fields)
    found = (projected - clean).flatten(1).norm(dim=1)
    expected = torch.full((8,), 0.1, dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_radius_list_draws() -> None:
    """Each radius of a list is drawn as often."""
    attacker = Adversarial(epsilon=(0.25, 1.0, 4.0), step_size=4.0)
    many = torch.zeros(312, 3, 1, 1)
    seen = attacker._radii(many, batch().stream)
    counts = [int((seen == radius).sum()) for radius in (0.25, 1.0, 4.0)]
    assert sum(counts) == 312
    assert all(70 < count < 138 for count in counts)  # 104 expected, 4 standard deviations


def test_radius_list_loop() -> None:
    case = Case(
        "moco",
        {"bn_groups": 1},
        {"adversarial": {"epsilon": [0.5, 3.0], "step_size": 2.0, "steps": 2}},
    )
    objective = case.objective(case.build())
    made = objective.examples(batch())
    clean = made[STD]
    stream = batch().stream.child("hard example", "adversarial", "epsilon")
    choice = draws.integers(BATCH, 2, stream)
    x = clean.crops[0]
    radii = [(0.5, 3.0)[c] / 255 for c in choice.tolist()]
    delta = torch.zeros_like(x)
    for _ in range(2):
        view = clean.at((x + delta,))
        gradient = objective.score.gradient(view, MAIN)[0]
        for i, radius in enumerate(radii):
            moved = delta[i] + 2 / 255 * gradient[i].sign()
            delta[i] = moved.clamp(-radius, radius)
        delta = (x + delta).clamp(0, 1) - x
    assert len(set(radii)) == 2
    found = made["adversarial"].crops[0]
    torch.testing.assert_close(found, x + delta, atol=1e-12, rtol=0)


def test_root_mean_square_radius() -> None:
    """A sign step of ε on every pixel has this root mean square, at every size of the view."""
    epsilon = 2.0
    clean, adversarial, gradient = attack(
        norm="l2", unit="rms", epsilon=epsilon, step_size=epsilon, clip=False
    )
    for x, view, slope in zip(clean, adversarial, gradient, strict=True):
        size = epsilon / 255 * (3 * 12 * 12) ** 0.5
        torch.testing.assert_close(view, x + size * slope / slope.norm())
    pixels = attack(
        norm="l2",
        epsilon=size,
        step_size=size,
        clip=False,
    )[1]
    torch.testing.assert_close(pixels, adversarial, atol=1e-15, rtol=0)


def test_l2_degenerate_gradients() -> None:
    """The L2 step survives tiny, zero and NaN gradients."""
    attacker = Adversarial(
        norm="l2",
        unit="pixel",
        epsilon=0.5,
        step_size=0.2,
        clip=False,
    )
    clean = torch.full((3, 3, 4, 4), 0.5)
    gradient = torch.zeros_like(clean)
    gradient[0] = 1e-30
    gradient[1, 0, 0, 0] = float("nan")
    view = attacker._step(clean, clean, gradient, 0.5)
    moved = (view - clean).flatten(1).norm(dim=1)
    expected = torch.tensor([0.2, 0.0, 0.0])
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("branch", ["aux", "main"])
def test_adversarial_branch(branch: str) -> None:
    """Views are trained through the configured branch."""
    case = Case(
        "moco",
        {},
        {"adversarial": {"branch": branch, "generation": "aux_eval"}},
    )
    assert case.examples()["adversarial"].branch == Branch(branch)


def test_random_start_of_large_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small crops stay clean in the first step too."""
    case = Case("swav", {}, {"adversarial": {"crops": "large", "random_start": 1.0}})
    last = list[torch.Tensor]()
    gradient = Example.gradient

    def seen(self: Example, branch: Branch) -> tuple[torch.Tensor, ...]:
        last.append(self.crops[-1])
        return gradient(self, branch)

    monkeypatch.setattr(Example, "gradient", seen)
    case.examples()
    assert torch.equal(last[0], case.batch().crops[-1])
