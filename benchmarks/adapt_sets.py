"""Is the verdict of `hexa adapt` right? Data set by data set, with labels and without, judged by images it did not see.

    python benchmarks/adapt_sets.py WEIGHTS SETS OUT.json [--time 10m] [--only NAME …] [--ways labelled free own]
        [--seeds 0 …] [FIELDS]

SETS/NAME/train has images without labels, SETS/NAME/labelled and SETS/NAME/test a folder a class. `hexa adapt` trains
on the first, with the second as `--labelled` or not at all, or (own) on the second alone, whose labels then judge;
`hexa compare` judges start and trained network by the third. FIELDS are those of the recipe,
`--method.temperature 0.1`. "wrong" is a result called better that is worse there beyond the interval, in k-NN or probe.
Runs that are in OUT.json are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from made_by import made_by


def hexa(*options: object) -> dict[str, int]:
    """Run a command of hexa. Returns the seconds by the clock and those of one core."""
    begun, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "hexa", *map(str, options)], check=True)
    after = os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    seconds = time.perf_counter() - begun
    return {"seconds": round(seconds), "cpu_seconds": round(user + system)}


def row(
    weights: str, images: Path, way: str, seed: int, options: list[str], work: Path
) -> dict[str, Any]:
    """One run of `hexa adapt`, what it said, and what the test images say."""
    out, labels = (
        work / "run",
        ["--labelled", f"folder:{images / 'labelled'}"] if way == "labelled" else [],
    )
    data = f"folder:{images / ('labelled' if way == 'own' else 'train')}"
    spent = hexa("adapt", weights, "--data", data, *labels, *options, "--seed", seed, "--out", out)
    said = json.loads((out / "adapt.json").read_text())
    found = {
        "data": images.name,
        "labelled": way == "labelled",
        "way": way,
        "seed": seed,
        **spent,
    }
    found |= {"plan": said["plan"], "verdict": said["verdict"], "kept": said["kept"]}
    if (out / "environment.json").is_file():  # it trained
        test, judged = f"folder:{images / 'test'}", work / "compare"
        hexa(
            "compare",
            weights,
            out,
            "--data",
            test,
            "--labelled",
            test,
            "--out",
            judged,
            "--time",
            "10m",
        )
        answer = json.loads((judged / "compare.json").read_text())
        start, result = (one["scores"] for one in answer["backbones"])
        changes = answer["pairs"][0]["differences"]
        found |= made_by(out) | {
            "said": said["table"]["rows"],
            "judged": answer["judged"],
            "start": start,
            "result": result,
            "change, half": changes,
        }
    return found


def main() -> None:
    """Every set and way that OUT does not have yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("sets", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--time", default="10m")
    parser.add_argument("--only", nargs="*")
    parser.add_argument(
        "--ways", nargs="+", default=["labelled", "free"], choices=["labelled", "free", "own"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    asked, fields = parser.parse_known_args()
    rows: list[dict[str, Any]] = (
        json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    )
    named = {True: "labelled", False: "free"}  # rows of before have no way
    done = {
        (one["data"], one.get("way", named[one["labelled"]]), one.get("seed", 0)) for one in rows
    }
    sets = sorted(
        path for path in asked.sets.iterdir() if not asked.only or path.name in asked.only
    )
    for images, way, seed in itertools.product(sets, asked.ways, asked.seeds):
        if (images.name, way, seed) not in done:
            with tempfile.TemporaryDirectory() as work:
                options = ["--time", asked.time, *fields]
                rows.append(row(asked.weights, images, way, seed, options, Path(work)))
            found = {"time": asked.time, "fields": fields, "rows": rows}
            asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
