"""What a plan makes of costs: sizes, stages, images and passes; and what is measured for it."""

from __future__ import annotations

import sys

import pytest
import torch

from hexa import recipes
from hexa.adaptation.choice import choose
from hexa.adaptation.looking import features_of, found_again
from hexa.adaptation.plan import first_draft
from hexa.data import open_source
from hexa.measure.costs import Costs, measure, peak_bytes
from hexa.nn.backbones import NetworkConfig, outline
from hexa.recipes.experiment import override
from hexa.weights import start
from hexa.weights.pretrained import random_backbone

#: At 100 px a second for the head, two with two stages, three with all six; reading is free.
COSTS = Costs(size=100, read=0.0, steps={6: 3.0, 2: 2.0, 0: 1.0}, look=0.5)
SIZES = (100, 50)
#: Six passes over 100 images at 100 px, with all stages and with two.
ALL, TWO = 100 * (1 + 5 * 3), 100 * (1 + 5 * 2)


def test_what_the_optimizer_takes_does_not_grow_with_the_views() -> None:
    costs = Costs(size=64, read=0.5, steps={4: 1.0, 0: 0.2}, look=0.1, updates={4: 0.25, 0: 0.0})
    assert costs.train(128, 4) == 0.5 + 0.25 + 4 * 1.0
    assert costs.shared(2).train(128, 4) == 0.25 + 0.25 + 2.0
    assert costs.shared(2).score(128) == 4 * 0.1  # the main process scores alone


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
            100,
            2,
            50,
            1 + (TWO / 1.8 / 50 - 1) / 2,
        ),  # then half of the images
        (-5.0, True, 1000, 50, 2, 0, None),  # nothing is left
    ],
)
def test_what_is_trained_is_cut_in_order(
    seconds: float,
    keeps: bool,
    side: int,
    size: int,
    stages: int,
    images: int,
    passes: float | None,
) -> None:
    chosen = choose(COSTS, SIZES, 100, lambda _: seconds, lambda _: keeps, side)
    assert (chosen.size, chosen.stages, chosen.images) == (size, stages, images)
    assert passes is None or chosen.passes == pytest.approx(passes)


def test_views_repeat_where_their_maps_can_be_remembered() -> None:
    """Of ten passes that would fit seven have views of their own; three times 2.5 seconds are ten passes of a tenth."""
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
        assert (chosen.images, chosen.sets, chosen.passes) == (
            images,
            sets,
            pytest.approx(passes, rel=1e-3),
        )


@pytest.mark.parametrize("seconds", [10.0, 400.0, 3000.0])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("count", [7, 300])
def test_six_passes_fit_into_nine_tenths_of_the_time(
    seconds: float, keeps: bool, count: int
) -> None:
    costs = Costs(size=64, read=0.1, steps={4: 0.9, 2: 0.5, 1: 0.4, 0: 0.3}, look=0.1)
    chosen = choose(costs, (128, 96, 64), count, lambda size: seconds - size / 100, lambda _: keeps)
    if not chosen.images:
        return
    needed = chosen.images * (
        6 * 0.1 + (chosen.size / 64) ** 2 * (0.3 + 5 * costs.steps[chosen.stages])
    )
    assert needed <= 0.9 * (seconds - chosen.size / 100)
    assert chosen.passes >= 6
    assert chosen.images <= count


def test_memory_is_that_of_the_stages_that_learn() -> None:
    costs = Costs(size=100, read=0.0, steps={6: 3.0, 2: 2.0, 0: 1.0}, look=0.5, memory=8.0)
    assert [costs.bytes(200, stages) for stages in (6, 2, 0)] == pytest.approx([32.0, 16.0, 3.2])


def test_images_are_found_again_from_a_quarter_where_the_features_tell_them_apart() -> None:
    colours = torch.rand(40, 3, 1, 1, generator=torch.Generator().manual_seed(0)).expand(
        40, 3, 8, 8
    )
    backbone = random_backbone(NetworkConfig(name="small-resnet", widths=(4, 8)), 8, seed=0).eval()
    for told, share in (
        (lambda pixels: pixels.mean((2, 3)), 1),
        (lambda pixels: pixels.mean((2, 3)) ** 0, 1 / 40),
    ):
        backbone.forward = told  # type: ignore[assignment]
        assert found_again(backbone, colours, features_of(backbone, colours)) == pytest.approx(
            share
        )


def test_costs_are_measured_by_the_stages_that_learn() -> None:
    fields = {"training.device": "cpu", "training.precision": "fp32"}
    draft = first_draft(
        "adapt", "random:small-resnet-8-16-32", "digits", 1000, {**fields, "views.size": 32}
    )
    costs = measure(draft, open_source("digits", "train"), fields)
    assert (costs.size, sorted(costs.steps)) == (32, [0, 1, 2, 4])  # a stem and three stages
    assert min(costs.look, *costs.steps.values()) > 0
    fields["start.trainable_stages"] = "None"
    assert sorted(measure(draft, open_source("digits", "train"), fields).steps) == [0, 4]


def test_the_few_images_that_are_timed_divide_a_queue() -> None:
    draft = override(recipes.get("cifar10-moco-v2+small"), {"training.device": "cpu"})
    assert measure(draft, open_source("digits", "train"), ()).size == 24


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("tf_efficientnet_lite0", 1),
        ("resnet18", 1),
        ("convnext_atto", 2),
        ("densenet121", 2),
        ("poolformer_s12", 1),
    ],
)
def test_the_last_stages_hold_a_share_of_the_weights(name: str, count: int) -> None:
    """ConvNeXt and DenseNet end in a stage of a normalisation; a PoolFormer defines no stages."""
    assert start.last_stages(outline(NetworkConfig(name=name)), 0.05) == count


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is known on Linux alone")
def test_the_memory_of_a_step_is_what_the_process_grows_by() -> None:
    cpu = torch.device("cpu")
    blocks = [
        torch.ones(2**22) for _ in range(20)
    ]  # 320 MiB, which the C library keeps when they are freed
    del blocks
    assert (
        peak_bytes(lambda: torch.ones(2**25).sum(), cpu) >= 120 * 2**20
    )  # 128 MiB, which are given back
    assert peak_bytes(lambda: None, cpu) < 8 * 2**20
