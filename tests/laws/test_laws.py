"""The laws for every method × every hard example, in fp64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hexa import testing
from hexa.config import choices
from hexa.core import MAIN, Batch, Branch, Example, HardExample, Method, MethodConfig
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.objective import STD, ObjectiveConfig
from hexa.testing.cases import BATCH
from hexa.testing.laws import (
    LAWS,
    a_resumed_method_goes_on,
    an_attack_raises_the_loss,
    backbone_can_be_exported,
    checkpointed_blocks_agree,
    hard_examples_are_valid_pixels,
    loss_is_pure,
    losses_follow_their_images,
    micro_batches_add_up,
    mixture_weights_sum_to_one,
    scores_follow_their_images,
    shared_gradients_are_exact,
    step_is_static,
    two_processes_equal_one,
    weight_zero_changes_nothing,
)
from tests.laws.cases import KINDS, STRAINING, VARIANTS, Case, all_cases, backward, count_passes

#: Read before any test runs, since tests define further methods and hard examples.
METHOD_CONFIGS = choices(MethodConfig, "name", "hexa.methods")
KIND_CONFIGS = choices(HardExample, "kind", "hexa.hard_examples")
CASES = all_cases()
HARD = [case for case in CASES if case.hard_examples]


#: Methods whose crops of one size go through the network one after another, as published.
VIEW_BY_VIEW = {"moco", "pcl-v2", "byol", "simsiam"}


#: Laws about the method alone, and about its hard examples; the others are tried in all cases.
OF_METHODS = (
    loss_is_pure,
    losses_follow_their_images,
    an_attack_raises_the_loss,
    a_resumed_method_goes_on,
    backbone_can_be_exported,
)
OF_HARD_EXAMPLES = (
    scores_follow_their_images,
    hard_examples_are_valid_pixels,
    mixture_weights_sum_to_one,
    weight_zero_changes_nothing,
)
#: Laws that take several steps or note every call. A plain step is part of one with hard examples.
LONG = (
    shared_gradients_are_exact,
    micro_batches_add_up,
    checkpointed_blocks_agree,
    step_is_static,
)


def applies(law: Callable[[testing.Case], None], case: Case) -> bool:
    """Return whether a law is tried in a case; two processes are in tests/distributed."""
    if law in LONG:
        varied = case.kept and case.method not in STRAINING
        resized = bool(case.sizes and case.fields) and law is not shared_gradients_are_exact
        return bool(case.hard_examples) and not varied and not resized
    skipped = OF_METHODS if case.hard_examples else OF_HARD_EXAMPLES
    return law is not two_processes_equal_one and law not in skipped


def tries() -> list[Any]:
    """Return each law with each applicable case."""
    return [
        pytest.param(law, case, id=f"{name}-{case}")
        for name, law in LAWS.items()
        for case in CASES
        if applies(law, case)
    ]


def test_every_method_and_kind() -> None:
    """Each law is tried with every method and, if it is about hard examples, with every kind."""
    for law in {*LAWS.values()} - {two_processes_equal_one}:
        cases = [case for case in CASES if applies(law, case)]
        assert {case.method for case in cases} == {*METHOD_CONFIGS}
        kinds = {hard.kind for case in cases for hard in case.hard().values()}
        assert kinds == (set() if law in OF_METHODS else {*KINDS})


@pytest.mark.parametrize(("law", "case"), tries())
def test_method_laws(law: Callable[[testing.Case], None], case: Case) -> None:
    law(case.made())


#: What steps are never replayed for, and why; the law `step_is_static` says nothing about these.
NOT_STATIC = {
    "randaugment": "how many images get an operation is drawn on the host",
    "unmix": "a draw on the host decides between boxes and whole images",
    "cmc": "negatives are drawn on the host",
    "instdisc": "negatives are drawn on the host",
    "pirl": "negatives and puzzles are drawn on the host",
    "infomin": "puzzles are drawn on the host",
    "jigsaw": "puzzles are drawn on the host",
    "cpc": "nobody has asked for it: its published batches fill a GPU",
}


def test_declared_static() -> None:
    """Methods and hard examples are static but for those that are listed."""
    declared = {name for name, config in METHOD_CONFIGS.items() if config.method.is_static}
    declared |= {name for name, hard in KIND_CONFIGS.items() if hard.is_static}
    assert declared == {*METHOD_CONFIGS, *KIND_CONFIGS} - set(NOT_STATIC)


@pytest.mark.parametrize("case", [case for case in HARD if not case.kept], ids=str)
def test_branch_statistics_law(case: Case) -> None:
    """Law 1, and the same number of updates per pass as the clean pass; none for the passes of an
    attack."""
    method = case.build()
    norm = trained_norm(method, case.batch())

    def updates() -> dict[str, int]:
        return {
            name: int(getattr(norm, name, norm).num_batches_tracked)
            for name in ("main", *dict(norm.named_children()))
        }

    before = updates()
    expected = {"main": 0}
    for part in backward(case.objective(method), case.batch()).values():
        example = part.example
        sizes = [crop.shape[-1] for crop in part.example.crops]
        once = len(sizes) if case.method in VIEW_BY_VIEW else len(set(sizes))
        expected[example.branch.name] = (
            expected.get(example.branch.name, 0) + once * example.branch.update
        )
    for name, count in updates().items():
        assert count - before[name] == expected.get(name, 0)


def trained_norm(method: Method, data: Batch) -> BranchBatchNorm:
    """Return the first batch-norm that the anchors go through, in the trained network."""
    method.embed(method.anchors(data), MAIN)
    norms = [module for module in method.modules() if isinstance(module, BranchBatchNorm)]
    return next(norm for norm in norms if norm.num_batches_tracked)


ATTACKS = [
    Case(method, {}, {"adversarial": entry})
    for method in STRAINING
    for entry in VARIANTS["adversarial"]
]


@pytest.mark.parametrize("case", ATTACKS, ids=str)
def test_attack_ball_law(case: Case) -> None:
    """Law 3: through the branch and mode that generates it; where the gradient is not zero the view differs."""
    small = {**case.hard_examples["adversarial"], "random_start": False, "project": True}
    if small.get("norm") == "l2":
        small |= {"epsilon": 1e-3, "step_size": 1e-3}
    else:
        # a step of which no sum of three, clipped or not, is zero: a pixel never comes back to where it was
        small |= {"epsilon": 0.01, "step_size": 0.01 if small.get("steps", 1) == 1 else 0.007}
    case = Case(case.method, case.fields, {"adversarial": small})
    config = case.hard()["adversarial"]
    made = case.examples()
    clean = made[STD]
    adversarial = made["adversarial"]
    radius = (1 / 255 if config.unit_used == "grey" else 1.0) * config.epsilon
    generation = Branch.of(config.generation, update=False)
    gradient = clean.gradient(generation)
    # without small crops the others stay as they are, and the loss that is attacked is that of all
    kept = clean.crops[len(adversarial.crops) :]
    assert bool(kept) == (config.crops == "large" and case.method == "deepcluster-v2")
    for view, crop, slope in zip(adversarial.crops, clean.crops, gradient, strict=False):
        delta = view - crop
        size = delta.abs().amax() if config.norm == "linf" else delta.flatten(1).norm(dim=1).amax()
        assert float(size) <= radius * (1 + 1e-9)
        assert not (delta[(slope != 0) & (crop > 0.1) & (crop < 0.9)] == 0).any()
    adversarial = clean.at((*adversarial.crops, *kept))
    losses = [
        clean.score(Example(example.crops, example.mixture, clean.score, generation)).mean()
        for example in (clean, adversarial)
    ]
    assert losses[1] > losses[0]


CUTMIX = [
    Case(method, {}, {"cutmix": entry}) for method in STRAINING for entry in VARIANTS["cutmix"]
]


@pytest.mark.parametrize("case", CUTMIX, ids=str)
def test_cutmix_weight_law(case: Case) -> None:
    """Law 4: the weight of the own label is the counted share of pixels that are still the image's own."""
    objective = case.objective(case.build())
    for step in range(4):
        data = case.batch(step)
        torch.manual_seed(step)
        # no two pixels are the same by chance, as saturated ones may be
        crops = tuple(0.5 * crop + torch.rand_like(crop) * 0.5 for crop in data.crops)
        made = objective.examples(replace(data, crops=crops))
        for v, (mixed, clean) in enumerate(zip(made["cutmix"].crops, made[STD].crops, strict=True)):
            own = (mixed == clean).all(1).double().mean((1, 2))
            weight = made["cutmix"].mixture[0][1][v].double()
            moved = own < 1  # a fixed point of the permutation is mixed with itself
            torch.testing.assert_close(own[moved], weight[moved], atol=1e-6, rtol=0)
            assert bool(moved.any()) or bool((weight == 1).any())


