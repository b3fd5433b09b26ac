"""The laws of every method × every hard example (DESIGN §3.4). Fp64 on the CPU."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hexa.core import MAIN, STD, Batch, Branch, Example, Method, Objective, ObjectiveConfig
from hexa.nn.branch_norm import BranchBatchNorm
from tests.laws.cases import BATCH, STRAINING, Case, all_cases, batch, train

CASES = all_cases()
HARD = [case for case in CASES if case.hard_examples]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_hard_case = pytest.mark.parametrize("case", HARD, ids=str)


def state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def differing(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


#: Methods whose crops of one size go through the network one after another, as published.
VIEW_BY_VIEW = {"moco", "pcl-v2", "byol", "simsiam"}
STATISTIC = re.compile(r"(running_mean|running_var|num_batches_tracked)$")


def clean_example(objective: Objective, data: Batch) -> Example:
    return objective.examples(data)[STD]


# -- law 1 ------------------------------------------------------------------------------------------------------------


@each_case
def test_nothing_but_counting_statistics_changes_before_commit(case: Case) -> None:
    """Law 1: the terms of a step move only batch-norm statistics, and of these only the branches that are trained."""
    method = case.build()
    objective = case.objective(method)
    before = state(method)
    trained = {"main"}
    for term in objective.losses(case.batch()):
        term.loss.backward()
        trained |= {part.example.branch.name for part in term.parts.values() if part.example.branch.update}
    changed = differing(before, state(method))
    assert all(STATISTIC.search(name) for name in changed)
    assert not case.kept or not any(".backbone." in name for name in changed)
    for name in changed:
        branch = name.split(".")[-2]
        known = set().union(*(dict(m.named_children()) for m in method.modules() if isinstance(m, BranchBatchNorm)))
        assert (branch if branch in known else "main") in trained, name


@pytest.mark.parametrize("case", [case for case in HARD if not case.kept], ids=str)
def test_every_pass_moves_the_statistics_of_its_own_branch_once(case: Case) -> None:
    """Law 1 and REFERENCE §5.11: as many updates a pass as the clean one makes; none for the passes of an attack."""
    method = case.build()
    norm = trained_norm(method, case.batch())

    def updates() -> dict[str, int]:
        return {
            name: int(getattr(norm, name, norm).num_batches_tracked) for name in ("main", *dict(norm.named_children()))
        }

    before, expected = updates(), {"main": 0}
    for term in case.objective(method).losses(case.batch()):
        term.loss.backward()
        example = next(iter(term.parts.values())).example
        sizes = [crop.shape[-1] for crop in example.crops]
        once = len(sizes) if case.method in VIEW_BY_VIEW else len(set(sizes))
        expected[example.branch.name] = expected.get(example.branch.name, 0) + once * example.branch.update
    for name, count in updates().items():
        assert count - before[name] == expected.get(name, 0)


def trained_norm(method: Method, data: Batch) -> BranchBatchNorm:
    """The first batch-norm that anchors go through: that of the network that is trained, whichever is kept."""
    method.embed(method.anchors(data), MAIN)
    norms = [module for module in method.modules() if isinstance(module, BranchBatchNorm)]
    return next(norm for norm in norms if norm.num_batches_tracked)


@each_case
def test_loss_is_pure(case: Case) -> None:
    """Law 1: asking twice gives the same answer and changes nothing."""
    method = case.build()
    data = case.batch()
    embedding = method.embed(method.anchors(data), MAIN)
    labels = method.pseudo_labels(data, embedding.detach())
    before = state(method)
    first, second = method.loss(embedding, labels), method.loss(embedding, labels)
    assert torch.equal(first, second)
    assert not differing(before, state(method))
    assert first.shape == embedding.shape[:2]


# -- law 2 ------------------------------------------------------------------------------------------------------------


@each_case
def test_reordering_images_reorders_losses(case: Case) -> None:
    """Law 2, with one group of statistics (groups are runs of images, so reordering changes them)."""
    method = case.build(bn_groups=1)
    data = case.batch()
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(1))
    embedding = method.embed(method.anchors(data), MAIN)
    labels = method.pseudo_labels(data, embedding.detach())
    crops = tuple(crop[order] for crop in method.anchors(data))
    moved = method.loss(method.embed(crops, MAIN), labels[order])
    torch.testing.assert_close(moved, method.loss(embedding, labels)[:, order])


@each_hard_case
def test_reordering_mixtures_reorders_scores(case: Case) -> None:
    """Law 2 for every hard example: its mixture follows its images."""
    method = case.build(bn_groups=1)
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(2))
    objective = case.objective(method)
    for example in objective.examples(case.batch()).values():
        torch.testing.assert_close(example.score(example.select(order)), example.score(example)[:, order])


# -- law 3 ------------------------------------------------------------------------------------------------------------


@each_hard_case
def test_hard_examples_are_valid_pixels(case: Case) -> None:
    """Law 3: pixels in [0, 1], no gradient attached, the shape of the source; not the source itself."""
    objective = case.objective(case.build())
    made = objective.examples(case.batch())
    for name, example in made.items():
        for crop, clean in zip(example.crops, made[STD].leading(len(example.crops)).crops, strict=True):
            assert float(crop.min()) >= 0
            assert float(crop.max()) <= 1
            assert not crop.requires_grad
            assert crop.shape == clean.shape
            assert name == STD or not torch.equal(crop, clean)


ATTACKS = [case for case in HARD if list(case.hard_examples) == ["adversarial"]]


@pytest.mark.parametrize("case", ATTACKS, ids=str)
def test_attack_stays_in_its_ball_and_raises_the_loss_it_attacks(case: Case) -> None:
    """Law 3: through the branch and mode that generates it; where the gradient is not zero the view differs."""
    small = {**case.hard_examples["adversarial"], "random_start": False}
    if small.get("norm") == "l2":
        small |= {"epsilon": 1e-3, "step_size": 1e-3}
    else:
        # a step of which no sum of three, clipped or not, is zero: a pixel never comes back to where it was
        small |= {"epsilon": 0.01, "step_size": 0.01 if small.get("steps", 1) == 1 else 0.007}
    case = Case(case.method, case.fields, {"adversarial": small})
    config = case.hard()["adversarial"]
    objective = case.objective(case.build())
    made = objective.examples(case.batch())
    clean, adversarial = made[STD], made["adversarial"]
    scale = 1 / 255 if config.unit == "grey" else 1.0
    radius = scale * config.epsilon
    generation = Branch.of(config.generation, update=False)
    gradient = clean.gradient(generation)
    if config.crops == "large":  # the others stay as they are, and the loss that is attacked is that of all
        kept = clean.crops[len(adversarial.crops) :]
        assert {crop.shape[-1] for crop in kept}.isdisjoint(crop.shape[-1] for crop in adversarial.crops)
        adversarial = clean.at((*adversarial.crops, *kept))
        gradient = (*gradient[: len(clean.crops) - len(kept)], *(torch.zeros_like(crop) for crop in kept))
    for view, crop, slope in zip(adversarial.crops, clean.crops, gradient, strict=True):
        delta = view - crop
        size = delta.abs().amax() if config.norm == "linf" else delta.flatten(1).norm(dim=1).amax()
        assert float(size) <= radius * (1 + 1e-9)
        free = (slope != 0) & (crop > 0.1) & (crop < 0.9)
        assert not (delta[free] == 0).any()
    losses = [
        clean.score(Example(example.crops, example.mixture, clean.score, generation)).mean()
        for example in (clean, adversarial)
    ]
    assert losses[1] > losses[0]


# -- law 4 ------------------------------------------------------------------------------------------------------------


@each_hard_case
def test_mixture_weights_sum_to_one(case: Case) -> None:
    """Law 4."""
    objective = case.objective(case.build())
    for example in objective.examples(case.batch()).values():
        total = sum(weight for _, weight in example.mixture)
        torch.testing.assert_close(total, torch.ones_like(total))


CUTMIX = [case for case in HARD if list(case.hard_examples) == ["cutmix"]]


@pytest.mark.parametrize("case", CUTMIX, ids=str)
def test_cutmix_weight_is_the_share_of_unchanged_pixels(case: Case) -> None:
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


@pytest.mark.parametrize("case", [case for case in HARD if case.method in STRAINING or not case.fields], ids=str)
def test_weight_zero_leaves_the_trajectory_bit_identical(case: Case) -> None:
    """Law 4: weights, momentum twin, queue and main statistics after some steps, beside a run without."""
    silent = replace(case, hard_examples={n: {**e, "weight": 0.0} for n, e in case.hard_examples.items()})
    plain = train(replace(case, hard_examples={})).state_dict()
    beside = train(silent).state_dict()
    assert all(torch.equal(value, beside[name]) for name, value in plain.items())


# -- law 5 ------------------------------------------------------------------------------------------------------------


@each_hard_case
def test_shared_gradient_step_equals_the_naive_step(case: Case) -> None:
    """Law 5: views bit-identical, gradients within 1e-12, all buffers identical; with a loss scale of 2^16 too."""
    results = []
    for share, scale in ((True, 1.0), (False, 1.0), (True, 65536.0)):
        method = case.build()
        views, gradients = {}, {}
        for term in case.objective(method, share_gradients=share).losses(case.batch()):
            (scale * term.loss).backward()
            views |= {name: part.example.crops for name, part in term.parts.items()}
        gradients = {n: p.grad / scale for n, p in method.named_parameters() if p.grad is not None}
        results.append((views, gradients, dict(method.named_buffers())))
    naive = results[1]
    for shared in (results[0], results[2]):
        for name in naive[0]:
            exact = "l2" not in str(case)
            for a, b in zip(shared[0][name], naive[0][name], strict=True):
                torch.testing.assert_close(a.detach(), b.detach(), atol=0 if exact else 1e-12, rtol=0)
        assert shared[1].keys() == naive[1].keys()
        for name, gradient in naive[1].items():
            torch.testing.assert_close(shared[1][name], gradient, atol=1e-12, rtol=1e-12)
        for name, buffer in naive[2].items():
            torch.testing.assert_close(shared[2][name], buffer, atol=1e-12, rtol=0)


@pytest.mark.parametrize("share", [True, False])
def test_published_attack_costs_no_pass_of_its_own(share: bool) -> None:
    """REFERENCE §6.2: query passes std 1, +adv 2, +cmx 3, +cmxA 4 with sharing; one more for each use without."""
    expected = {True: [1, 2, 2, 3, 3, 4], False: [1, 3, 2, 4, 4, 5]}[share]
    adv, cmx, cmx_adv = ({"adversarial": {}}, {"cutmix": {}}, {"cmxA": {"kind": "cutmix", "source": "adversarial"}})
    schemes = [{}, adv, cmx, {**adv, **cmx}, {**adv, **cmx_adv}, {**adv, **cmx, **cmx_adv}]
    for scheme, passes in zip(schemes, expected, strict=True):
        case = Case("moco", {}, scheme)
        method = case.build()
        assert count_passes(method.query, lambda m=method, c=case: run(c.objective(m, share_gradients=share))) == passes


def run(objective: Objective) -> None:
    for term in objective.losses(batch()):
        term.loss.backward()


def count_passes(module: torch.nn.Module, work: Callable[[], None]) -> int:
    seen = []
    handle = module.register_forward_hook(lambda *_: seen.append(1))
    work()
    handle.remove()
    return len(seen)


# -- shares of the batch ----------------------------------------------------------------------------------------------


def test_split_goes_through_the_network_once_per_branch_on_disjoint_parts() -> None:
    case = Case("moco", {}, {"cutmix": {"fraction": 0.5}})
    method = case.build()
    objective = case.objective(method, ObjectiveConfig(split=True, clean_fraction=0.5, reduction="mean"))
    data, rows = case.batch(), []
    handle = method.query.register_forward_hook(lambda _m, args, _o: rows.append(args[0]))
    terms = list(objective.losses(data))
    handle.remove()
    assert [term.name for term in terms] == ["std+cutmix"]
    assert [len(r) for r in rows] == [BATCH]
    assert torch.equal(rows[0][: BATCH // 2], data.crops[0][: BATCH // 2])
    assert not torch.equal(rows[0][BATCH // 2 :], data.crops[0][BATCH // 2 :])


def test_split_parts_of_large_crops_alone_get_a_pass_of_their_own() -> None:
    large = {"crops": "large", "branch": "main", "fraction": 0.5}
    case = Case("deepcluster-v2", {}, {"adversarial": large})
    objective = case.objective(case.build(), ObjectiveConfig(split=True, clean_fraction=0.5))
    crops = {}
    for term in objective.losses(case.batch()):
        term.loss.backward()
        crops[term.name] = len(term.parts[term.name].example.crops)
    assert crops == {"std": 3, "adversarial": 2}


def test_split_equals_the_terms_of_its_parts_without_batch_norm() -> None:
    """Without batch statistics a merged pass must be the sum of separate ones, weighted by their images."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 12 * 12, 8))
    network.num_features = 8
    case = Case("moco", {}, {"cutmix": {"fraction": 0.25}, "adversarial": {"fraction": 0.25}})
    method = case.build(network=copy.deepcopy(network))
    objective = case.objective(method, ObjectiveConfig(split=True, clean_fraction=0.5))
    parts = {}
    total = torch.zeros((), dtype=torch.float64)
    for term in objective.losses(case.batch()):
        term.loss.backward()
        total += term.loss.detach()
        parts |= term.parts
    assert {name: len(part.example) for name, part in parts.items()} == {"std": 4, "cutmix": 2, "adversarial": 2}
    separate = sum(len(part.example) / BATCH * objective.score(part.example).mean() for part in parts.values())
    torch.testing.assert_close(total, separate.detach())


@pytest.mark.parametrize("fraction", [0.5, 0.25])
def test_a_fraction_is_the_term_of_the_first_images(fraction: float) -> None:
    case = Case("moco", {"bn_groups": 1}, {"adversarial": {"fraction": fraction}})
    objective = case.objective(case.build())
    for term in objective.losses(case.batch()):
        term.loss.backward()
        last = term
    example = last.parts["adversarial"].example
    assert len(example) == fraction * BATCH
    clean = batch().crops[0][: len(example)]
    assert float((example.crops[0] - clean).abs().max()) <= 1 / 255 + 1e-12


def test_mean_reduction_divides_by_the_sum_of_weights() -> None:
    case = Case("moco", {}, {"adversarial": {"weight": 0.5}, "cutmix": {}})
    weights = case.objective(case.build(), ObjectiveConfig(reduction="mean")).weights()
    assert weights == {"std": 0.4, "adversarial": 0.2, "cutmix": 0.4}
    assert case.objective(case.build()).weights() == {"std": 1.0, "adversarial": 0.5, "cutmix": 1.0}
