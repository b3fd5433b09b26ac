"""Laws for methods and hard examples. Each raises AssertionError with an explanation if a case
breaks it."""

from __future__ import annotations

import copy
import itertools
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from hexa.core import MAIN, Branch, Method
from hexa.hard_examples.adversarial import Adversarial
from hexa.hard_examples.vat import VAT
from hexa.nn.backbones import build
from hexa.nn.branch_norm import BranchBatchNorm
from hexa.nn.checkpointing import checkpoint_blocks
from hexa.objective import STD
from hexa.ops.draws import StepValues
from hexa.runtime import processes
from hexa.testing.cases import BATCH, Case, one_step, train
from hexa.testing.recording import Recording
from hexa.weights.fitting import exported

State = Mapping[str, Any]
_GATHER = "use processes.all_gather, or all_gather_with_gradient if the loss needs the gradient"
#: Steps of one phase: no prototypes thaw, no queue becomes full, no epoch starts.
_STEADY = (3, 4, 5)
STATISTIC = re.compile(r"(running_mean|running_var|num_batches_tracked)$")


def state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of all parameters and buffers."""
    return {
        name: value.detach().clone()
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }


def differing(before: State, after: State) -> set[str]:
    """Return the names whose values are not bit-identical."""
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def nothing_changes_before_commit(case: Case) -> None:
    """Before `commit`, a step changes only batch-norm statistics: those of the branches that are
    trained."""
    method = case.build()
    before = state(method)
    trained = {"main"}
    for term in case.objective(method).losses(case.batch()):
        term.loss.backward()  # type: ignore[no-untyped-call]
        trained |= {
            part.example.branch.name for part in term.parts.values() if part.example.branch.update
        }
    sets = set().union(
        *(dict(m.named_children()) for m in method.modules() if isinstance(m, BranchBatchNorm))
    )
    silent = set() if case.kept else trained & sets
    for name in sorted(differing(before, state(method))):
        _require(
            STATISTIC.search(name),
            f"`{name}` changed before `commit`; change state only in `commit`",
        )
        _require(
            not (case.kept and ".backbone." in name),
            f"`{name}` changed although the backbone's statistics are frozen",
        )
        branch = name.split(".")[-2]
        _require(
            (branch if branch in sets else "main") in trained,
            f"`{name}` changed in a pass through another branch",
        )
        silent -= {branch}
    _require(not silent, f"no pass went through {_listed(silent)}; `embed` must use its branch")


def loss_is_pure(case: Case) -> None:
    """Calling `loss` twice gives the same numbers [V, B] and changes nothing."""
    method = case.build()
    _, embedding, labels = case.embedded(method)
    before = state(method)
    first = method.loss(embedding, labels)
    second = method.loss(embedding, labels)
    _require(torch.equal(first, second), "`loss` returned other numbers on the second call")
    changed = differing(before, state(method))
    _require(not changed, f"`loss` changed {_listed(changed)}")
    expected = list(embedding.shape[:2])
    _require(
        list(first.shape) == expected,
        f"`loss` returned {list(first.shape)}; return [V, B] = {expected}",
    )


def losses_follow_their_images(case: Case) -> None:
    """Reordering the images reorders their losses, with one group of batch statistics."""
    method = case.grouped().build()
    anchors, embedding, labels = case.embedded(method)
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(1))
    reordered = tuple(crop[order] for crop in anchors)
    moved = method.loss(method.embed(reordered, MAIN), labels[order])
    _close(
        moved,
        method.loss(embedding, labels)[:, order],
        "losses of reordered images with labels[order]",
    )


def scores_follow_their_images(case: Case) -> None:
    """Reordering the images of an example reorders their scores, because its mixture follows the
    images."""
    case = case.grouped()
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(2))
    for name, example in case.examples().items():
        scores = example.score(example)[:, order]
        _close(
            example.score(example.select(order)), scores, f"scores of {name} with reordered images"
        )


def hard_examples_are_valid_pixels(case: Case) -> None:
    """Hard examples have pixels in [0, 1], no gradient and the shape of their source, and differ
    from the clean view."""
    made = case.examples()
    for name, example in made.items():
        for crop, clean in zip(example.crops, made[STD].crops, strict=False):
            low = float(crop.min())
            high = float(crop.max())
            _require(
                min(low, 1 - high) >= 0,
                f"pixels of {name} range from {low:g} to {high:g}; keep them in [0, 1]",
            )
            _require(name == STD or not torch.equal(crop, clean), f"{name} equals the clean view")


def an_attack_raises_the_loss(case: Case) -> None:
    """A small gradient step stays in its ε-ball, moves every pixel that has a gradient, and raises
    the loss."""
    attack = Adversarial(epsilon=0.01, step_size=0.01)
    case = replace(case, hard_examples={"adversarial": attack})
    if not case.fits:
        return
    made = case.examples()
    clean = made[STD]
    adversarial = made["adversarial"]
    generation = Branch.of(attack.generation, update=False)
    for view, crop, slope in zip(
        adversarial.crops, clean.crops, clean.gradient(generation), strict=True
    ):
        delta = view - crop
        _require(
            float(delta.abs().max()) <= 0.01 / 255 * (1 + 1e-9),
            "an adversarial view left its ε-ball",
        )
        free = (slope != 0) & (crop > 0.1) & (crop < 0.9)
        _require(not (delta[free] == 0).any(), "pixels with a gradient did not move")
    with torch.no_grad():
        before, after = (
            float(clean.score_at(example.crops, generation).mean())
            for example in (clean, adversarial)
        )
    _require(
        after > before,
        f"a step along the gradient changed the loss from {before:.9g} to {after:.9g}",
    )


def mixture_weights_sum_to_one(case: Case) -> None:
    """The mixture weights of an example sum to 1 for each crop and image."""
    for name, example in case.examples().items():
        total = torch.stack([weight for _, weight in example.mixture]).sum(0)
        _close(total, torch.ones_like(total), f"the sum of the weights of {name}")


def weight_zero_changes_nothing(case: Case) -> None:
    """Two steps with hard examples of weight 0 give the same bits as two steps without hard
    examples."""
    silent = {name: hard.but(weight=0.0) for name, hard in case.hard_examples.items()}
    plain = train(replace(case, hard_examples={})).state_dict()
    changed = differing(plain, train(replace(case, hard_examples=silent)).state_dict())
    _require(
        not changed,
        f"a hard example of weight 0 changed {_listed(changed)}; draw only from the given stream",
    )


def shared_gradients_are_exact(case: Case) -> None:
    """A step that reuses the clean gradient equals the naive step: the same views, gradients within
    1e-12."""
    results: list[tuple[dict[str, Any], State, State]] = []
    for shared, scale in ((False, 1.0), (True, 1.0), (True, 65536.0)):
        method = case.build()
        views = dict[str, Any]()
        for term in case.objective(method, share_gradients=shared).losses(case.batch()):
            (scale * term.loss).backward()  # type: ignore[no-untyped-call]
            views |= {f"views of {name}": part.example.crops for name, part in term.parts.items()}
        gradients = {
            f"gradient of {n}": p.grad / scale
            for n, p in method.named_parameters()
            if p.grad is not None
        }
        results.append((views, gradients, dict(method.named_buffers())))
    exact = not any(getattr(hard, "norm", "linf") == "l2" for hard in case.hard_examples.values())
    naive = results[0]
    for shared_result in results[1:]:
        for name in naive[0]:
            for a, b in zip(shared_result[0][name], naive[0][name], strict=True):
                _close(a.detach(), b.detach(), name, 0 if exact else 1e-12, 0)
        _require(shared_result[1].keys() == naive[1].keys(), "other parameters have gradients")
        for values, others, relative in (
            (shared_result[1], naive[1], 1e-12),
            (shared_result[2], naive[2], 0),
        ):
            for name, value in others.items():
                _close(values[name], value, name, 1e-12, relative)


def micro_batches_add_up(case: Case) -> None:
    """Gradients of two micro-batches add up to those of the whole batch with two groups of batch statistics, to 1e-10."""
    # attacks through running statistics differ: these move by one micro-batch after another
    hard = {
        name: made.but(generation=made.generation.replace("eval", "train"))
        if isinstance(made, Adversarial | VAT)
        else made
        for name, made in case.hard_examples.items()
    }
    case = replace(case, hard_examples=hard).grouped(2 * processes.world_size())
    whole, added = (gradients(case, case.build(), accumulate=parts) for parts in (1, 2))
    _require(whole.keys() == added.keys(), "other parameters have a gradient")
    remedy = "`loss_per_image` is for losses that compare an image with no other one of the batch"
    for name, value in whole.items():
        _close(added[name], value, f"gradient of {name} ({remedy})", 1e-10, 1e-10)


def checkpointed_blocks_agree(case: Case) -> None:
    """A network that recomputes its blocks has the same gradients and running statistics, bit for bit."""
    plain = case.build()
    thrifty = case.build()
    checkpoint_blocks(thrifty)
    kept = gradients(case, plain)
    again = gradients(case, thrifty)
    _require(kept.keys() == again.keys(), "other parameters have a gradient")
    changed = differing(kept, again) | differing(state(plain), state(thrifty))
    _require(not changed, f"recomputing blocks changed {_listed(changed)}")


def gradients(case: Case, method: Method, **options: Any) -> dict[str, Tensor]:
    """The gradients that the first batch leaves in a method."""
    for term in case.objective(method, **options).losses(case.batch()):
        term.loss.backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in method.named_parameters() if p.grad is not None}


def a_resumed_method_goes_on(case: Case) -> None:
    """Two steps, a checkpoint and one more step give the same bits as three steps in a row."""
    whole = train(case, 3).checkpoint()
    kept = train(case, 2).checkpoint()
    method = case.build()
    method.restore(
        {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in kept.items()
        }
    )
    changed = differing(whole, train(case, 1, method, first=2).checkpoint())
    _require(
        not changed,
        f"after a checkpoint {_listed(changed)} differs; checkpoints must contain all state",
    )


def backbone_can_be_exported(case: Case) -> None:
    """The backbone's weights load strictly into the plain network, which has the same features."""
    method = case.build()
    network = build(case.network).double()
    network.load_state_dict(exported(method, case.network))
    pixels = case.batch().crops[0]
    own, plain = (backbone.eval()(pixels) for backbone in (method.backbone, network))
    _close(own, plain, "features of the exported backbone")


