#!/usr/bin/env python3
"""Time replayed and eager steps on a GPU, and compare the bits of their final weights.

    python benchmarks/graph.py CASE… [--steps 20] [--arms eager replayed compiled both] [--small]

Each arm trains from the same seed on the same random crops and prints a line of JSON at once: milliseconds of a step,
kernels and their milliseconds, memory, seconds until all is warm, and a hash of the weights after the same number of
steps, which `eager` and `replayed` must share if kernels are deterministic. --small runs on a CPU, with a capture that
calls the step again: it shows that this script works, and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from operations import BATCH, CASES as COUNTED, MOCO, batch_of, built
from torch.profiler import ProfilerActivity, profile

from hexa.nn.encoder import Encoder
from hexa.recipes import get
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import kernels
from hexa.training.graph import WARM_UP, Steps

ON_GPU = torch.cuda.is_available()
WIDE = {"batch_size": 512, "method.queue_size": 4096, "training.device": "auto"}
HARDEN = COUNTED["harden, EfficientNet-Lite0, two attack steps"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "harden": (
        HARDEN[0],
        {**HARDEN[1], "views.size": 96, "batch_size": 32, "training.device": "auto"},
    ),
    "moco1": (MOCO, {**WIDE, "method.bn_groups": 1}),
    "moco8": (MOCO, WIDE),
    "hexa8": (f"{MOCO}+adversarial+cutmix", WIDE),
    "resnet50": (
        MOCO,
        {
            **WIDE,
            "batch_size": 256,
            "network.name": "resnet50",
            "network.small_stem": False,
            "views.size": 224,
            "method.bn_groups": 1,
        },
    ),
}
#: For a CPU.
SMALL = {"batch_size": BATCH, "training.precision": "fp32"}


def again(run: Callable[[], None]) -> Callable[[], None]:
    """Stands for a capture on a CPU."""
    return run


def wait() -> None:
    """Until the GPU is done."""
    if ON_GPU:
        torch.cuda.synchronize()


def digest(tensors: list[torch.Tensor]) -> str:
    """A hash of their bits."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def profiled(work: Callable[[], None]) -> dict[str, Any]:
    """Kernels of a step, their milliseconds, and the longest by name."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        wait()
    events = [event for event in found.events() if str(event.device_type).endswith("CUDA")]
    by_name = Counter[str]()
    for event in events:
        by_name[event.name[:70]] += event.time_range.elapsed_us()
    longest = [(name, round(us / 1e3, 3)) for name, us in by_name.most_common(12)]
    return {"kernels": len(events), "ms of kernels": by_name.total() / 1e3, "longest": longest}


def measured(experiment: Experiment, arm: str, count: int) -> dict[str, Any]:
    """Train `count` steps once all is warm."""
    begin = time.perf_counter()
    objective, optimizer, machine = built(experiment)
    if arm in ("compiled", "both"):
        for module in objective.method.modules():
            if isinstance(module, Encoder):
                module.compile()
    said: list[str] = []
    replayed = arm in ("replayed", "both")
    capture = None if ON_GPU else again
    steps = Steps(objective, optimizer, machine.device, replayed, said.append, capture)
    optimizer.capturable = True  # the same numbers in all arms
    batches = [batch_of(experiment, number, machine.device) for number in range(WARM_UP + 2)]

    def take(number: int) -> None:
        batch = batches[number % len(batches)]
        steps.take(batch, number)

    for number in range(WARM_UP + 2):
        take(number)
    wait()
    found: dict[str, Any] = {"s until warm": time.perf_counter() - begin}
    begin = time.perf_counter()
    for number in range(WARM_UP + 2, WARM_UP + 2 + count):
        take(number)
    launched = time.perf_counter() - begin
    wait()
    found["ms"] = 1e3 * (time.perf_counter() - begin) / count
    found["ms until launched"] = 1e3 * launched / count
    found["weights"] = digest(list(objective.method.parameters()))
    found["replays"] = steps.replays
    found["said"] = said
    if ON_GPU:
        found |= profiled(lambda: take(WARM_UP + 2 + count))
        found["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def main() -> None:
    """Measure each arm of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", choices=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--arms", nargs="+", default=["eager", "replayed", "compiled", "both"])
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    for name in given.cases:
        recipe, fields = CASES[name]
        small = {**SMALL, "views.size": 64 if name == "harden" else 32} if given.small else {}
        experiment = override(get(recipe), {**fields, **small})
        for arm in given.arms:
            try:
                with kernels(deterministic=False):
                    row = measured(experiment, arm, given.steps)
            except Exception as error:
                row = {"failed": f"{type(error).__name__}: {error}"[:800]}
            print(json.dumps({"case": name, "arm": arm, **row}), flush=True)
            torch._dynamo.reset()
            if ON_GPU:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
