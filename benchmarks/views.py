"""How fast views are made: the batched pipeline, its parts, and the same views by torchvision image by image.

    python benchmarks/views.py [--size 32] [--batch 256] [--threads 2] [--device cpu] [--out FILE.json]

Everything is measured in one run, in turns, and the median of the rounds is reported, with the fastest round beside it.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torchvision.transforms import v2

from hexa.data.views.config import RECIPES, ViewsConfig
from hexa.data.views.making import Views
from hexa.ops import geometry, photometric
from hexa.runtime.packages import provenance
from hexa.runtime.random import Stream
from hexa.runtime.resources import keep_freed_memory


def main() -> None:
    arguments, code = _arguments(), provenance()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as training does
    device, batch, size = torch.device(arguments.device), arguments.batch, arguments.size
    side = max(32, size if size <= 96 else round(size * 256 / 224))
    images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
    cases = {
        **_recipes(images, size),
        **_parts(images, size),
        **_by_torchvision(images[: min(batch, 32)], size),
    }
    cases["moco-v2 by whole matrices"] = (
        functools.partial(_whole, *cases["moco-v2"]),
        cases["moco-v2"][1],
    )
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(arguments.rounds + 1):
        for name, (work, count) in cases.items():
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_:  # the first one warms up
                seconds[name].append((time.perf_counter() - began) / count)
    result = {
        "date": date.today().isoformat(),
        **code,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
        },
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "source_pixels": side,
        "view_pixels": size,
        "batch": batch,
        "views_per_second": {
            name: round(1 / statistics.median(times)) for name, times in seconds.items()
        },
        "views_per_second_best": {name: round(1 / min(times)) for name, times in seconds.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


Case = tuple[Callable[[], Any], int]


def _recipes(images: Tensor, size: int) -> dict[str, Case]:
    """Whole pipelines, drawing included."""
    cases: dict[str, Case] = {}
    for name in RECIPES:
        views = Views(ViewsConfig.model_validate({"recipe": name, "size": size}))
        cases[name] = (
            lambda views=views: views(images, Stream(0)),
            views.config.total_views * len(images),
        )
    return cases


def _whole(work: Callable[[], Any], _: int) -> None:
    """The work without the sparse products of large views."""
    with patch.object(geometry, "SPARSE", 10**6):
        work()


def _parts(images: Tensor, size: int) -> dict[str, Case]:
    """Single operations, each on all images of the batch; and the crop without antialiasing by a sampling grid."""
    count, device = len(images), images.device
    numbers = torch.rand(count, geometry.UNIFORMS_PER_BOX)
    boxes = geometry.Boxes(
        *(value.to(device) for value in geometry.random_boxes(numbers, *images.shape[2:]))
    )
    flip = torch.rand(count, device=device) < 0.5
    crops = torch.rand(count, 3, size, size, device=device)
    factor, order = torch.rand(count), torch.randint(0, 24, (count,))
    drawn = photometric.Jitter(factor, factor, factor, factor - 0.5, order)
    jitter = drawn.select(photometric.hue_turn(drawn).argsort())
    sigma = (factor + 0.1).to(device)
    theta = torch.tensor([[0.7, 0.0, 0.1], [0.0, 0.7, 0.1]], device=device).expand(count, -1, -1)

    def by_grid() -> Tensor:
        grid = torch.nn.functional.affine_grid(theta, [count, 3, size, size], align_corners=False)
        return torch.nn.functional.grid_sample(images.float(), grid, align_corners=False)

    return {
        "crop and flip": (lambda: geometry.crop_resize(images, boxes, size, flip), count),
        "crop by grid, not antialiased": (by_grid, count),
        "colour jitter": (lambda: photometric.color_jitter(crops, jitter), count),
        "hue": (lambda: photometric.adjust_hue(crops, jitter.hue.to(device)), count),
        "blur": (
            lambda: photometric.gaussian_blur(crops, sigma, photometric.blur_radius(2.0, size)),
            count,
        ),
    }


def _by_torchvision(images: Tensor, size: int) -> dict[str, Case]:
    """MoCo-v2's views by torchvision's transforms of tensors, a loop over images."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.2, 1.0), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], p=0.5),
            v2.RandomHorizontalFlip(),
        ]
    )
    return {
        "moco-v2 by torchvision, image by image": (
            lambda: [transform(image) for image in images],
            len(images),
        )
    }


if __name__ == "__main__":
    main()
