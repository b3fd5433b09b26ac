"""Does a better backbone score better in every protocol? One backbone of each kind, on VOC07's subset and CIFAR-10.

    python benchmarks/protocols.py --cifar10 parquet:PATH/cifar10 --voc voc:PATH/VOCdevkit [--run RUN] --result FILE

RUN is a finished cifar10-*+small run; without it, its rows in FILE stay as they are. It is compared with its own
network before training, and with EfficientNet-Lite0 trained on ImageNet with labels (benchmarks/networks.py), at 224
pixels on VOC and at 64 on CIFAR-10: by the package it comes from, and by timm's network with its weights. Fine-tuning
is shortened to an epoch. Rows that FILE has already are kept, with the commit that made them; so a FILE is of one RUN.
The seed is 0.
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
#: What it costs to feed it otherwise than it was trained.
OTHERWISE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("svm", {"preset": "pcl", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}),
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
    parser.add_argument("--run")
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    from hexa.evaluation import evaluate

    stored = json.loads(given.result.read_text()) if given.result.exists() else {}
    rows: list[dict[str, Any]] = stored.get("rows", [])
    have = {(row["backbone"], row["data"], row["asked"]) for row in rows}
    at_224 = ((SUPERVISED, PYTHON), (TIMM, networks.weights()))
    at_64 = ((SUPERVISED, f"{PYTHON}_small"), (TIMM, f"{PYTHON}_timm_small"))
    ours = ours_of(given.run) if given.run else ()
    plans = (
        (given.voc, VOC, (*ours, *at_224)),
        (given.voc, OTHERWISE, at_224[:1]),
        (given.cifar10, CIFAR, (*ours, *at_64)),
    )
    for data, protocols, backbones in plans:
        for protocol, options in protocols:
            for name, backbone in backbones:
                row = {
                    "backbone": name,
                    "data": data.partition(":")[0] + ":" + Path(data).name,
                    "asked": " ".join(
                        [protocol, *(f"--{key} {value}" for key, value in options.items())]
                    ),
                }
                if tuple(row.values()) in have:
                    continue
                begin = time.perf_counter()
                found = evaluate(protocol, backbone, data, seed=0, **options)
                row |= {name: found[name] for name in ("protocol", "metrics", "notes", "transform")}
                row |= {
                    "preparation": found["backbone_facts"]["preparation"],
                    "precision": found["precision"],
                }
                row |= {
                    "seconds": round(time.perf_counter() - begin, 1),
                    "seed": 0,
                    "commit": found["commit"],
                }
                row["command"] = command(protocol, backbone, row["data"], options)
                print(json.dumps(row), flush=True)
                rows.append(row)
                result = {"question": __doc__.splitlines()[0], **stored, "rows": rows}
                given.result.write_text(json.dumps(result, indent=1) + "\n")


def ours_of(run: str) -> tuple[tuple[str, str], ...]:
    """A run and its untrained network."""
    config = Path(run, "config.yaml").read_text().splitlines()
    recipe = next(line.split(": ")[1] for line in config if line[:7] == "recipe:")
    return (("untrained", f"random:{run}"), (recipe, run))


def command(protocol: str, backbone: str, data: str, options: dict[str, Any]) -> str:
    """What a user would type, without the folders of this machine."""
    kind, colon, path = (
        backbone.rpartition(":") if backbone.startswith("random:") else ("", "", backbone)
    )
    file = path if path.startswith("python:") else kind + colon + Path(path).name
    values = (
        f"--{n} {','.join(map(str, v)) if isinstance(v, list) else v}" for n, v in options.items()
    )
    return " ".join(["hexa evaluate", protocol, file, "--data", data, *values])


if __name__ == "__main__":
    main()
