"""Tests that need a GPU. On the CPU the same tests run with few cases, so that mistakes in the
tests are found everywhere."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

# cuBLAS reads it before its first product, and is not deterministic without
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch
from torch import Tensor

from benchmarks.memory import peak_bytes
from hexa.config import choices
from hexa.core import Batch, Method, MethodConfig
from hexa.data.loading.loaders import PretrainLoader
from hexa.data.sources.source import ArraySource
from hexa.data.views.making import Views, ViewsConfig
from hexa.evaluation import evaluate
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import Objective
from hexa.ops.kmeans import spherical_kmeans
from hexa.run.build import kernels
from hexa.runtime.precision import autocast, place
from hexa.runtime.random import Stream
from hexa.testing.cases import BATCH
from hexa.training import optimizers
from hexa.training.graph import Steps
from hexa.training.optimizers import OptimizerConfig, ScheduledOptimizer
from hexa.training.schedules import ScheduleConfig
from tests.laws.cases import Case, fitting, one_step

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])

BOTH: dict[str, dict[str, Any]] = {"adversarial": {}, "cutmix": {}}
SCHEMES: list[dict[str, dict[str, Any]]] = [
    {**BOTH, "cmxA": {"kind": "cutmix", "source": "adversarial"}},
    {"adversarial": {"norm": "l2", "unit": "pixel", "steps": 2, "generation": "aux_eval"}},
    {"cutmix": {"per_sample": True}},
    {"mixup": {}, "vat": {}, "randaugment": {}},
]
CONFIGS = choices(MethodConfig, "name", "hexa.methods")
METHODS = sorted(CONFIGS)
#: PCL draws the prototypes that images are compared with on the device, where generators differ; here it sees all.
ALIKE: dict[str, dict[str, Any]] = {"pcl-v2": {"num_negatives": 64}}


def of(method: str, scheme: dict[str, dict[str, Any]]) -> Case:
    """A case with the hard examples of a scheme that the method allows, one by one."""
    return fitting(Case(method, ALIKE.get(method, {}), scheme))


CASES = [of(method, scheme) for method in METHODS for scheme in SCHEMES]
CASES += [
    Case("moco", {"mixed_positives": positives}, SCHEMES[0]) for positives in ("pair", "batch")
]
CASES += [Case("moco", {}, BOTH, kept=True), Case("simclr", {"adversarial_terms": "joint"}, BOTH)]


def on_cuda(cases: list[Any], few: list[Any]) -> list[Any]:
    """Pairs of a case and a device: all cases on a GPU, few on the CPU."""
    return [*(pytest.param(c, "cuda", marks=NEEDS_CUDA, id=f"{c}-cuda") for c in cases),
            *(pytest.param(c, "cpu", id=f"{c}-cpu") for c in few)]  # fmt: skip


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute convolutions of fp32 in fp32, as matrix products are by default: TF32 keeps ten bits,
    and CPUs lack it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def never_waits() -> Iterator[Any]:
    """Return a function; after its call, waiting for the GPU is an error until the end of the
    test."""
    yield lambda: torch.cuda.is_available() and torch.cuda.set_sync_debug_mode("error")
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")


def on(device: str, data: Batch, channels_last: bool = False) -> Batch:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    crops = tuple(crop.to(device, memory_format=layout) for crop in data.crops)
    return replace(data, crops=crops, index=data.index.to(device))


def sgd(method: Method) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9
    )


@pytest.mark.parametrize(("case", "device"), on_cuda(CASES, CASES[:1]))
def test_bf16_step_without_sync(case: Case, device: str, never_waits: Any) -> None:
    """A step in bf16 is finite and never waits for the device."""
    where = torch.device(device)
    # on a CPU, torch's convolutions of so few channels write beyond their memory in channels_last
    method = (
        place(case.build(torch.float32), where) if device == "cuda" else case.build(torch.float32)
    )
    objective = case.objective(method, autocast=lambda: autocast("bf16", where))
    optimizer = sgd(method)
    batches = [
        on(device, case.batch(step, dtype=torch.float32), device == "cuda") for step in range(3)
    ]
    losses = []
    for step, data in enumerate(batches):
        if step:
            never_waits()
        for term in objective.losses(data):
            term.loss.backward()
            losses.append(term.loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        objective.commit(data)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.stack(losses).isfinite().all())
    assert all(bool(p.isfinite().all()) for p in method.parameters())


#: Methods whose steps a GPU may replay, each with both hard examples.
STATIC = [Case(name, {}, BOTH) for name in METHODS if CONFIGS[name].method.is_static]


@pytest.mark.parametrize(("case", "device"), on_cuda(STATIC, STATIC[:1]))
def test_captured_steps(case: Case, device: str) -> None:
    captured_steps(case, device, OptimizerConfig(learning_rate=0.1))


@pytest.mark.parametrize("name", ["larc", "lars", "adamw", "muon"])
@each_device
def test_captured_optimizers(name: Any, device: str) -> None:
    captured_steps(STATIC[0], device, OptimizerConfig(name=name, learning_rate=0.01))


def captured_steps(case: Case, device: str, config: OptimizerConfig) -> None:
    """Replayed steps end with the bits of eager ones. On a CPU a call stands for the capture."""
    where = torch.device(device)
    ends = []
    for replayed in (False, True):
        method = place(case.build(torch.float32), where)
        objective = case.objective(method, autocast=lambda: autocast("fp32", where))
        optimizer = ScheduledOptimizer(
            optimizers.build(method.parameters(), config, BATCH), config, ScheduleConfig(), 2, 8
        )
        capture = None if device == "cuda" else (lambda run: run)
        said: list[str] = []
        steps = Steps(objective, optimizer, where, replayed, said.append, capture)
        optimizer.capturable = True  # rates as numbers would round differently
        with kernels(deterministic=True):
            # further steps are of the first phase of every method
            for step in range(7):
                data = on(device, case.batch(step, dtype=torch.float32), device == "cuda")
                steps.take(data, step)
        assert (steps.replays, said) == (replayed, [])
        ends.append({name: value.cpu() for name, value in method.state_dict().items()})
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def losses_and_gradients(
    case: Case, device: str, channels_last: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of a step in fp64, and the gradients of all its terms together; on the CPU."""
    built = case.build(torch.float64)
    method = place(built, torch.device(device)) if channels_last else built.to(device)
    losses = []
    for term in case.objective(method).losses(on(device, case.batch(), channels_last)):
        term.loss.backward()
        losses.append(term.loss.detach().cpu())
    return torch.stack(losses), {
        name: p.grad.cpu() for name, p in method.named_parameters() if p.grad is not None
    }


