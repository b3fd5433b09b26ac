#!/usr/bin/env python3
"""How many calls of torch does a training step make? Every one is launched on a GPU, and small networks wait for that.

    python benchmarks/operations.py [--out FILE.json --name NAME] [CASE …]

Counted on the CPU with the branches that a GPU takes: views and empty tensors are left out, a multi-tensor call counts
as one. The numbers do not depend on the number of images or their size. The third step of a run is counted.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hexa.core import Batch
from hexa.objective import Objective
from hexa.recipes import get
from hexa.recipes.experiment import Experiment, override
from hexa.run import build
from hexa.run.build import Machine
from hexa.runtime import precision
from hexa.runtime.random import Stream
from hexa.training.journal import environment
from hexa.training.optimizers import ScheduledOptimizer
from hexa.training.step import prepared, step

MOCO = "cifar10-moco-v2"
#: Enough for eight groups of two.
BATCH = 32
SMALL = {
    "batch_size": BATCH,
    "method.queue_size": 64,
    "training.precision": "bf16",
    "training.device": "cpu",
}
LITE0 = {
    "network.name": "efficientnet_lite0",
    "views.size": 64,
    "batch_size": 8,
    "training.precision": "bf16",
    "training.device": "cpu",
    "hard_examples.adversarial.steps": 2,
    "hard_examples.adversarial.step_size": 3.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "MoCo-v2, 1 group": (MOCO, {**SMALL, "method.bn_groups": 1}),
    "MoCo-v2, 8 groups": (MOCO, SMALL),
    "MoCo-v2, 8 groups, adversarial": (f"{MOCO}+adversarial", SMALL),
    "MoCo-v2, 8 groups, adversarial, cut-mixed": (f"{MOCO}+adversarial+cutmix", SMALL),
    "MoCo-v2, 1 group, adversarial, cut-mixed": (
        f"{MOCO}+adversarial+cutmix",
        {**SMALL, "method.bn_groups": 1},
    ),
    "harden, EfficientNet-Lite0, two attack steps": ("teacher", LITE0),
}
#: Calls that launch nothing.
FREE = ("empty", "detach", "alias", "lift_fresh", "new_empty", "_unsafe_view", "promote_types")
#: What is counted apart: copies and changes of type; and calls that compute layers.
CASTS = ("_to_copy", "copy_", "clone")
LAYERS = (
    "convolution",
    "batch_norm",
    "relu",
    "hardtanh",
    "threshold",
    "mm",
    "addmm",
    "bmm",
    "pool",
    "mean.dim",
)


class Counting(TorchDispatchMode):
    """Counts the calls inside the context that launch something, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.name().partition("::")[2]
        is_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns
        )
        if function.namespace != "profiler" and not is_view and not name.startswith(FREE):
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


def built(experiment: Experiment) -> tuple[Objective, ScheduledOptimizer, Machine]:
    """A training with random weights; that of `teacher` keeps its batch-norm statistics, as `harden` does."""
    machine = Machine.of(experiment)
    torch.manual_seed(0)
    kept = experiment.method.name == "teacher"
    setting = replace(build.setting_of(experiment, 2 * experiment.batch_size), keep_statistics=kept)
    network = build.backbones.build(experiment.network)
    method = precision.place(experiment.method.build(network, setting), machine.device)
    method.train()
    objective = build.build_objective(experiment, method, machine)
    optimizer = build.build_optimizer(experiment, method, 100)
    return objective, optimizer, machine


def batch_of(experiment: Experiment, number: int, device: torch.device) -> Batch:
    """Random crops of step `number`."""
    size = experiment.views.size
    count = experiment.batch_size
    stream = Stream(0).child("step", number)
    generator = stream.child("pixels").generator(device)
    crops = torch.rand(
        experiment.views.total_views, count, 3, size, size, generator=generator, device=device
    )
    index = torch.arange(count, device=device)
    return prepared(Batch(tuple(crops), index, stream, number), True)


def count(experiment: Experiment) -> dict[str, Any]:
    """Calls of the third step of a training."""
    objective, optimizer, machine = built(experiment)
    for group in optimizer.optimizer.param_groups:
        group["foreach"] = True  # torch's choice on a GPU
    for number in range(3):
        batch = batch_of(experiment, number, machine.device)
        counting = Counting()
        with counting:
            step(objective, optimizer, batch, number)
    calls = counting.calls
    casts = sum(n for name, n in calls.items() if name.startswith(CASTS))
    layers = sum(n for name, n in calls.items() if any(part in name for part in LAYERS))
    every = sum(calls.values())
    return {
        "calls": every,
        "layers": layers,
        "casts and copies": casts,
        "others": every - layers - casts,
        "by name": dict(calls.most_common(12)),
    }


def main() -> None:
    """Count each case, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, help="add to this file")
    parser.add_argument("--name", default="now", help="under this name (default: now)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # take the branches of a GPU
    Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment, method-assign]
    found = {}
    for name in given.cases:
        recipe, fields = CASES[name]
        found[name] = count(override(get(recipe), fields))
        print(
            name, {key: value for key, value in found[name].items() if key != "by name"}, flush=True
        )
    about = environment(torch.device("cpu"), "bf16")
    made = {name: about[name] for name in ("commit", "source", "platform", "versions", "time")}
    if given.out:
        content = json.loads(given.out.read_text()) if given.out.exists() else {}
        content[given.name] = {**made, "steps": found}
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
