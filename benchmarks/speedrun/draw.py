"""The curve of records: seconds of one core of each track's records, the first one first.

python benchmarks/speedrun/draw.py docs/speedrun.svg
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from speedrun import tracks

from hexa.evaluation.few_labels import half_width
from hexa.reporting.style import COLOURS, MARKERS, drawing, save

#: What made the records of a track before the present one, with their files.
BEFORE = {
    "A-60": [
        ("SGD", "A-60-2026-11-25"),
        ("Muon", "A-60-2026-11-25-muon"),
        ("smaller views", "A-60-2026-11-27"),
    ],
    "A-70": [("smaller views", "A-70-2026-11-27")],
    "B": [
        ("SGD", "B-2026-11-25"),
        ("Muon", "B-2026-11-25-muon"),
        ("smaller views", "B-2026-11-27"),
    ],
    "C-63": [("AdamW", "C-63-2026-11-26"), ("Muon", "C-63-2026-11-26-muon")],
    "C-70": [("AdamW", "C-70-2026-11-25"), ("Muon", "C-70-2026-11-26-muon")],
    "D": [
        ("squared distance", "D-2026-11-25"),
        ("angle", "D-2026-11-25-angle"),
        ("contrast", "D-2026-11-25-contrast"),
        ("Muon", "D-2026-11-25-muon"),
    ],
}
TICKS = (30, 50, 100, 200, 400, 700)
NOW = dict.fromkeys(("A-60", "A-70", "B"), "fixed stem") | dict.fromkeys(
    ("C-63", "C-70", "D"), "smaller views"
)


def main(path: Path) -> None:
    """Write the figure."""
    folder = Path(__file__).parent
    with drawing(2, width=5.2, height=4.2) as (figure, axes):
        for number, (name, one) in enumerate(tracks().items()):
            axis = axes[name[0] in "CD"]
            records = [*BEFORE[name], (NOW[name], str(one.result).removesuffix(".json"))]
            found = [
                [
                    row["seconds"]
                    for row in json.loads((folder / f"{file}.json").read_text())["rows"]
                ]
                for _, file in records
            ]
            means, halves = [statistics.fmean(of) for of in found], [half_width(of) for of in found]
            axis.errorbar(
                range(1, 1 + len(found)),
                means,
                halves,
                label=name,
                color=COLOURS[number],
                marker=MARKERS[number],
            )
            for place, (mean, (made, _)) in enumerate(zip(means, records, strict=True), start=1):
                axis.annotate(
                    f"{made}, {mean:.0f} s",
                    (place, mean),
                    xytext=(5, 5),
                    textcoords="offset points",
                    fontsize=7,
                )
        for axis, title in zip(axes, ("from random weights", "from given weights"), strict=True):
            axis.set(
                yscale="log",
                title=title,
                xlabel="record",
                ylabel="seconds of one core",
                xlim=(0.8, 5),
            )
            axis.set_xticks(range(1, 5))
            axis.set_yticks(TICKS, map(str, TICKS))
            axis.minorticks_off()
            axis.legend()
    save(figure, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