def agree(
    first: tuple[Tensor, dict[str, Tensor]], second: tuple[Tensor, dict[str, Tensor]]
) -> None:
    """Compare fp64 results of another summation order: losses to 1e-9, gradients to 1e-7."""
    torch.testing.assert_close(first[0], second[0], atol=1e-9, rtol=1e-9)
    assert first[1].keys() == second[1].keys()
    for name, gradient in first[1].items():
        torch.testing.assert_close(
            second[1][name], gradient, atol=1e-7, rtol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


PLAIN = [of(method, BOTH) for method in METHODS]


@pytest.mark.parametrize(("case", "device"), on_cuda(PLAIN, PLAIN[:1]))
def test_cpu_gpu_agreement(case: Case, device: str) -> None:
    expected = losses_and_gradients(case, "cpu")
    for channels_last in {False, device == "cuda"}:
        agree(expected, losses_and_gradients(case, device, channels_last))


@pytest.mark.parametrize(("case", "device"), on_cuda(PLAIN, PLAIN[:1]))
def test_device_resume_bits(case: Case, device: str) -> None:
    """Four steps, and two steps of a method that is then restored into another for two more."""

    def begun() -> tuple[Method, Objective, torch.optim.Optimizer]:
        method = case.build(torch.float32).to(device)
        return method, case.objective(method), sgd(method)

    def train(objective: Objective, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            one_step(objective, optimizer, on(device, case.batch(step, dtype=torch.float32)))

    with kernels(deterministic=True):
        whole, objective, optimizer = begun()
        train(objective, optimizer, range(2))
        torch.save([whole.checkpoint(), optimizer.state_dict()], file := io.BytesIO())
        file.seek(0)
        saved = torch.load(file, map_location="cpu")
        train(objective, optimizer, range(2, 4))
        further, objective, optimizer = begun()
        further.restore(saved[0])
        optimizer.load_state_dict(saved[1])
        train(objective, optimizer, range(2, 4))
    resumed = further.state_dict()
    assert [
        name for name, value in whole.state_dict().items() if not torch.equal(value, resumed[name])
    ] == []


@each_device
def test_resident_view_device_agreement(device: str) -> None:
    """Views of resident images equal those on the CPU."""
    coarse = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = (
        255
        * torch.nn.functional.interpolate(
            coarse,
            (32, 32),
            mode="bilinear",
        )
    ).byte()

    def loader(where: str) -> PretrainLoader:
        views = Views(ViewsConfig.model_validate({"recipe": "moco-v2", "size": 24}))
        return PretrainLoader(
            ArraySource(images, name="drawn"), views, 16, Stream(0), torch.device(where)
        )

    expected = list(loader("cpu").epoch(0))
    found = list(loader(device).epoch(0))
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        assert {tensor.device.type for tensor in (*ours.crops, ours.index)} == {device}
        assert torch.equal(ours.index.cpu(), theirs.index)
        for crop, other in zip(ours.crops, theirs.crops, strict=True):
            torch.testing.assert_close(
                crop.cpu(), other, atol=1e-3, rtol=0
            )  # a quarter of a grey level


@each_device
def test_kmeans_device_determinism(device: str) -> None:
    """Clusters equal those on the CPU, and are the same every time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(
        torch.randn(2000, 16, generator=generator, dtype=torch.float64), dim=1
    )
    valid = torch.rand(2000, generator=generator) < 0.9

    def clusters(where: str, dtype: torch.dtype) -> Any:
        start = torch.Generator().manual_seed(1)
        return spherical_kmeans(
            rows.to(where, dtype), 50, start, iterations=5, valid=valid.to(where)
        )

    ours = clusters(device, torch.float64)
    theirs = clusters("cpu", torch.float64)
    torch.testing.assert_close(ours.centroids.cpu(), theirs.centroids, atol=1e-9, rtol=1e-9)
    assert torch.equal(ours.assignments.cpu(), theirs.assignments)
    first = clusters(device, torch.float32)
    second = clusters(device, torch.float32)
    assert torch.equal(first.centroids, second.centroids)
    assert torch.equal(first.assignments, second.assignments)


@each_device
def test_hard_example_peak_memory(device: str) -> None:
    """The peak of a step with adversarial and cut-mixed views is at most 1.05 times that of the plain step."""
    peaks = []
    for scheme in ({}, BOTH):
        case = Case("moco", {"bn_groups": 1}, scheme)
        network = build(NetworkConfig(name="small-resnet", widths=(16, 32)))
        method = case.build(torch.float32, network).to(device)
        objective = case.objective(method)
        optimizer = sgd(method)
        generator = torch.Generator().manual_seed(0)
        count = 32 if device == "cpu" else 512
        crops = tuple(
            torch.rand(count, 3, 32, 32, generator=generator).to(device) for _ in range(2)
        )
        data = Batch(crops, torch.arange(count, device=device), Stream(0), 1)
        objective._checked |= scheme.keys()  # what a run's first step asks of pixels

        def step(
            objective: Objective = objective, optimizer: Any = optimizer, data: Batch = data
        ) -> None:
            for term in objective.losses(data):
                term.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        peaks.append(
            peak_bytes(step, torch.device(device), [*method.state_dict().values(), *crops])
        )
        del case, network, method, objective, optimizer, data, step
    assert peaks[1] <= 1.05 * peaks[0], peaks


@NEEDS_CUDA
@pytest.mark.parametrize(
    ("protocol", "options", "points"),
    [
        ("knn", {}, 0.5),
        ("probe", {}, 0.5),
        ("robust", {"images": 100, "epsilons": [4.0], "steps": 3, "targets": 1}, 3.0),
        ("robust", {"images": 60, "preset": "corruptions"}, 3.0),
    ],
)
def test_evaluation_cpu_gpu_agreement(
    protocol: str, options: dict[str, Any], points: float
) -> None:
    """In percent, in fp32: rounding may change a neighbour or an attack of one image in 360 (100,
    60)."""
    found = [
        evaluate(
            protocol,
            "random:small-resnet-16-32",
            "digits",
            device=device,
            precision="fp32",
            **options,
        )["metrics"]
        for device in ("cpu", "cuda")
    ]
    assert found[0].keys() == found[1].keys()
    assert all(
        abs(found[0][name] - found[1][name]) <= points
        for name in found[0]
        if name.startswith("top1")
    )
