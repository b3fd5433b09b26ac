"""Does a better backbone detect better? EfficientNet-Lite0 trained on ImageNet, and random; shortened for a CPU.

    python benchmarks/detection.py --voc voc:PATH/VOCdevkit --run RUN --result FILE

The same network with the same new layers, images and order, by both presets of `hexa evaluate detect`, on small images
and for few steps: five to ten minutes of one core a row, so figures are low and only the difference between rows tells.
Rows that the result file has already are kept, and an interrupted one goes on where it stopped. RUN, if given, is a
finished cifar10-*+small run, measured beside its own network before training.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "batch_size": 4,
    "warmup_iterations": 30,
    "shorter_side": [112, 128],
    "test_shorter_side": 128,
    "longest_side": 213,
    "anchor_sizes": [8, 16, 32, 64, 128],
    "test_proposals": 50,
    "clip_norm": 1.0,
    "save_every": 50,
}
SHORTENED: dict[str, dict[str, Any]] = {
    "appendix": {**SMALL, "iterations": 200, "learning_rate": 0.01, "regions": 64},
    "moco": {**SMALL, "iterations": 100, "learning_rate": 0.01, "regions": 32, "precise_bn": 20},
}
BACKBONES = {
    "EfficientNet-Lite0, supervised": "python:benchmarks/networks.py:efficientnet_lite0",
    "EfficientNet-Lite0, random": "random:efficientnet_lite0",
}
OURS = {"small-resnet, pre-trained": "RUN", "small-resnet, random": "random:RUN"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voc", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--presets", nargs="*", default=list(SHORTENED))
    parser.add_argument("--run")
    given = parser.parse_args()
    from hexa.evaluation import evaluate

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = (
        json.loads(given.result.read_text())["rows"] if given.result.exists() else []
    )
    for preset in given.presets:
        for name, backbone in (BACKBONES | (OURS if given.run else {})).items():
            if _command(backbone, preset) in [row["command"] for row in rows]:
                continue
            begin = time.process_time()
            spec = backbone.replace("RUN", given.run or "")
            found = evaluate(
                "detect", spec, given.voc, preset=preset, num_workers=0, **SHORTENED[preset]
            )
            rows.append(
                {
                    "backbone": name,
                    "command": _command(backbone, preset),
                    "protocol": found["protocol"],
                    "metrics": found["metrics"],
                    "all_points": found["details"]["other_rules"]["area"],
                    "loss": [found["details"]["loss"][place]["loss"] for place in (0, -1)],
                    "notes": found["notes"],
                    "precision": found["precision"],
                    "seed": found["seed"],
                    "cpu_seconds": round(time.process_time() - begin, 1),
                    "commit": found["commit"],
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            parts = {
                part: {**about, "source": "voc:VOCdevkit"}
                for part, about in found["data_facts"].items()
            }
            facts = {"data": parts, "versions": found["versions"]}
            written = {"question": __doc__.splitlines()[0], **facts, "rows": rows}
            given.result.write_text(json.dumps(written, indent=1) + "\n")


def _command(backbone: str, preset: str) -> str:
    shown = {
        k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in SHORTENED[preset].items()
    }
    options = " ".join(f"--{key} {value}" for key, value in shown.items())
    return f"hexa evaluate detect {backbone} --data voc:VOCdevkit --preset {preset} {options}"


if __name__ == "__main__":
    main()
