"""Intervals over test images for the k-NN differences of the claim's arms.

    hexa embed RUNS/NAME --data parquet:PATH#train --precision fp32 --out FOLDER/NAME-train.npz    for each arm and seed
    hexa embed RUNS/NAME --data parquet:PATH#test --precision fp32 --out FOLDER/NAME-test.npz
    python benchmarks/claim/over_images.py --features FOLDER --result FILE.json

Scores the arms of H1 and H2 in the setting `small` again, image by image. NAME is the name of a unit of run.py.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import plan
import run
import torch

from hexa.evaluation.protocols.knn import knn_classify
from hexa.runtime.packages import provenance

#: Normal quantile of a 95 % interval.
QUANTILE = 1.96


def right(folder: Path, name: str) -> np.ndarray:
    """Return bool [N]: True for each test image that k-NN (k = 200, T = 0.07) classifies correctly."""
    (bank, known), (queries, labels) = (
        [torch.from_numpy(arrays[kind]) for kind in ("features", "labels")]
        for arrays in (np.load(folder / f"{name}-{split}.npz") for split in ("train", "test"))
    )
    return (knn_classify(bank, known, queries).argmax(1) == labels).numpy()


def main() -> None:
    """Print and write the paired differences of each seed, with the half-widths over images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    stored = run.stored(run.HERE / "rows")
    made: dict[str, np.ndarray] = {}
    rows = []
    for label, pair in plan.hypotheses(stored, "small").items():
        every = []
        for seed in range(max(plan.STEPS["small"].arms.values())):
            names = [plan.Unit("small", arm, rate, seed).name for arm, rate in pair]
            if not all((given.features / f"{name}-test.npz").exists() for name in names):
                continue
            for name in names:
                if name not in made:
                    made[name] = right(given.features, name)
            first, second = (100.0 * made[name] for name in names)
            every.append(first - second)
            rows.append({"contrast": label, "seed": seed, **measured(every[-1])})
        mean = measured(np.mean(every, axis=0))
        rows.append({"contrast": label, "seed": "mean", "seeds": len(every), **mean})
    for row in rows:
        print(row)
    scores = {name: 100 * float(found.mean()) for name, found in made.items()}
    seconds = round(time.process_time() - begun)
    found = {**provenance(), "kind": run.kind_of_machine(), "seconds": seconds}
    given.result.write_text(json.dumps({**found, "knn": scores, "rows": rows}, indent=1) + "\n")


def measured(differences: np.ndarray) -> dict[str, float]:
    """The mean difference in points, and half of its 95 % interval over images."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return {"points": float(differences.mean()), "half, images": QUANTILE * error}


if __name__ == "__main__":
    main()
