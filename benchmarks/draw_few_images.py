"""The figure of few_images.py: what an attack in training buys and what it costs, and accuracy over its length.

python benchmarks/draw_few_images.py RESULT FIGURE.svg
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from hexa.reporting.style import COLOURS, MARKERS, MUTED, drawing, save

#: Arms by the share of the training that they are attacked for, and what is written beside them.
ONSETS = [
    ("+adversarial", 400, "from the start"),
    ("+adversarial+late", 400, "half-way"),
    ("from ¾", 400, "last quarter"),
    ("plain", 400, ""),
]
#: curve -> whether its rates were searched for, and its points: (arm, length, what is written beside it)
EXCHANGE = {
    "plain, for longer": (
        False,
        [("plain", length, f"{length:,} epochs") for length in (241, 400, 800, 1600)],
    ),
    "adversarial, set in later": (False, [(arm, length, "") for arm, length, _ in ONSETS]),
    "the same, each at its best rate": (True, ONSETS),
    "cut-mixed": (False, [("+cutmix", 400, "")]),
    "split": (False, [("+split", 400, "400 epochs"), ("+split", 1600, "1,600 epochs")]),
}
#: curve -> its arm, and whose look in EXCHANGE it shares
LENGTHS = {
    "plain": ("plain", 0),
    "adversarial": ("+adversarial", 1),
    "cut-mixed": ("+cutmix", 3),
    "split": ("+split", 4),
}


def main(source: Path, path: Path) -> None:
    """Write the figure."""
    rows = json.loads(source.read_text())["rows"]

    def mean(
        arm: str, length: int, protocol: str, metric: str, searched: bool = False
    ) -> float | None:
        of = [
            row
            for row in rows
            if (row["arm"], row["length"], "rate" in row) == (arm, length, searched)
        ]
        runs = [row for row in of if protocol in row]
        return statistics.fmean(row[protocol][metric] for row in runs) if runs else None

    with drawing(2, width=5.2, height=4.2) as (figure, axes):
        exchange, lengths = axes
        for number, (label, (searched, points)) in enumerate(EXCHANGE.items()):
            places = [
                (
                    *(
                        mean(arm, length, "robust", metric, searched)
                        for metric in ("top1", "robust@4")
                    ),
                    text,
                )
                for arm, length, text in points
            ]
            made: list[Any] = [place for place in places if place[0] is not None]
            look = {"color": COLOURS[number], "marker": MARKERS[number]}
            exchange.plot([x for x, _, _ in made], [y for _, y, _ in made], label=label, **look)
            for x, y, text in made:
                beside = {"xytext": (-6, 5), "ha": "right"} if number == 0 else {"xytext": (5, 4)}
                exchange.annotate(
                    text, (x, y), textcoords="offset points", fontsize=8, color=MUTED, **beside
                )
        exchange.margins(x=0.13)
        exchange.set_xlabel("clean accuracy of a linear head, %")
        exchange.set_ylabel("under an attack of 4 grey levels, %")
        exchange.legend(fontsize=8, loc="upper right")
        for label, (arm, number) in LENGTHS.items():
            found = sorted(
                {
                    row["length"]
                    for row in rows
                    if row["arm"] == arm and "knn" in row and "rate" not in row
                }
            )
            look = {"color": COLOURS[number], "marker": MARKERS[number]}
            lengths.plot(
                found, [mean(arm, length, "knn", "top1") for length in found], label=label, **look
            )
        lengths.set_xscale("log", base=2)
        lengths.set_xticks(
            found := sorted({row["length"] for row in rows}), [f"{length:,}" for length in found]
        )
        lengths.set_xlabel("length: the time of this many plain epochs")
        lengths.set_ylabel("k-NN, %")
        lengths.legend()
    save(figure, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
