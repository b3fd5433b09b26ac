"""Our MoCo-v2 step beside a bare hand-written loop and beside lightly's own MoCo example, in one run on the same cores.

    python benchmarks/against_others.py --result benchmarks/DATE-against-others.json

Same network (ResNet-18, small-image stem, linear head), batch and 32-pixel images for all; interleaved, medians of
several repeats. lightly is driven as its MoCo example does (its views in DataLoader workers, its loss with memory bank,
its momentum update; no shuffling): as shipped (fp32), in our precision, and in our precision and memory format.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import MEASURE, peak_bytes
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from hexa import recipes
from hexa.core import Batch, Setting
from hexa.data.views.making import Views
from hexa.nn.backbones import build
from hexa.objective import Objective
from hexa.runtime import precision as precisions
from hexa.runtime.packages import provenance
from hexa.runtime.random import Stream

IMAGES = 2048


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=16, help="in a row; more than lightly's workers prepare ahead"
    )
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 2, help="lightly's DataLoader workers"
    )
    parser.add_argument("--result", type=Path)
    return parser.parse_args()


class Ours:
    """One step of the recipe, on prepared crops or from the images."""

    def __init__(
        self, given: argparse.Namespace, device: torch.device, precision: Any, groups: int
    ) -> None:
        self.given, self.device = given, device
        experiment = recipes.get("cifar10-moco-v2")
        torch.manual_seed(0)
        config = experiment.method.model_copy(update={"bn_groups": groups})
        method = config.build(build(experiment.network), Setting(IMAGES, given.batch_size))
        method.to(device, memory_format=torch.channels_last)
        self.objective = Objective(method, autocast=lambda: precisions.autocast(precision, device))
        self.optimizer = sgd(method)
        self.views = Views(experiment.views)
        self.images = pictures().to(device)
        self.step = 0
        stream = Stream(0).child("step", -1)
        self.prepared = self.views(self.images[: given.batch_size], stream)

    def __call__(self, with_data: bool) -> None:
        stream = Stream(0).child("step", self.step)
        index = torch.arange(self.given.batch_size, device=self.device)
        chosen = torch.randint(IMAGES, (self.given.batch_size,), generator=stream.generator()).to(
            self.device
        )
        crops = self.views(self.images[chosen], stream) if with_data else self.prepared
        crops = tuple(crop.contiguous(memory_format=torch.channels_last) for crop in crops)
        batch = Batch(crops, index, stream)
        for term in self.objective.losses(batch):
            term.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.objective.commit(batch)
        self.step += 1


class Bare:
    """MoCo-v2 written down as briefly as possible."""

    def __init__(
        self, given: argparse.Namespace, device: torch.device, precision: Any, _groups: int = 1
    ) -> None:
        self.device, self.precision = device, precision
        torch.manual_seed(0)
        backbone = build(recipes.get("cifar10-moco-v2").network)
        self.query = nn.Sequential(backbone, nn.Linear(512, 128)).to(
            device, memory_format=torch.channels_last
        )
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue = F.normalize(torch.randn(4096, 128, device=device))
        self.pointer = 0
        self.optimizer = sgd(self.query)
        size = (given.batch_size, 3, 32, 32)
        self.crops = [
            torch.rand(size).to(device, memory_format=torch.channels_last) for _ in range(2)
        ]

    def __call__(self) -> None:
        with precisions.autocast(self.precision, self.device):
            q = F.normalize(self.query(self.crops[0]).float())
            with torch.no_grad():
                k = F.normalize(self.key(self.crops[1]).float())
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.T.clone()], 1) / 0.1
        F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            self.queue[self.pointer : self.pointer + len(k)] = k
        self.pointer = (self.pointer + len(k)) % len(self.queue)


class Pictures(torch.utils.data.Dataset[Any]):
    """The same images as PIL, for lightly's views."""

    def __init__(self, transform: Callable[[Image.Image], Any]) -> None:
        self.images, self.transform = pictures().permute(0, 2, 3, 1).numpy(), transform

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.fromarray(self.images[i % IMAGES]))


