"""How far a record is from the machine: operations per second of its convolutions, beside the fastest ones.

    OMP_NUM_THREADS=1 python benchmarks/speedrun/peak.py A-60|A-70|B --data SOURCE --record FILE --result FILE

Multiplications and additions of two steps of the record's recipe are counted (torch's `FlopCounterMode`); those of
its whole length are divided by the mean seconds in `--record`, which has to be of this machine. Beside them stand
the fastest product of two matrices of 2048 × 2048 and the fastest 3 × 3 convolution of 256 channels, in fp32 and
bf16, on one core. All in GFLOP/s. Tracks C and D are left out: the counter takes the gradient of a depthwise kernel
for that of a dense one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speedrun import _COMMON, _images, attempt, track
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hexa import recipes
from hexa.data import open_source
from hexa.recipes.experiment import override
from hexa.run.run import pretrain
from hexa.runtime.packages import processor_name, provenance, version


def fastest(work: Callable[[], object], operations: float) -> float:
    """GFLOP/s of the fastest of twenty calls."""
    work()
    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return operations / min(seconds) / 1e9


@torch.no_grad()
def peaks() -> dict[str, float]:
    """GFLOP/s by kind and precision."""
    found = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        one = torch.randn(2048, 2048, dtype=dtype)
        found[f"product {name}"] = fastest(lambda one=one: one @ one, 2 * 2048**3)  # type: ignore[misc]
        maps, kernel = (
            torch.randn(size, dtype=dtype).to(memory_format=torch.channels_last)
            for size in ((32, 256, 28, 28), (256, 256, 3, 3))
        )
        convolve = lambda maps=maps, kernel=kernel: F.conv2d(maps, kernel, padding=1)  # noqa: E731
        found[f"convolution {name}"] = fastest(convolve, 2 * 32 * 28 * 28 * 9 * 256 * 256)
    return found


def main() -> None:
    """One record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("track", choices=("A-60", "A-70", "B"))
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--record",
        type=Path,
        required=True,
        help="speedrun.json of a run of the record on this machine",
    )
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    one = track(given.track)
    recipe, fields = attempt(one, {})
    counted = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        fields = {**_COMMON, **fields, "data": _images(one, given.data, work, 0, False)[0]}
        for steps in (1, 3):
            changes = {**fields, "max_steps": steps}
            with FlopCounterMode(display=False) as counter:
                _ = pretrain(override(recipes.get(recipe), changes), work / str(steps))
            counted.append(counter.get_total_flops())
        made = override(recipes.get(recipe), fields)
        steps = made.epochs * (len(open_source(made.data, "train")) // made.batch_size)
    each = (counted[1] - counted[0]) / 2
    seconds = statistics.fmean(
        row["seconds"] for row in json.loads(given.record.read_text())["rows"]
    )
    row: dict[str, Any] = {
        "track": given.track,
        "operations_per_step": each,
        "steps": steps,
        "seconds": seconds,
    }
    row |= {"gflops": each * steps / seconds / 1e9, "peaks": peaks()} | provenance()
    row |= {"device": processor_name(), "torch": version("torch")}
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    stored["rows"].append(row)
    given.result.write_text(json.dumps(stored, indent=1) + "\n")
    print(row)


if __name__ == "__main__":
    main()
