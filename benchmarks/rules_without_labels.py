"""Does a rule for measures without labels, chosen on some families of networks, hold on another?

    python benchmarks/rules_without_labels.py --result FILE

Of all rules "each of these measures rises by at least so much" (thresholds below; pairs of one image size of
2026-11-25-without-labels.json), that which calls most states of four families better, at least 20, with at most one
call in a hundred whose k-NN by labels is not above, is applied to the fifth. Deterministic; half a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from hexa.runtime.packages import provenance

STATES = Path(__file__).with_name("2026-11-25-without-labels.json")
#: The least ratio (neighbours, clusters, LiDAR, rank) or difference of a measure, or share of neighbourhoods kept.
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "neighbours": (0, 1.1, 1.25, 1.5, 2),
    "clusters": (0, 1.1, 1.5),
    "LiDAR": (0, 1, 1.2),
    "rank": (0, 1),
    "uniformity": (-9, 0, 0.3, 0.6),
    "mixing": (-99, 0, 3, 8),
    "learnability": (-99, 0, 2, 5),
    "kept": (0, 0.1, 0.2, 0.3, 0.4, 0.5),
}
RATIOS, FEWEST, WRONG = ("neighbours", "clusters", "LiDAR", "rank"), 20, 0.01


def main() -> None:
    """One row for each family left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    found = json.loads(STATES.read_text())
    free = {(row["set"], row["family"], row["state"]): row["free"] for row in found["states"]}
    pairs = [row for row in found["pairs"] if row["same_size"]]
    points, half = np.array([row["k-NN"] for row in pairs]).T
    family = np.array([row["family"] for row in pairs])

    def change(name: str) -> np.ndarray:
        if name == "kept":
            return np.array([row["kept"] for row in pairs])
        start, other = (
            np.array([free[row["set"], row["family"], row[side]][name] for row in pairs])
            for side in ("start", "other")
        )
        return other / np.maximum(start, 1e-9) if name in RATIOS else other - start

    reached = {
        name: {least: change(name) >= least for least in every}
        for name, every in THRESHOLDS.items()
    }
    rules = list(itertools.product(*THRESHOLDS.values()))
    calls = np.array(
        [
            np.logical_and.reduce([reached[n][v] for n, v in zip(reached, rule, strict=True)])
            for rule in rules
        ]
    )
    rows: list[dict[str, Any]] = []
    for left_out in dict.fromkeys(family):
        inside = family != left_out
        count, wrong = (calls & inside).sum(1), (calls & inside & (points <= 0)).sum(1)
        chosen = int(np.where((count >= FEWEST) & (wrong <= WRONG * count), count, 0).argmax())
        called = calls[chosen] & ~inside
        rows.append(
            {
                "left out": str(left_out),
                "rule": dict(zip(THRESHOLDS, rules[chosen], strict=True)),
                "calls": int(count[chosen]),
                "wrong": int(wrong[chosen]),
                "calls there": int(called.sum()),
                "wrong there": int((called & (points <= 0)).sum()),
                "clearly below there": int((called & (points < -half)).sum()),
            }
        )
    given.result.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
