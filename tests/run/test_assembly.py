"""Parts built from an experiment: batch-norm sets for every trained example and its sources."""

from __future__ import annotations

import pytest

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.run.build import Machine, build_method, setting_of


@pytest.mark.parametrize(
    ("changes", "branches"),
    [
        ({"hard_examples.adversarial.weight": 0}, ("main",)),
        ({"hard_examples.cutmix.branch": "mixed"}, ("main", "mixed")),
        # mixed adversarial views alone: their source has weight 0 and still brings its set
        (
            {
                "hard_examples.adversarial.weight": 0,
                "hard_examples.cmxA.kind": "cutmix",
                "hard_examples.cmxA.source": "adversarial",
            },
            ("main", "aux"),
        ),
    ],
)
def test_experiment_branches(changes: dict[str, object], branches: tuple[str, ...]) -> None:
    assert setting_of(override(recipes.get("digits-moco-v2"), changes), 1347).branches == branches


def test_initial_weight_seed() -> None:
    """Weights depend on the seed alone."""
    experiment = override(
        recipes.get("digits-moco-v2"), {"training.device": "cpu", "network.widths": [4, 8]}
    )
    states = []
    for seed in (0, 0, 1):
        chosen = override(experiment, {"seed": seed})
        states.append(
            build_method(chosen, setting_of(chosen, 1347), Machine.of(chosen)).state_dict()
        )
    assert all(value.equal(states[1][name]) for name, value in states[0].items())
    assert not any(
        states[0][name].equal(states[2][name]) for name in ("query.backbone.conv1.weight", "queue")
    )