@pytest.mark.parametrize("share", [True, False])
def test_shared_attack_passes(share: bool) -> None:
    """query passes std 1, +adv 2, +cmx 3, +cmxA 4 with sharing; one more for each use without."""
    expected = {True: [1, 2, 2, 3, 3, 4], False: [1, 3, 2, 4, 4, 5]}[share]
    adv = {"adversarial": {}}
    cmx = {"cutmix": {}}
    cmx_adv = {"cmxA": {"kind": "cutmix", "source": "adversarial"}}
    schemes = [{}, adv, cmx, {**adv, **cmx}, {**adv, **cmx_adv}, {**adv, **cmx, **cmx_adv}]
    for scheme, passes in zip(schemes, expected, strict=True):
        case = Case("moco", {}, scheme)
        method = case.build()
        objective = case.objective(method, share_gradients=share)
        assert (
            count_passes(method.query, lambda made=objective: backward(made, Case("moco").batch()))
            == passes
        )


# -- shares of the batch ----------------------------------------------------------------------------------------------


def test_split_large_crop_pass() -> None:
    """Split parts of large crops alone get a pass of their own."""
    case = Case(
        "deepcluster-v2", {}, {"adversarial": {"crops": "large", "branch": "main", "fraction": 0.5}}
    )
    objective = case.objective(case.build(), ObjectiveConfig(split=True, clean_fraction=0.5))
    crops = {
        name: len(part.example.crops) for name, part in backward(objective, case.batch()).items()
    }
    assert crops == {"std": 3, "adversarial": 2}


@pytest.mark.parametrize("fraction", [0.5, 0.25])
def test_fraction_of_images(fraction: float) -> None:
    """With a fraction, the term is computed on the first images."""
    case = Case("moco", {"bn_groups": 1}, {"adversarial": {"fraction": fraction}})
    example = backward(case.objective(case.build()), case.batch())["adversarial"].example
    assert len(example) == fraction * BATCH
    assert (
        float((example.crops[0] - Case("moco").batch().crops[0][: len(example)]).abs().max())
        <= 1 / 255 + 1e-12
    )
