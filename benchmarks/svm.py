"""How long do the SVMs of VOC07 take, features apart: the grid of Goyal et al. on 2 × 900 images of 2048 numbers?

    python benchmarks/svm.py --voc voc:PATH/VOCdevkit --result FILE

Features, of an untrained ResNet-50 if nothing else is given, are extracted first and kept, so that the seconds are
those of 26 costs × 20 classes × 3 folds alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voc", required=True)
    parser.add_argument("--backbone", default="random:resnet50")
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    from hexa.evaluation import evaluate

    evaluate("svm", given.backbone, given.voc, preset="pcl")
    begin, before = time.perf_counter(), os.times()
    found = evaluate("svm", given.backbone, given.voc, preset="goyal")
    seconds, after = time.perf_counter() - begin, os.times()
    result = {
        "question": __doc__.splitlines()[0],
        "commit": found["commit"],
        "backbone": given.backbone,
        "protocol": found["protocol"],
        "images": [part["images"] for part in found["data_facts"].values()],
        "metrics": found["metrics"],
        "seconds": round(seconds, 1),
        "processor_seconds_of_this_process": round(after.user - before.user, 1),
        "processors": os.cpu_count(),
        "load_average_at_the_end": [round(value, 2) for value in os.getloadavg()],
        "versions": found["versions"],
    }
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
