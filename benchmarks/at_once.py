"""What becomes of trainings that share a machine's cores?

    python benchmarks/at_once.py --before FOLDER --result FILE [--repeats 3] [--seconds 6] [--first]
        [--kinds NAME …] [--versions NAME …]

Trainings of the digits, alone and several at once, each a process with as many threads as there are cores, or one.
Figures are medians over --repeats of images/s from metrics.jsonl, which every training writes while all of them go.
--before: the folder `src` of another version, measured in turn with this one. --first: from their first step on, others
on the machine come last (Linux with autogroups, as root).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent / "src"
CORES = len(os.sched_getaffinity(0))
#: Threads of each training.
KINDS = {
    "one": [CORES],
    "one, one thread": [1],
    "one beside one with one thread": [CORES, 1],
    "two": [CORES, CORES],
    "two, one thread each": [1, 1],
    "two beside two with one thread": [CORES, CORES, 1, 1],
}
#: How threads wait for each other, by variables that the command line leaves as they are given: as OpenMP (libgomp) has
#: it by itself, and asleep from the first moment.
SPINNING, SLEEPING = (
    {"GOMP_SPINCOUNT": "300000"},
    {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--versions", nargs="+", default=["before", "now", "spinning", "sleeping"])
    given = parser.parse_args()
    versions: dict[str, tuple[Path, dict[str, str]]] = {
        "now": (HERE, {}),
        "spinning": (HERE, SPINNING),
        "sleeping": (HERE, SLEEPING),
    }
    if given.before:
        versions = {"before": (given.before, {}), **versions}
    versions = {name: version for name, version in versions.items() if name in given.versions}
    samples: dict[str, dict[str, list[Any]]] = {
        version: {kind: [] for kind in given.kinds} for version in versions
    }
    for _ in range(given.repeats):
        for kind, threads in ((kind, KINDS[kind]) for kind in given.kinds):
            for version, (source, environment) in versions.items():
                found = measure(source, environment, threads, given.seconds, given.first)
                samples[version][kind].append(found)
                print(version, kind, found, f"load {os.getloadavg()[0]:.1f}", flush=True)
    git = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    result = {
        "question": __doc__.splitlines()[0],
        "command": shlex.join(["python", "benchmarks/at_once.py", *sys.argv[1:]]),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": f"{CORES} cores, {platform.platform()}",
        "load_average_at_the_end": [round(value, 2) for value in os.getloadavg()],
        "images_per_second_of_each": {
            version: {
                kind: [
                    statistics.median(column)
                    for column in zip(*(s["images_per_second"] for s in found), strict=True)
                ]
                for kind, found in kinds.items()
            }
            for version, kinds in samples.items()
        },
        "samples": samples,
    }
    given.result.write_text(json.dumps(result, indent=1) + "\n")


def measure(
    source: Path, environment: dict[str, str], threads: list[int], seconds: float, first: bool
) -> dict[str, Any]:
    """Images/s of each training while all go, and the cores that other processes used meanwhile."""
    command = [sys.executable, "-m", "hexa", "pretrain", "digits-moco-v2", "--epochs", "100000"]
    command += [
        "--monitor.knn_every",
        "0",
        "--training.tensorboard",
        "false",
        "--training.log_every",
        "2",
        "--out",
    ]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    clean |= environment
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / str(number) for number in range(len(threads))]
        trainings = [
            subprocess.Popen(
                [*command, str(run)],
                # a folder of their own, so that they do not take turns with others on the machine
                env={
                    **clean,
                    "PYTHONPATH": str(source),
                    "OMP_NUM_THREADS": str(count),
                    "TMPDIR": folder,
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for run, count in zip(runs, threads, strict=True)
        ]
        try:
            wait(trainings, lambda: all((run / "metrics.jsonl").exists() for run in runs))
            for training in trainings if first else ():
                Path(f"/proc/{training.pid}/autogroup").write_text("-19")
            wait(trainings, lambda: all(len(rates(run)) > 2 for run in runs))
            time.sleep(1)
            begun = [len(rates(run)) for run in runs]
            busy, own = busy_seconds(), sum(seconds_of(training.pid) for training in trainings)
            time.sleep(seconds)
            others = (
                busy_seconds()
                - busy
                - (sum(seconds_of(training.pid) for training in trainings) - own)
            )
            found = [
                statistics.median(rates(run)[start:] or rates(run))
                for run, start in zip(runs, begun, strict=True)
            ]
        finally:
            for training in trainings:
                training.kill()
                training.wait()
    return {
        "images_per_second": [round(value) for value in found],
        "cores_of_others": round(others / seconds, 2),
    }


def wait(trainings: list[subprocess.Popen[bytes]], ready: Callable[[], bool]) -> None:
    while not ready():
        assert all(training.poll() is None for training in trainings), "a training ended"
        time.sleep(0.2)


def rates(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [
        line["images_per_second"] for line in map(json.loads, lines) if "images_per_second" in line
    ]


def busy_seconds() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def seconds_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
