"""How much slower is extracting features than the network alone? Both in one run, taking turns.

    python benchmarks/extraction.py --data DATA --result benchmarks/DATE-extraction.json
    python benchmarks/extraction.py --data DATA --workers 1 --result benchmarks/DATE-extraction-one-worker.json

DATA holds cifar10/test.parquet and voc2007/VOCdevkit. `network` is the bare torch network on normalised tensors that
lie in memory in the order it wants; `extraction` is hexa.evaluation.features.extract on the same images, from their
files: reading, decoding, resizing, batching, normalising, and features back on the CPU. One thread, fp32, no workers,
so that everything counts; seconds are those of the processor, which a machine that does other things as well does not
change much. With --workers the decoding is theirs, as it is for users, and seconds are those of the clock, on a quiet
machine, start of the workers included. The ratio of each round is that of its two neighbours in time; the median is
reported. `decoding` is the time of reading, decoding and resizing alone: with workers on other cores it is what they
are busy with, and if it takes longer than the network, extraction waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries read it

import numpy as np
import torch

from hexa.data import Source, open_source
from hexa.data.loading.evaluation_stream import evaluation_batches
from hexa.data.sources.source import Subset
from hexa.evaluation.features import extract, transform_of
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import Backbone, random_backbone

SMALL = NetworkConfig(name="small-resnet", widths=(16, 32, 64, 128))
#: (source, network, size, images)
CASES = {
    "cifar10, resnet18 with the small stem, 32": (
        "cifar10",
        NetworkConfig(name="resnet18", small_stem=True),
        32,
        512,
    ),
    "cifar10, resnet18, 32": ("cifar10", NetworkConfig(name="resnet18"), 32, 8192),
    "cifar10, small-resnet 16-32-64-128, 32": ("cifar10", SMALL, 32, 8192),
    "voc07, resnet18, 224": ("voc07", NetworkConfig(name="resnet18"), 224, 128),
}
BATCH = 64


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Of the processor, and by the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


@torch.no_grad()
def measure(backbone: Backbone, source: Source, rounds: int, workers: int) -> dict[str, Any]:
    backbone.eval().to(memory_format=torch.channels_last)
    transform = transform_of(backbone)
    made = [images for images, _ in evaluation_batches(source, transform, BATCH, num_workers=0)]
    prepared = [
        backbone.normalize(images).contiguous(memory_format=torch.channels_last) for images in made
    ]
    expected = torch.cat([backbone.network(images) for images in prepared])
    arms = {
        "network": lambda: [backbone.network(images) for images in prepared],
        "extraction": lambda: extract(
            backbone, source, batch_size=BATCH, precision="fp32", num_workers=workers
        ),
        "decoding": lambda: [
            None for _ in evaluation_batches(source, transform, BATCH, num_workers=0)
        ],
    }
    found = extract(backbone, source, batch_size=BATCH, precision="fp32", num_workers=0)[0]
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, work in arms.items():
            times[name].append(seconds(work))
    pairs = zip(times["network"], times["extraction"], strict=True)
    clock = int(workers > 0)  # of the two kinds of seconds
    ratios = [network[clock] / extraction[clock] for network, extraction in pairs]
    count = len(source)
    return {
        "images": count,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        f"images_per_{'' if clock else 'cpu_'}second": {
            name: count / statistics.median(both[clock] for both in t) for name, t in times.items()
        },
        "cpu_seconds": {name: [cpu for cpu, _ in t] for name, t in times.items()},
        "wall_seconds": {name: [wall for _, wall in t] for name, t in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    code = provenance()
    sources = {
        "cifar10": open_source(f"parquet:{given.data / 'cifar10'}", "test"),
        "voc07": open_source(f"voc:{given.data / 'voc2007' / 'VOCdevkit'}", "test"),
    }
    results = {}
    for name, (data, network, size, count) in CASES.items():
        source = Subset(sources[data], np.arange(count))
        results[name] = measure(random_backbone(network, size), source, given.rounds, given.workers)
        rates = next(value for key, value in results[name].items() if key.startswith("images_per"))
        print(
            f"{name}: {results[name]['ratio']:.3f} of the network;",
            {k: round(v, 1) for k, v in rates.items()},
        )
    report = {
        "script": "extraction.py",
        "date": date.today().isoformat(),
        **code,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one thread and {given.workers} workers used",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "batch": BATCH,
        "results": results,
    }
    if given.result is not None:
        given.result.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