def step_is_static(case: Case) -> None:
    """Two steps of one phase call torch in the same way, with the same numbers. If the calls are
    repeated without the Python code around them, the next step is the same, bit for bit. Applies to
    methods and hard examples that declare `is_static`."""
    if not case.method.method.is_static:
        return
    if not all(hard.is_static for hard in case.hard_examples.values()):
        return
    method = case.build()
    objective = case.objective(method)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    values = StepValues()
    recordings = []
    for number in _STEADY:
        data = case.batch(number)
        recording = Recording()
        first_step = number == _STEADY[0]  # the only one that checks pixels
        recorded: AbstractContextManager[object] = nullcontext() if first_step else recording
        with values.of(data.stream, number), recorded:
            one_step(objective, optimizer, data)
        recordings.append(recording)
    first, second = recordings[1:]
    for call, then in itertools.zip_longest(first.calls, second.calls):
        _require(call == then, f"two steps differ: {str(call)[:300]}, then {str(then)[:300]}")
    _require(not first.reads, f"the host waits for the device: {', '.join(first.reads[:3])}")
    eager, its_optimizer = copy.deepcopy((objective, optimizer))
    following = case.batch(_STEADY[-1] + 1)
    one_step(eager, its_optimizer, following)
    torch._foreach_copy_([*data.crops, data.index], [*following.crops, following.index])
    values.fill(following.stream, following.step)
    recordings[-1].replay()
    changed = differing(state(eager.method), state(method))
    _require(
        not changed, f"a replayed step differs in {sorted(changed)[:3]}; change tensors in place"
    )