class Lightly:
    """lightly's MoCo example with this network, in a precision and memory format."""

    def __init__(
        self,
        given: argparse.Namespace,
        device: torch.device,
        precision: Any = "fp32",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import MoCoProjectionHead
        from lightly.models.utils import deactivate_requires_grad
        from lightly.transforms import MoCoV2Transform

        self.device, self.precision, self.format = device, precision, memory_format
        torch.manual_seed(0)
        backbone = build(recipes.get("cifar10-moco-v2").network)
        self.query = nn.ModuleList([backbone, MoCoProjectionHead(512, 512, 128)])
        self.query.to(device, memory_format=self.format)
        self.key = copy.deepcopy(self.query)
        deactivate_requires_grad(self.key)
        self.criterion = NTXentLoss(memory_bank_size=(4096, 128))
        self.optimizer = sgd(self.query)
        views = Pictures(MoCoV2Transform(input_size=32, gaussian_blur=0.0))
        sampler = torch.utils.data.RandomSampler(range(IMAGES), replacement=True, num_samples=10**6)
        loader = torch.utils.data.DataLoader(
            views,
            given.batch_size,
            sampler=sampler,
            num_workers=given.workers,
            drop_last=True,
            persistent_workers=True,
        )
        self.batches: Iterator[Any] = iter(loader)

    def __call__(self) -> None:
        from lightly.models.utils import update_momentum

        for fast, slow in zip(self.query, self.key, strict=True):
            update_momentum(fast, slow, m=0.99)
        first, second = (
            view.to(self.device, memory_format=self.format) for view in next(self.batches)
        )
        with precisions.autocast(self.precision, self.device):
            q = self.query[1](self.query[0](first))
            with torch.no_grad():
                k = self.key[1](self.key[0](second))
        self.criterion(q.float(), k.float()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.SGD(parameters, lr=0.06, momentum=0.9, weight_decay=5e-4)


def pictures() -> Tensor:
    """Smooth noise, uint8 [N, 3, 32, 32]."""
    noise = np.random.default_rng(0).random((IMAGES, 3, 8, 8), dtype=np.float32)
    return (F.interpolate(torch.from_numpy(noise), size=32, mode="bilinear") * 255).byte()


def main() -> None:
    given, code = arguments(), provenance()
    device = precisions.pick_device(given.device)
    precision = precisions.resolve(given.precision, device)
    ours, grouped = Ours(given, device, precision, 1), Ours(given, device, precision, 8)
    runners: dict[str, Callable[[], None]] = {
        "bare loop": Bare(given, device, precision),
        "hexa step": lambda: ours(False),
        "hexa with data": lambda: ours(True),
        "hexa with data, 8 batch-norm groups": lambda: grouped(True),
    }
    if importlib.util.find_spec("lightly"):
        runners["lightly, our precision and memory format"] = Lightly(
            given, device, precision, torch.channels_last
        )
        runners["lightly, our precision"] = Lightly(given, device, precision)
        runners["lightly as shipped"] = Lightly(given, device)
    else:
        print(
            "against_others: lightly is not installed, so it is not among the results",
            file=sys.stderr,
        )
    memory = {name: step_bytes(runners[name], device) for name in ("bare loop", "hexa step")}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for repeat in range(given.repeats + 1):
        for name, run in runners.items():
            synchronize(device)
            begin = time.perf_counter()
            steps = given.steps if repeat else 1
            for _ in range(steps):
                run()
            synchronize(device)
            if repeat:
                times[name].append((time.perf_counter() - begin) / steps)
    rates = {name: given.batch_size / statistics.median(seconds) for name, seconds in times.items()}
    spread = {
        name: [given.batch_size / max(s), given.batch_size / min(s)] for name, s in times.items()
    }
    result = {
        **code,
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__, "precision": precision, "batch_size": given.batch_size, "repeats": given.repeats,
        "steps": given.steps,
        "images_per_second": rates, "range": spread, "lightly": "lightly as shipped" in runners,
        "step_bytes": memory, "memory_measure": MEASURE[device.type],
        "ratios": {
            "hexa step / bare loop": rates["hexa step"] / rates["bare loop"],
            "hexa with data / bare loop": rates["hexa with data"] / rates["bare loop"],
            "memory, hexa step / bare loop": memory["hexa step"] / memory["bare loop"],
            **{f"hexa with data / {name}": rates["hexa with data"] / rates[name] for name in rates if "light" in name},
        },
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    if given.result:
        given.result.write_text(text + "\n")
    print(text)


def step_bytes(step: Callable[[], None], device: torch.device) -> int:
    """The most bytes of tensors that a step adds to those that stay, after a first one."""
    step()
    standing = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    return peak_bytes(step, device, ()) - standing


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
