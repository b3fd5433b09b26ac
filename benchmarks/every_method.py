"""Does every method learn on CIFAR-10 in a short run, plain and with adversarial views?

    python benchmarks/every_method.py --data parquet:PATH/cifar10 --out runs/every --epochs 3

Trains each `cifar10-*+small` recipe and its twin with adversarial views, and scores test images by k-NN on the frozen
network, beside the same networks before training. Nothing is searched for here, so rows say that a method learns, not
which is best; the few fields in which the recipes leave their papers were chosen on held-out training images
(`hexa evaluate knn RUN --holdout 0.1`). The recipes had a narrower network until 2026-11-27. Every run is stored when
it is done; the script goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONTRASTIVE = ("simclr", "byol", "simsiam", "instdisc", "pirl", "cmc", "cpc")
METHODS = (*CONTRASTIVE, "rotation", "jigsaw", "infomin", "dino", "dino-vit")
#: These train for so many times as long: their memory is random in the first epoch and half so in the second.
SLOW_STARTERS = {"instdisc": 2, "pirl": 2}
#: Methods that are to be seen with three seeds.
THREE_SEEDS = ("simclr", "byol")
QUIET = {"training.tensorboard": "false", "training.report": "false", "monitor.knn_every": "0"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--workers", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--result", type=Path, help="the result file to write")
    parser.add_argument(
        "--collect", action="store_true", help="run nothing: write the result of what is stored"
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def carry_out(job: dict[str, Any], given: argparse.Namespace) -> None:
    """Train and score one recipe, in this process; its JSON file is written last."""
    import torch

    import hexa.recipes
    from hexa.evaluation import evaluate
    from hexa.recipes.experiment import override
    from hexa.reporting.runs import read_run
    from hexa.run.run import pretrain, resume

    torch.set_num_threads(1)
    changes = {**QUIET, "data": given.data, "epochs": job["epochs"], "seed": job["seed"]}
    experiment = override(hexa.recipes.get(job["recipe"]), changes)
    run = given.out / job["name"]
    if (run / "config.yaml").exists():
        resume(run)
    else:
        pretrain(experiment, run)
    made = read_run(run)  # by its journal's clock, which goes on where a run does
    job |= {"pretrain_seconds": made.seconds, "interruptions": len(made.resumptions)}
    job["commits"] = [one.get("commit") for one in (made.environment, *made.resumptions)]
    found = evaluate("knn", str(run), given.data, seed=job["seed"])
    job["knn"], job["protocol"] = found["metrics"]["top1"], found["protocol"]
    (given.out / f"{job['name']}.json").write_text(json.dumps(job))


def run_all(jobs: list[dict[str, Any]], given: argparse.Namespace) -> list[dict[str, Any]]:
    """All jobs, `workers` at once, those without a stored result only; what fails is reported and left out."""

    def one(job: dict[str, Any]) -> None:
        path = given.out / f"{job['name']}.json"
        if path.exists():
            return
        command = [
            sys.executable,
            __file__,
            "--data",
            given.data,
            "--out",
            str(given.out),
            "--job",
            json.dumps(job),
        ]
        with (given.out / f"{job['name']}.log").open("w") as log:
            done = subprocess.run(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=False,
            )
        print(
            time.strftime("%H:%M:%S"),
            path.read_text() if done.returncode == 0 else f"{job['name']} failed",
            flush=True,
        )

    given.out.mkdir(parents=True, exist_ok=True)
    if not given.collect:
        with ThreadPoolExecutor(given.workers) as pool:
            list(pool.map(one, jobs))
    paths = [given.out / f"{job['name']}.json" for job in jobs]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def untrained(given: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, float]:
    """k-NN accuracy of the networks of these runs before training, by method."""
    from hexa.evaluation import evaluate

    found = {}
    for row in rows:
        if row["method"] not in found:
            scored = evaluate("knn", f"random:{given.out / row['name']}", given.data, seed=0)
            found[row["method"]] = scored["metrics"]["top1"]
    return found


def main() -> None:
    given = arguments()
    if given.job:
        carry_out(json.loads(given.job), given)
        return
    jobs = []
    for seed in range(3):
        for method in given.methods:
            for arm in ("", "+adversarial"):
                if seed == 0 or method in THREE_SEEDS:
                    recipe = f"cifar10-{method}+small{arm}"
                    epochs = given.epochs * SLOW_STARTERS.get(method, 1)
                    name = f"{recipe}-{epochs}-{seed}"
                    jobs.append(
                        {
                            "name": name,
                            "recipe": recipe,
                            "method": method,
                            "epochs": epochs,
                            "seed": seed,
                        }
                    )
    rows = run_all(jobs, given)
    before = untrained(given, rows)
    summary = {}
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        these = [row for row in rows if row["recipe"] == recipe]
        scores = [row["knn"] for row in these]
        summary[recipe] = {
            "knn": statistics.mean(scores),
            "std": statistics.stdev(scores) if scores[1:] else None,
            "seeds": [row["seed"] for row in these],
            "epochs": these[0]["epochs"],
            "untrained": before[these[0]["method"]],
        }
    command = f"python benchmarks/every_method.py --epochs {given.epochs} --methods {' '.join(given.methods)}"
    result = {"question": __doc__.splitlines()[0], "command": command, "summary": summary}
    text = json.dumps({**result, "runs": rows}, indent=1)
    if given.result:
        given.result.write_text(text + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