def two_processes_equal_one(case: Case) -> None:
    """Two steps of two processes, each with half of the batch, equal those of one process with the
    whole batch, within 1e-8."""
    hard = case.hard_examples.values()
    # each process draws other random numbers for its own images
    if any(not isinstance(one, Adversarial) or one.random_start for one in hard):
        return
    if any(one.fraction < 1 for one in hard):  # each process takes the first of its own images
        return
    case = case.grouped()
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            _member, (f"file://{folder}/meet", folder, case), nprocs=2, start_method="fork"
        )  # type: ignore[no-untyped-call]
        shards = [torch.load(Path(folder) / f"{n}.pt", weights_only=True) for n in range(2)]
    method = case.build()
    method.restore(shards[0] | {name: [one[name] for one in shards] for name in method.sharded})
    both = method.checkpoint()
    for name, value in train(case).checkpoint().items():
        what = f"`{name}` differs between two processes and one ({_GATHER})"
        _close(both[name], value, what, 1e-8, 1e-8)


def _member(rank: int, place: str, folder: str, case: Case) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    torch.save(dict(train(case).checkpoint()), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def _require(kept: object, said: str) -> None:
    """Raise AssertionError unless `kept`; not `assert`, because python -O removes it."""
    if not kept:
        raise AssertionError(said)


def _close(
    value: Tensor, expected: Tensor, what: str, absolute: float = 1e-7, relative: float = 1e-7
) -> None:
    torch.testing.assert_close(
        value,
        expected,
        atol=absolute,
        rtol=relative,
        msg=lambda said: f"{what}: {' '.join(said.split())}",
    )


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)[:3]) + (" …" if len(names) > 3 else "")


#: The laws by name.
LAWS: dict[str, Callable[[Case], None]] = {
    law.__name__: law
    for law in (
        nothing_changes_before_commit,
        loss_is_pure,
        losses_follow_their_images,
        scores_follow_their_images,
        hard_examples_are_valid_pixels,
        an_attack_raises_the_loss,
        mixture_weights_sum_to_one,
        weight_zero_changes_nothing,
        shared_gradients_are_exact,
        micro_batches_add_up,
        checkpointed_blocks_agree,
        a_resumed_method_goes_on,
        backbone_can_be_exported,
        step_is_static,
        two_processes_equal_one,
    )
}
