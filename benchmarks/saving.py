"""Time how long training waits for a checkpoint of DeepCluster-v2, in turns in one run.

    python benchmarks/saving.py --result benchmarks/DATE-saving.json

`background` is Trainer.save as it is, until it returns; `at once` is the same if the training thread writes the file
itself. Steps would go on between the two; here each file is complete before the next save. One thread, one process,
small network, bank of 200,000 images × 2 crops × 128 (205 MB). Seconds of the clock and of the training thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import Executor, Future
from datetime import date
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before the libraries read it

import torch

from hexa.core import Setting
from hexa.methods.deepcluster import DeepClusterConfig
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import Objective
from hexa.runtime.packages import processor_name, provenance
from hexa.training.config import TrainingConfig
from hexa.training.trainer import Trainer
from tests.training.toy import ToyLoader, scheduled

IMAGES = 200_000


class AtOnce(Executor):
    """Runs what it is given before `submit` returns."""

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


def trainer(folder: Path) -> Trainer:
    network = build(NetworkConfig(name="small-resnet", widths=(4, 8)))
    method = DeepClusterConfig().build(network, Setting(IMAGES, 8, world_size=1))
    method.bank.embeddings.normal_()
    objective = Objective(method, {}, steps=1)
    cpu = torch.device("cpu")
    return Trainer(objective, scheduled(method, 1, 5), ToyLoader(), TrainingConfig(), cpu, folder)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    made = trainer(folder)
    arms = {"background": made._writer, "at once": AtOnce()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(1 + rounds):
        for name, writer in arms.items():
            made._writer = writer
            made.step += 1
            begin = time.perf_counter(), time.thread_time()
            made.save()
            if number:  # the first warms up
                spent = (time.perf_counter() - begin[0], time.thread_time() - begin[1])
                seconds[name].append(spent)
            made._finish_saving()
    medians = {
        name: {
            kind: statistics.median(one[place] for one in spent)
            for place, kind in enumerate(("seconds", "thread_seconds"))
        }
        for name, spent in seconds.items()
    }
    ratio = {
        kind: medians["at once"][kind] / value for kind, value in medians["background"].items()
    }
    return {"bytes": made.objective.method.bank.embeddings.nbytes, **medians, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.result.parent) as folder:
        found = measure(Path(folder), given.rounds)
    about = {"date": str(date.today()), "processor": processor_name(), "rounds": given.rounds}
    text = json.dumps({**about, **provenance(), **found}, indent=2)
    given.result.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
