"""Law 7: two processes at half the batch equal one, batch-norm included (fp64).

A new method is found by being a file of its package. `bn_groups` is 1 (statistics of both processes together) and 2
(one group in each process, two in the single one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from hexa.config import choices
from hexa.core import MethodConfig
from hexa.hard_examples.cutmix import CutMix
from hexa.ops import draws
from hexa.runtime import processes
from hexa.runtime.gradients import average_gradients
from hexa.runtime.random import Stream
from hexa.testing.cases import CasePasses
from hexa_paper.hard_examples import unmix
from tests.distributed.together import run_together
from tests.laws.cases import METHODS, STRAINING, Case, backward

SCHEMES: dict[str, dict[str, dict[str, Any]]] = {
    "std": {},
    "adversarial": {"adversarial": {}},
    "l2": {"adversarial": {"norm": "l2", "unit": "pixel", "steps": 2}},
    "radii": {"adversarial": {"epsilon": (0.25, 4.0), "step_size": 4.0}},
    "large": {"adversarial": {"crops": "large"}},
    "running": {"adversarial": {"generation": "main_eval"}},
    "cutmix": {"cutmix": {}},
    "cutmix_per_sample": {"cutmix": {"per_sample": True}},
    "mixup": {"mixup": {"per_sample": True}},
    "unmix": {"unmix": {}},
    "vat": {"vat": {}},
    "randaugment": {"randaugment": {}},
    "all": {"adversarial": {}, "cutmix": {}, "cmxA": {"kind": "cutmix", "source": "adversarial"}},
}
#: For methods whose views can't be mixed.
UNMIXED = {"adversarial": {}, "vat": {}}
STEPS = 2
#: Sums are taken in another order, and 1/√(variance of few values) magnifies what that changes.
TOLERANCE = 1e-10
#: Each further step of an attack magnifies it once more, by how much depends on the processor (seen: 1.1e-10).
TOLERANCE_OF_STEPS = 1e-8

State = dict[str, torch.Tensor]


def cases() -> dict[str, Case]:
    """Every method plain; each of its variants with all hard examples, and these with one group as well; one method of
    STRAINING with each scheme, the other with those of several crops."""
    found = []
    for name in choices(MethodConfig, "name", "hexa.methods"):
        every = SCHEMES["all"] if Case(name, {}, SCHEMES["all"]).fits else UNMIXED
        found += [Case(name), Case(name, {"bn_groups": 1}, every)]
        found += [Case(name, fields, every) for fields in METHODS.get(name, [{}])]
    first, second = STRAINING
    found += [
        Case(first, {"bn_groups": 1 + n % 2}, scheme) for n, scheme in enumerate(SCHEMES.values())
    ]
    found += [Case(second, {}, SCHEMES[scheme]) for scheme in ("l2", "large")]
    late = {"adversarial": {"start": 0.5}, "cutmix": {"start": 0.5}}
    found += [Case(name, {"bn_groups": 2}, late) for name in STRAINING]
    return {str(case): case for case in found}


CASES = cases()


def in_halves(draw: Callable[..., torch.Tensor], count: int) -> list[torch.Tensor]:
    """Return the draws of two processes with `count` images each, computed by one process."""
    original = processes.rank
    found = []
    for rank in range(2):
        try:
            processes.rank = lambda rank=rank: rank
            found.append(draw(count))
        finally:
            processes.rank = original
    return found


@contextmanager
def drawing_as_two() -> Iterator[None]:
    """Let a single process draw like two: each half is mixed within itself, and has its own
    noise."""
    with pytest.MonkeyPatch.context() as patch:
        partners = draws.partners
        backwards = unmix.reversed_order
        drawn = draws.like
        boxes = CutMix.boxes

        def boxes_of_halves(maker: CutMix, count: int, size: int, stream: Stream) -> torch.Tensor:
            if not maker.per_sample:
                return boxes(maker, count, size, stream)
            return torch.cat(in_halves(lambda half: boxes(maker, half, size, stream), count // 2))

        patch.setattr(CutMix, "boxes", boxes_of_halves)

        def halves(draw: Callable[[int], torch.Tensor], count: int) -> torch.Tensor:
            first, second = in_halves(draw, count // 2)
            return torch.cat([first, second + count // 2])

        patch.setattr(
            draws, "partners", lambda count, stream: halves(lambda n: partners(n, stream), count)
        )
        patch.setattr(unmix, "reversed_order", lambda count: halves(backwards, count))
        patch.setattr(
            draws,
            "like",
            lambda draw, crop, stream: torch.cat(
                in_halves(lambda n: drawn(draw, crop[:n], stream), len(crop) // 2)
            ),
        )
        yield


def train(case: Case) -> State:
    """Return the gradients of every step and the final state; a single process draws like two."""
    with drawing_as_two() if processes.world_size() == 1 else nullcontext():
        return trained(case)


def trained(case: Case) -> State:
    method = case.build()
    objective = case.objective(method, steps=STEPS)
    parameters = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    result: State = {}
    for step in range(STEPS):
        batch = case.batch(step)
        backward(objective, batch)
        average_gradients(parameters)
        result |= {
            f"gradient {step} {n}": p.grad.clone()
            for n, p in method.named_parameters()
            if p.grad is not None
        }
        optimizer.step()
        optimizer.zero_grad()
        objective.commit(batch)
    return result | method.checkpoint()


def go_on(case: Case, state: State) -> State:
    """Return the result of a new epoch and one step from a checkpoint, for any number of processes
    that wrote it."""
    method = case.build()
    method.restore(
        {name: value for name, value in state.items() if not name.startswith("gradient")}
    )
    method.start_epoch(1, CasePasses(case.made(), torch.float64))
    backward(case.objective(method), case.batch(STEPS))
    average_gradients([p for p in method.parameters() if p.requires_grad])
    return {
        n: p.grad for n, p in method.named_parameters() if p.grad is not None
    } | method.checkpoint()


def together(case: Case, both: list[State]) -> State:
    """Return the results of the main process, and the state of one process that takes the shards of
    all."""
    method = case.build()
    shards = {name: [one[name] for one in both] for name in method.sharded}
    names = method.state_dict().keys()
    method.restore({name: both[0][name] for name in names} | shards)
    return both[0] | method.checkpoint()


PLAIN_CASES = {name: Case(name) for name in choices(MethodConfig, "name", "hexa.methods")}


def work(checkpoint: str) -> dict[str, Any]:
    found = {name: train(case) for name, case in CASES.items()}
    of_one = torch.load(checkpoint)
    return found | {"on": {name: go_on(case, of_one[name]) for name, case in PLAIN_CASES.items()}}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    checkpoint = tmp_path_factory.mktemp("two") / "one.pt"
    torch.save({name: train(case) for name, case in PLAIN_CASES.items()}, checkpoint)
    return run_together(2, work, str(checkpoint))


@pytest.mark.parametrize("name", CASES)
def test_two_process_law(two: list[dict[str, Any]], name: str) -> None:
    """Gradients, parameters, statistics, queues and banks; identical on both processes where both hold them."""
    case = CASES[name]
    one = train(case)
    both = [results[name] for results in two]
    first = together(case, both)
    second = {n: v for n, v in both[1].items() if n not in case.made().method.method.sharded}
    close = TOLERANCE_OF_STEPS if "steps=" in name else TOLERANCE
    assert first.keys() == one.keys() >= second.keys()
    for key, value in one.items():
        if key in second:
            assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(
            first[key], value, atol=close, rtol=close, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_checkpoint_process_count(two: list[dict[str, Any]], name: str) -> None:
    """Clusters, queues and banks included: written by one and read by two, and the other way round."""
    case = PLAIN_CASES[name]
    one = go_on(case, train(case))
    for key, value in together(case, [results["on"][name] for results in two]).items():
        torch.testing.assert_close(
            value, one[key], atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, k=key: f"{k}: {m}"
        )
    back = go_on(case, together(case, [results[str(case)] for results in two]))
    for key, value in one.items():
        torch.testing.assert_close(
            back[key], value, atol=1e-8, rtol=1e-8, msg=lambda m, k=key: f"{k}: {m}"
        )
