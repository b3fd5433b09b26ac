"""Would scikit-learn's logistic regression do for the protocol `probe`? Seconds and accuracies of both, on the digits.

    python benchmarks/probe.py --result FILE

Features are the 192 grey values, or 2048 random features (ReLU of a random projection of them); labels are all, or five
per class in ten draws. Both choose among the same weight decays on the same held-out parts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from hexa.data import open_source
from hexa.evaluation.protocols import probe
from hexa.evaluation.results import versions
from hexa.evaluation.split import draw_per_class
from hexa.runtime.packages import provenance
from hexa.runtime.random import Stream


def of_scikit_learn(
    x: Any,
    y: Any,
    num_classes: int,
    weight_decay: float,
    start: Any = None,
    tolerance: float = 1e-4,
) -> Any:
    """As `softmax_regression`; every class is in the digits' draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = LogisticRegression(
            C=1 / (len(x) * weight_decay), tol=tolerance, max_iter=1000
        ).fit(x, y)
    return np.vstack([machine.coef_.T, machine.intercept_])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    made_by, sources = provenance(), [open_source("digits", split) for split in ("train", "test")]
    labels = [torch.from_numpy(source.classes) for source in sources]
    pixels = [torch.stack([s.decode(i) for i in range(len(s))]).float().flatten(1) for s in sources]
    projection = torch.randn(pixels[0].shape[1], 2048, generator=torch.Generator().manual_seed(0))
    ours, rows = probe.softmax_regression, []
    for name, features in (
        ("pixels", pixels),
        ("2048 random features", [(x @ projection).relu() for x in pixels]),
    ):
        for draws in (0, 10):
            for solver, solve in (("ours", ours), ("scikit-learn", of_scikit_learn)):
                probe.softmax_regression, begin, top1 = solve, time.perf_counter(), []
                for number in range(max(1, draws)):
                    chosen = draw_per_class(labels[0].numpy(), 5, Stream(0).child("labels", number))
                    kept = torch.from_numpy(chosen) if draws else torch.arange(len(labels[0]))
                    parts = (features[0][kept], labels[0][kept], features[1], labels[1])
                    top1.append(probe.fast_probe(*parts, num_classes=10)["top1"])
                row = {
                    "features": name,
                    "labels": "5 a class" if draws else "all",
                    "solver": solver,
                }
                seconds = round(time.perf_counter() - begin, 2)
                rows.append(
                    row
                    | {
                        "draws": len(top1),
                        "top1": round(statistics.mean(top1), 2),
                        "seconds": seconds,
                    }
                )
                print(rows[-1], flush=True)
    result = {
        "question": __doc__.splitlines()[0],
        **made_by,
        "rows": rows,
        "processors": os.cpu_count(),
    }
    result |= {
        "load_average_at_the_end": [round(value, 2) for value in os.getloadavg()],
        "versions": versions(),
    }
    given.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
