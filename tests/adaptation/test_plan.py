"""Plans from costs: sizes, stages, images and passes; and the measurements for a plan."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hexa import recipes
from hexa.adaptation import wording
from hexa.adaptation.choice import choose
from hexa.adaptation.given import Given
from hexa.config import UserError
from hexa.data.sources.source import ArraySource
from hexa.measure.costs import Costs
from hexa.nn.backbones import NetworkConfig
from hexa.recipes.experiment import override

#: At 100 px a second for the head, two with two stages, three with all six; reading is free.
COSTS = Costs(size=100, read=0.0, steps={6: 3.0, 2: 2.0, 0: 1.0}, look=0.5)
SIZES = (100, 50)
#: Six passes over 100 images at 100 px, with all stages and with two.
ALL = 100 * (1 + 5 * 3)
TWO = 100 * (1 + 5 * 2)


@pytest.mark.parametrize(
    ("seconds", "keeps", "side", "size", "stages", "images", "passes"),
    [
        (ALL / 0.9, False, 1000, 100, 6, 100, 1 + (ALL / 0.9 - 100) / 300),  # just enough
        (
            10 * ALL,
            True,
            1000,
            100,
            6,
            100,
            1 + (10 * ALL - 100) / 300,
        ),  # more passes, never a smaller size
        (
            ALL,
            True,
            1000,
            50,
            6,
            100,
            1 + (ALL - 25) / 75,
        ),  # a smaller size, if the start loses little
        (ALL, False, 1000, 100, 2, 100, 1 + (ALL - 100) / 200),  # else only the last stages
        (
            10 * ALL,
            True,
            60,
            50,
            6,
            100,
            1 + (10 * ALL - 25) / 75,
        ),  # images are not enlarged for nothing
        (10 * ALL, False, 60, 100, 6, 100, 1 + (10 * ALL - 100) / 300),  # but if the start needs it
        (
            TWO / 1.8,
            False,
            1000,
            50,
            2,
            100,
            1 + (TWO / 1.8 - 25) / 50,
        ),  # then a smaller size all the same
        (-5.0, True, 1000, 50, 2, 0, None),  # nothing is left
    ],
)
def test_plan_choice(
    seconds: float,
    keeps: bool,
    side: int,
    size: int,
    stages: int,
    images: int,
    passes: float | None,
) -> None:
    chosen = choose(COSTS, SIZES, 100, lambda _: seconds, lambda _: keeps, side)
    assert chosen.size == size
    assert chosen.stages == stages
    assert chosen.images == images
    assert passes is None or chosen.passes == pytest.approx(passes)


def test_repeated_views_memory() -> None:
    """If ten passes fit, seven have new views; three times 2.5 seconds are ten passes at a tenth of
    the cost."""
    costs = Costs(size=100, read=0.0, steps={2: 2.5, 0: 1.0}, look=0.5, again={2: (0.25, 1e6)})
    # as in the first line; no room for four sets; enough passes without repeats; four passes and repeats where six do
    # not fit; without room for sets six passes over 0.9 · 10.1 / 13.5 of the images; as many as four sets have room for
    cases = [
        (100, 10, 100, 7, 37),
        (2000, 10, 2000, None, 10),
        (100, 70, 100, None, 70),
        (100, 4.64, 100, 4, 10.4),
    ]
    for n, fit, images, sets, passes in (
        *cases,
        (2000, 4.64, 1346, None, 6.603),
        (1100, 5.45, 1073, 4, 19.72),
    ):
        chosen = choose(
            costs, (100,), n, lambda _, room=n * (2.5 * fit - 1.5): room, lambda _: False
        )
        assert chosen.images == images
        assert chosen.sets == sets
        assert chosen.passes == pytest.approx(passes, rel=1e-3)


@pytest.mark.parametrize("seconds", [10.0, 400.0, 3000.0])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("count", [7, 300])
def test_plan_six_passes(seconds: float, keeps: bool, count: int) -> None:
    """Six passes fit into nine tenths of the time."""
    costs = Costs(size=64, read=0.1, steps={4: 0.9, 2: 0.5, 1: 0.4, 0: 0.3}, look=0.1)
    chosen = choose(costs, (128, 96, 64), count, lambda size: seconds - size / 100, lambda _: keeps)
    if not chosen.passes:
        return
    needed = chosen.images * (
        6 * 0.1 + (chosen.size / 64) ** 2 * (0.3 + 5 * costs.steps[chosen.stages])
    )
    assert needed <= 0.9 * (seconds - chosen.size / 100)
    assert chosen.passes >= 6
    assert chosen.images <= count


#: A second for the last of four stages, half for the head, a tenth on remembered activations.
SLOW = Costs(size=100, read=0.0, steps={4: 3.0, 1: 1.0, 0: 0.5}, look=0.5, again={1: (0.1, 1.0)})


@pytest.mark.parametrize(
    ("seconds", "size", "images", "sets"),
    [
        (3000.0, 100, int(2700 / 3.7), 4),  # half a second, three, and two tenths
        (1000.0, 50, int(900 / 3.7 * 4), 4),  # 500 images at a smaller size
        (300.0, 50, int(270 / 1.9 * 4), 2),  # 250 images, two passes with views of their own
        (60.0, 50, int(54 / 1.9 * 4), 2),  # 100 images at the largest size
        (30.0, 30, int(27 / 1.9 / 0.09), 2),  # then at a size below three sevenths
        (10.0, 30, int(9 / 1.9 / 0.09), None),  # too few
    ],
)
def test_short_time_compromises(seconds: float, size: int, images: int, sets: int | None) -> None:
    chosen = choose(SLOW, (100, 50, 30), 1000, lambda _: seconds, lambda _: False)
    assert chosen.size == size
    assert chosen.stages == 1
    assert chosen.images == images
    assert (chosen.passes == 0) == (sets is None)
    assert chosen.sets is None or chosen.sets >= (sets or 0)
    if chosen.sets:
        drawn = 0.5 + (chosen.sets - 1) + 0.1 * (chosen.passes - chosen.sets)
        assert images * drawn * (size / 100) ** 2 == pytest.approx(seconds)


def test_stages_beyond_memory() -> None:
    """Stages that do not fit into memory do not learn."""
    chosen = choose(COSTS, (100,), 100, lambda _: 10.0**6, lambda _: True, fits=lambda _, n: n < 6)
    assert chosen.stages == 2
    assert chosen.images == 100


@pytest.mark.parametrize(
    ("network", "native", "sizes"),
    [
        ("resnet18", 224, (192, 160, 128, 96, 64)),
        ("vit_small_patch14_dinov2", 518, (448, 378, 322, 252, 224, 196, 154, 126, 98, 70)),
        ("levit_conv_128s", 224, ()),
        ("vit_tiny_patch16_224", 32, ()),
    ],
)
def test_smaller_sizes_patch_multiples(network: str, native: int, sizes: tuple[int, ...]) -> None:
    """Smaller sizes are multiples of the patch."""
    options = {"depth": 1} if network.startswith("vit") else {}
    config = NetworkConfig(name=network, options=options)
    draft = SimpleNamespace(network=config, views=SimpleNamespace(size=native))
    given = SimpleNamespace(draft=draft, fields={}, by_clock=True)
    assert Given.sizes.func(given) == [native, *sizes]  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize(
    ("gigabytes", "batch"),
    [
        (8.0, 32),
        (4.0, 16),
        (2.0, None),
    ],
)
def test_batch_size_memory_half(
    monkeypatch: pytest.MonkeyPatch, gigabytes: float, batch: int | None
) -> None:
    """A gigabyte is held, and an image at 200 px takes 80 MB."""
    monkeypatch.setattr("hexa.adaptation.given.memory_of", lambda _: gigabytes * 1e9)
    draft = override(recipes.get("adapt"), {"training.device": "cpu", "batch_size": 32})
    given = Given(draft, Mock(), Mock(), Mock(), None, Mock(), {"views.size": 200}, Mock())
    costs = Costs(size=100, read=0, steps={1: 1.0, 0: 0.1}, look=0, memory=2e7, held=4e8)
    assert given.batch(costs, 200, 1) == batch
    if batch is None:
        with pytest.raises(UserError, match=r"at 224 px: a training step needs 2.0 GB, more than"):
            given.fitting(costs, 1)


def test_plan_group_count() -> None:
    """A plan counts groups once, over the images that it evaluates; ignored groups are not counted."""
    labels = np.repeat([0, 1, 2], [30, 30, 1])
    source = ArraySource(torch.zeros(61, 1, 1, 1, dtype=torch.uint8), labels)
    source.grouped = np.array([*np.arange(58) % 12, 12, 13, 14])
    end = "; with 60 labelled images in 14 groups a difference of"
    assert f"arrays (61 images){end}" in wording.labels(source, Mock(), 61)
    source.grouped = labels
    assert "arrays (61 images), independent unless" in wording.labels(source, Mock(), 61)
