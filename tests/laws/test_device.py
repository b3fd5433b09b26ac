"""Every method × every hard example on a simulated GPU: tensors on the device stay there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from hexa.config import choices
from hexa.core import Batch, Method, MethodConfig
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.sources.source import ArraySource
from hexa.data.views.config import RECIPES
from hexa.data.views.making import Views, ViewsConfig
from hexa.methods.teacher import Teacher
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import STD
from hexa.runtime.random import Stream
from hexa.testing.cases import BATCH, CasePasses
from hexa.training.graph import Steps
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer, build as build_optimizer
from hexa.training.schedules import ScheduleConfig
from tests.laws.cases import NETWORK, STRAINING, Case, all_cases, backward, fitting
from tests.laws.stand_in import DEVICE, OnDevice, stand_in

METHOD_CONFIGS = choices(MethodConfig, "name", "hexa.methods")
BOTH = {"adversarial": {}, "cutmix": {}, "cmxA": {"kind": "cutmix", "source": "adversarial"}}


#: Each method with every kind of hard example, and each of its variants with two; for those that strain the kinds, all
#: variants of each, and statistics that are kept.
CASES = [
    case
    for case in all_cases()
    if case.hard_examples and not case.sizes and (not case.kept or case.method in STRAINING)
]


class OnDevicePasses(CasePasses):
    """The passes of a case, on the device."""

    def views(self) -> Iterator[Batch]:
        return map(on_device, super().views())

    def images(self) -> Iterator[Batch]:
        return map(on_device, super().images())


def on_device(data: Batch) -> Batch:
    crops = tuple(crop.to(DEVICE, non_blocking=True) for crop in data.crops)
    return replace(data, crops=crops, index=data.index.to(DEVICE, non_blocking=True))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.method}-{'+'.join(case.hard_examples)}-{case.fields}"
)
def test_step_without_sync(case: Case) -> None:
    """A training step never makes the host wait; the earlier start of the epoch may."""
    method = small(case)
    with stand_in() as device:
        method.to(DEVICE)
        objective = case.objective(method)
        optimizer = torch.optim.SGD(
            [p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9
        )
        objective._checked |= {STD, *case.hard_examples}  # what a run's first step asks of pixels
        data = on_device(case.batch(1, dtype=torch.float32))
        if isinstance(method, Teacher):
            method.teacher(data.crops[0])  # the first pass folds its batch-norms
        device.waits.clear()
        backward(objective, data)
        optimizer.step()
        optimizer.zero_grad()
        objective.commit(data)
        assert not device.waits
    assert stays(method)


@pytest.mark.parametrize(
    "name", [name for name, config in METHOD_CONFIGS.items() if config.method.is_static]
)
def test_captured_step(name: str) -> None:
    """What a CUDA graph repeats is on the device alone: terms, update, commit, and the facts of a log line."""
    case = fitting(Case(name, {}, BOTH))
    method = small(case)
    with stand_in() as device:
        method.to(DEVICE)
        config = OptimizerConfig(name="sgd", learning_rate=0.1)
        parameters = [p for p in method.parameters() if p.requires_grad]
        optimizer = ScheduledOptimizer(
            build_optimizer(parameters, config, BATCH), config, ScheduleConfig(), 1, 50
        )
        found: list[dict[str, int]] = []

        def capture(run: Callable[[], None]) -> Callable[[], None]:
            device.waits.clear()
            device.captured = True
            run()
            device.captured = False
            found.append(dict(device.waits))
            return run

        steps = Steps(case.objective(method), optimizer, DEVICE, True, capture=capture)
        for number in range(9):
            steps.take(on_device(case.batch(number, dtype=torch.float32)), number, logged=True)
    assert found
    assert not any(found)


@pytest.mark.parametrize("name", sorted(METHOD_CONFIGS))
def test_epoch_start_device(name: str) -> None:
    """Between epochs the host may wait."""
    case = Case(name)
    method = small(case)
    with stand_in():
        method.to(DEVICE)
        method.start_epoch(0, OnDevicePasses(case.made(), torch.float32))
    assert stays(method)


def small(case: Case) -> Method:
    network = NetworkConfig(name="small-resnet", widths=(4,), **NETWORK.get(case.method, {}))
    return case.build(torch.float32, build(network))


def stays(method: Method) -> bool:
    """Return whether the whole state is finite and on the device."""
    tensors = [*method.parameters(), *method.buffers()]
    return all(
        isinstance(tensor, OnDevice) and bool(tensor.elem.isfinite().all()) for tensor in tensors
    )


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_resident_views_without_sync(recipe: str) -> None:
    """Views of resident images never wait."""
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    with stand_in() as device:
        views = Views(ViewsConfig.model_validate({"recipe": recipe, "size": 16}))
        batches = PretrainLoader(
            ArraySource(images, name="drawn"), views, 8, Stream(0), DEVICE
        ).epoch(0)
        next(batches)
        device.waits.clear()
        batch = next(batches)
        assert not device.waits
        assert {tensor.device for tensor in (*batch.crops, batch.index)} == {DEVICE}
