"""Does a better backbone score better in every protocol? One backbone of each kind, on VOC07's subset and CIFAR-10.

    python benchmarks/protocols.py --cifar10 parquet:PATH/cifar10 --voc voc:PATH/VOCdevkit --run RUN --result FILE

RUN is a finished cifar10-small-* run. It is compared with its own network before training, and with EfficientNet-Lite0
trained on ImageNet with labels (benchmarks/networks.py), at 224 pixels on VOC and at 64 on CIFAR-10: by the package it
comes from, and by timm's network with its weights. Fine-tuning is shortened to an epoch. Rows that FILE has already are
kept, with the commit that made them; so a FILE is of one RUN.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import networks

VOC: tuple[tuple[str, dict[str, Any]], ...] = (
    ("svm", {"preset": "goyal"}),
    ("svm", {"preset": "pcl"}),
    ("low-shot", {"preset": "pcl", "shots": [1, 2, 4, 8, 16, 32]}),
    ("low-shot", {"preset": "goyal", "shots": [2, 8], "costs": [0.1, 1.0, 10.0]}),
)
CIFAR: tuple[tuple[str, dict[str, Any]], ...] = (
    ("knn", {}),
    ("probe", {}),
    ("linear", {"preset": "cifar"}),
    ("linear", {"preset": "swav-ablation"}),
    ("semi-supervised", {"preset": "hexa", "percent": 10, "epochs": 5}),
    ("semi-supervised", {"preset": "hexa", "percent": 1, "epochs": 20, "score_every": 5}),
    # 1 % of CIFAR-10 is 500 images, two steps an epoch; of ImageNet it is a thousand steps in 20 epochs
    ("semi-supervised", {"preset": "hexa", "percent": 1, "epochs": 100, "score_every": 25}),
    ("fine-tune", {"learning_rates": [0.001], "epochs": 1}),
)
SUPERVISED, TIMM = "EfficientNet-Lite0, supervised", "the same by timm"
PYTHON = "python:benchmarks/networks.py:efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--voc", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    from hexa.evaluation import evaluate

    recipe = next(
        line.split(": ")[1] for line in Path(given.run, "config.yaml").read_text().splitlines() if line[:7] == "recipe:"
    )
    ours = (("untrained", f"random:{given.run}"), (recipe, given.run))
    rows: list[dict[str, Any]] = json.loads(given.result.read_text())["rows"] if given.result.exists() else []
    have = {(row["backbone"], row["data"], row["asked"]) for row in rows}
    at_224 = ((SUPERVISED, PYTHON), (TIMM, networks.weights()))
    at_64 = ((SUPERVISED, f"{PYTHON}_small"), (TIMM, f"{PYTHON}_timm_small"))
    for data, protocols, others in ((given.voc, VOC, at_224), (given.cifar10, CIFAR, at_64)):
        for name, backbone in (*ours, *others):
            for protocol, options in protocols:
                row = {
                    "backbone": name,
                    "data": data.partition(":")[0] + ":" + Path(data).name,
                    "asked": " ".join([protocol, *(f"--{key} {value}" for key, value in options.items())]),
                }
                if tuple(row.values()) in have:
                    continue
                begin = time.perf_counter()
                found = evaluate(protocol, backbone, data, **options)
                row |= {name: found[name] for name in ("protocol", "metrics", "notes")}
                row |= {"seconds": round(time.perf_counter() - begin, 1), "commit": found["commit"]}
                print(json.dumps(row), flush=True)
                rows.append(row)
                result = {"question": __doc__.splitlines()[0], "rows": rows}
                given.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
