"""Does bf16 pay on a CPU, in training and in use? Networks with and without depthwise convolutions, one thread.

    python benchmarks/depthwise.py --result FILE

Forward alone, and forward and backward, of 32 images of 64 pixels in channels_last; seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from hexa.runtime.packages import provenance

NETWORKS = (
    "resnet18",
    "resnext50_32x4d",
    "tf_efficientnet_lite0",
    "mobilenetv3_small_100",
    "convnext_atto",
)
ROUNDS = 3


def images_per_second(network: nn.Module, images: Tensor, bf16: bool, training: bool) -> float:
    """Of the best of a few rounds after one that warms up."""
    network.train(training)
    best = float("inf")
    for number in range(1 + ROUNDS):
        begin = time.process_time()
        with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = network(images).float().mean()
        if training:
            loss.backward()
        if number:
            best = min(best, time.process_time() - begin)
    return len(images) / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    code = provenance()
    images = torch.randn(32, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    found = {}
    for name in NETWORKS:
        network = timm.create_model(name, num_classes=0).to(memory_format=torch.channels_last)
        for use, training in (("training", True), ("use", False)):
            bf16, fp32 = (
                images_per_second(network, images, half, training) for half in (True, False)
            )
            found[f"{name}, {use}"] = {"bf16": bf16, "fp32": fp32, "ratio": bf16 / fp32}
            print(f"{name}, {use}: bf16 {bf16 / fp32:.2f} of fp32", flush=True)
    about = {"question": __doc__.splitlines()[0], **code, "torch": torch.__version__}
    given.result.write_text(json.dumps(about | {"images_per_cpu_second": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
