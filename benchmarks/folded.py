"""Time feature extraction with and without batch-norms folded into convolutions, in turns in one run.

    python benchmarks/folded.py --data DATA --result benchmarks/DATE-folded.json

DATA holds voc2007/VOCdevkit. `plain` is hexa.evaluation.features.extract through the network as it is, `folded` the
same as it is by default. EfficientNet-Lite0 at 224 pixels, weights drawn, statistics stirred. One thread, no workers.
Seconds are those of the processor; images are decoded before, so that the networks are compared, and the share that
decoding would add is named. The ratio of each round is that of its two neighbours in time; the median is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries read it

import numpy as np
import torch

from hexa.data import open_source
from hexa.data.loading.evaluation_stream import evaluation_batches
from hexa.data.sources.source import ArraySource, Subset
from hexa.evaluation.features import extract, transform_of
from hexa.runtime.packages import provenance
from hexa.runtime.precision import Precision, place
from hexa.weights.pretrained import load_backbone

NETWORK = "random:efficientnet_lite0"
SIZE = 224


def stir(network: torch.nn.Module) -> None:
    """Give batch-norms statistics, scales and shifts as after a training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)


def measure(data: Path, images: int, rounds: int, precision: Precision) -> dict[str, Any]:
    backbone = load_backbone(NETWORK, size=SIZE)
    stir(backbone)
    photographs = open_source(f"voc:{data / 'voc2007' / 'VOCdevkit'}", "test")
    transform = transform_of(backbone)
    begin = time.process_time()
    batches = evaluation_batches(Subset(photographs, np.arange(images)), transform, num_workers=0)
    pixels = torch.cat([(made * 255).round().to(torch.uint8) for made, _ in batches])
    decoding = time.process_time() - begin
    source = ArraySource(pixels)
    how: dict[str, Any] = {"batch_size": 32, "precision": precision, "num_workers": 0}
    arms: dict[str, dict[str, Any]] = {
        "plain": {"forward": place(backbone.eval(), torch.device("cpu"))},
        "folded": {},
    }
    features = {}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(1 + rounds):
        for name, further in arms.items():
            begin = time.process_time()
            features[name] = extract(backbone, source, **how, **further)[0]
            if number:  # the first warms up
                seconds[name].append(time.process_time() - begin)
    difference = (features["plain"] - features["folded"]).abs().max() / features[
        "plain"
    ].abs().max()
    ratios = [
        plain / folded for plain, folded in zip(seconds["plain"], seconds["folded"], strict=True)
    ]
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    whole = (medians["plain"] + decoding) / (medians["folded"] + decoding)
    return {
        "ratio": statistics.median(ratios),
        "ratio_with_decoding": whole,
        "ratios": ratios,
        "images_per_cpu_second": {name: images / taken for name, taken in medians.items()},
        "decoding_images_per_cpu_second": images / decoding,
        "cpu_seconds": seconds,
        "largest_difference": float(difference),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    code = provenance()
    results = {}
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        results[precision] = measure(given.data, given.images, given.rounds, precision)
        print(precision, {k: v for k, v in results[precision].items() if k != "cpu_seconds"})
    report = {
        "script": "folded.py",
        "date": date.today().isoformat(),
        **code,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread used",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "network": NETWORK,
        "size": SIZE,
        "images": given.images,
        "batch": 32,
        "results": results,
    }
    if given.result is not None:
        given.result.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
