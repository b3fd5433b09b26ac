"""A growing ε; and free adversarial training against a loop that asks for each gradient by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.config import ConfigError
from hexa.core import MAIN, Branch
from hexa.hard_examples.adversarial import Adversarial
from hexa.objective import STD, Objective, ObjectiveConfig
from hexa.objective.objective import clean_example
from hexa.testing.cases import one_step
from hexa.training.losses import NonFiniteError
from tests.laws.cases import Case, batch, count_passes
from tests.training.test_trainer import newest
from tests.training.toy import FREE, trainer

STILL = Branch("aux", update=False)


def optimizer(method: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)


@pytest.mark.parametrize("name", ["moco", "simclr"])
def test_each_update_goes_on_from_the_views_of_the_last_by_its_own_gradient(name: str) -> None:
    """Shafahi et al. 2019, algorithm 1, on the sum of the clean and the adversarial loss, for two batches."""
    case = Case(
        name, {"bn_groups": 1}, {"adversarial": {"replays": 3, "epsilon": 3.0, "step_size": 2.0}}
    )
    made, naive = case.build(), case.build()
    one, other = optimizer(made), optimizer(naive)
    objective, reference = case.objective(made), case.objective(naive)
    for number in range(2):
        data = case.batch(number)
        one_step(objective, one, data)
        delta: list[torch.Tensor] = []
        for _ in range(3):
            anchors = naive.anchors(data)
            embedding = naive.embed(anchors, MAIN)
            labels = naive.pseudo_labels(data, embedding.detach())
            clean = clean_example(reference.clean_score, anchors, labels)
            if not delta:  # the attack as it always is
                slopes = reference.clean_score.gradient(clean, MAIN)
                delta = [2 / 255 * slope.sign() for slope in slopes]
            views = tuple(
                (x + d.clamp(-3 / 255, 3 / 255)).clamp(0, 1)
                for x, d in zip(anchors, delta, strict=True)
            )
            slopes = reference.score.gradient(clean_example(reference.score, views, labels), STILL)
            delta = [
                v - x + 2 / 255 * s.sign() for v, x, s in zip(views, anchors, slopes, strict=True)
            ]
            naive.clean_loss(embedding, labels).mean().backward()  # type: ignore[no-untyped-call]
            naive.loss(naive.embed(views, Branch("aux")), labels).mean().backward()  # type: ignore[no-untyped-call]
            other.step()
            other.zero_grad()
        naive.commit(data, embedding.detach(), labels)
    after = naive.state_dict()
    for path, value in made.state_dict().items():
        torch.testing.assert_close(value, after[path], atol=1e-12, rtol=1e-10, msg=path)


def test_a_replay_costs_no_pass_beyond_the_two_that_learn() -> None:
    case = Case(
        "moco",
        {},
        {"adversarial": {"replays": 4}, "cutmix_adversarial": {"kind": "cutmix", "source": STD}},
    )
    method = case.build()
    step = partial(one_step, case.objective(method), optimizer(method), case.batch())
    assert count_passes(method.query, step) == 4 * 3


def test_views_stay_in_the_ball_and_each_batch_begins_anew() -> None:
    case = Case(
        "moco",
        {},
        {"adversarial": {"replays": 4, "epsilon": 3.0, "step_size": 2.0, "fraction": 0.5}},
    )
    objective, data = case.objective(case.build()), batch()
    sizes = []
    for update in (0, 1, 2, 3, 0):
        for term in objective.losses(data, update):
            term.loss.backward()
            if (part := term.parts.get("adversarial")) is not None:
                view = part.example.crops[0].detach()
                sizes.append(255 * float((view - data.crops[0][: len(view)]).abs().max()))
    assert sizes == pytest.approx([2.0, 3.0, 3.0, 3.0, 2.0])
    assert objective.updates(0) == 4


@pytest.mark.parametrize(
    ("hard", "split", "said"),
    [
        (
            {"one": {"replays": 2, "fraction": 0.5}},
            True,
            "hard_examples.one.replays: .* leave out objective.split",
        ),
        (
            {"one": {"replays": 2}, "other": {"replays": 3}},
            False,
            "other.replays: .* give 2, as for one",
        ),
        ({"one": {"replays": 2}, "other": {"replays": 3, "weight": 0}}, False, ""),
    ],
)
def test_replays_that_do_not_fit_are_refused(hard: dict[str, Any], split: bool, said: str) -> None:
    config = ObjectiveConfig(split=split, clean_fraction=0.5 if split else 1.0)
    case = Case(
        "moco", {}, {name: {"kind": "adversarial", **fields} for name, fields in hard.items()}
    )
    method = case.build()
    if not said:
        assert Objective(method, case.hard(), config).updates(0) == 2
        return
    with pytest.raises(ConfigError, match=said):
        Objective(method, case.hard(), config)


def test_replays_without_a_ball_are_refused() -> None:
    with pytest.raises(ValueError, match="in the ball alone; give project true"):
        Adversarial(replays=2, random_start=2, project=False)


def test_each_update_on_a_batch_is_looked_at_before_the_weights_change(tmp_path: Path) -> None:
    made = trainer(tmp_path, hard=FREE, checkpoint_every_steps=2)
    objective, losses = made.objective, made.objective.losses

    def poisoned(batch: Any, update: int) -> Any:
        for found in losses(batch, update):
            if (made.step, update, [*found.parts]) == (6, 0, ["std"]):  # the first of three updates
                found.parts["std"].loss.fill_(float("nan"))
            yield found

    objective.losses = poisoned  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="step 7"):
        made.run()
    for name, value in objective.method.named_parameters():
        assert torch.equal(value, newest(tmp_path)["method"][name])
