"""Parts built from an experiment: batch-norm sets for every trained example and its sources."""

from __future__ import annotations

import pytest

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.run.build import Machine, build_method, setting_of
from hexa.testing.laws import differing

from .test_run import tiny


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
    states = []
    for seed in (0, 0, 1):
        chosen = tiny(seed=seed)
        method = build_method(chosen, setting_of(chosen, 1347), Machine.of(chosen))
        states.append(method.state_dict())
    assert not differing(states[0], states[1])
    assert {"query.backbone.conv1.weight", "queue"} <= differing(states[0], states[2])
