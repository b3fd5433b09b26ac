"""Do hard examples help on CIFAR-10 with a narrow network, at equal epochs and at equal time?

    python benchmarks/evidence_cifar10_small.py moco --data parquet:PATH/cifar10 --out runs/evidence

Every arm first looks for its own learning rate, by the same short search on a held-out tenth of the *training*
images; test images are scored once, at the end. Then every arm trains with every seed: for all epochs, and for as many
as cost the time of the plain arm (its relative cost comes from `hexa benchmark`). Every job is stored when it is done,
so the script goes on where it stopped. The result file names recipes, seeds, machine and every single run: its score,
the commit that made it, its time, and how often it was interrupted, which makes its time a sum over sessions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from from_weights import narrow

FAMILIES = {
    "moco": {
        "plain": "cifar10-moco-v2+small",
        "+adv": "cifar10-moco-v2+small+adversarial",
        "+cmx": "cifar10-moco-v2+small+cutmix",
        "+adv+cmx": "cifar10-moco-v2+small+adversarial+cutmix",
        "split": "cifar10-moco-v2+small+split",
    },
    "dcluster": {
        "plain": "cifar10-deepcluster-v2+small",
        "+adv": "cifar10-deepcluster-v2+small+adversarial",
        "+adv+cmx": "cifar10-deepcluster-v2+small+adversarial+cutmix",
    },
    "simclr": {
        "plain": "cifar10-simclr+small",
        "+adv": "cifar10-simclr+small+adversarial",
    },
}
#: When does an attack pay? One change each to the arm +adv, for which `--rates` searches as for all others.
ATTACKS: dict[str, dict[str, Any]] = {
    "eps-2": {"epsilon": 2, "step_size": 2},
    "eps-4": {"epsilon": 4, "step_size": 4},
    "eps-8": {"epsilon": 8, "step_size": 8},
    "weight-0.25": {"weight": 0.25},
    "main-bn": {"branch": "main"},
    "aux-generation": {"generation": "aux_train"},
}
FAMILIES["attacks"] = {"plain": FAMILIES["moco"]["plain"]} | dict.fromkeys(
    ["+adv", *ATTACKS], FAMILIES["moco"]["+adv"]
)
QUIET = {"training.tensorboard": "false", "training.report": "false", "monitor.knn_every": "0"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.06, 0.12])
    parser.add_argument("--search-epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument(
        "--costs", type=Path, help="output of `hexa benchmark --json` for the plain recipe"
    )
    parser.add_argument("--result", type=Path, help="the result file to write")
    parser.add_argument(
        "--collect", action="store_true", help="run nothing: write the result of what is stored"
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def carry_out(job: dict[str, Any], given: argparse.Namespace) -> None:
    """Pre-train and score one job, in this process; its JSON file is written last."""
    import torch

    import hexa.recipes
    from hexa.evaluation import evaluate
    from hexa.recipes.experiment import override
    from hexa.reporting.runs import read_run
    from hexa.run.run import pretrain, resume

    torch.set_num_threads(1)
    data, out = given.data, given.out
    recipe = FAMILIES[given.family][job["arm"]]
    changes = {
        **narrow(recipe),
        **QUIET,
        "data": data,
        "epochs": job["epochs"],
        "seed": job["seed"],
    }
    changes["optimizer.learning_rate"] = job["rate"]
    if given.family == "attacks":
        changes |= {
            f"hard_examples.adversarial.{name}": value
            for name, value in ATTACKS.get(job["arm"], {}).items()
        }
    experiment = override(hexa.recipes.get(recipe), changes)
    run = out / job["name"]
    if (run / "config.yaml").exists():
        resume(run)
    else:
        pretrain(experiment, run)
    made = read_run(run)  # by its journal's clock, which goes on where a run does
    job |= {"pretrain_seconds": made.seconds, "interruptions": len(made.resumptions)}
    job["commits"] = [one.get("commit") for one in (made.environment, *made.resumptions)]
    options: dict[str, Any] = {"holdout": 0.1} if job["phase"] == "search" else {}
    for protocol in ("knn", "probe"):
        if job["phase"] == "search" and protocol == "probe":
            continue
        found = evaluate(protocol, str(run), data, seed=job["seed"], **options)
        job[protocol], job[f"{protocol}_protocol"] = found["metrics"]["top1"], found["protocol"]
    (out / f"{job['name']}.json").write_text(json.dumps(job))
    shutil.rmtree(run / "checkpoints", ignore_errors=True)


def run_all(jobs: list[dict[str, Any]], given: argparse.Namespace) -> list[dict[str, Any]]:
    """All jobs, `workers` at once, those without a stored result only."""

    def one(job: dict[str, Any]) -> dict[str, Any]:
        path = given.out / f"{job['name']}.json"
        if not path.exists():
            command = [
                sys.executable,
                __file__,
                given.family,
                "--data",
                given.data,
                "--out",
                str(given.out),
                "--job",
                json.dumps(job),
            ]
            with (given.out / f"{job['name']}.log").open("w") as log:
                subprocess.run(
                    command,
                    check=True,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            print(time.strftime("%H:%M:%S"), path.read_text(), flush=True)
        return json.loads(path.read_text())

    if given.collect:
        stored = [given.out / f"{job['name']}.json" for job in jobs]
        return [json.loads(path.read_text()) for path in stored if path.exists()]
    given.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.workers) as pool:
        return list(pool.map(one, jobs))


def best_rates(given: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The learning rate of each arm with the best k-NN accuracy on held-out training images."""
    jobs = [
        {"name": f"search-{arm}-{rate:g}", "phase": "search", "arm": arm, "rate": rate, "seed": 1000,
         "epochs": given.search_epochs}
        for arm in FAMILIES[given.family]
        for rate in given.rates
    ]  # fmt: skip
    done = run_all(jobs, given)
    arms = FAMILIES[given.family]
    best = {
        arm: max((j for j in done if j["arm"] == arm), key=lambda j: j["knn"])["rate"]
        for arm in arms
    }
    print("best rates:", best, flush=True)
    return best, done


def epochs_at_equal_time(given: argparse.Namespace) -> dict[str, int]:
    """The epochs of each arm that cost as much as all epochs of the plain one."""
    if given.costs is None:
        return {}
    schemes = json.loads(given.costs.read_text())["schemes"]
    cost = {arm: schemes[name]["relative_cost"] for arm, name in
            {"+adv": "std+adv", "+cmx": "std+cmx", "+adv+cmx": "std+adv+cmx"}.items()
            if arm in FAMILIES[given.family]}  # fmt: skip
    return {arm: max(1, round(given.epochs / relative)) for arm, relative in cost.items()}


def summary(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds by (arm, epochs)."""
    table: dict[str, Any] = {}
    for arm, epochs in sorted({(job["arm"], job["epochs"]) for job in jobs}):
        these = [job for job in jobs if (job["arm"], job["epochs"]) == (arm, epochs)]
        row: dict[str, Any] = {
            "arm": arm,
            "epochs": epochs,
            "seeds": [job["seed"] for job in these],
        }
        for metric in ("knn", "probe"):
            values = [job[metric] for job in these]
            row[metric] = {
                "mean": statistics.mean(values),
                "std": statistics.stdev(values) if values[1:] else None,
            }
        table[f"{arm} @ {epochs}"] = row
    return table


def main() -> None:
    given = arguments()
    if given.job:
        carry_out(json.loads(given.job), given)
        return
    rates, search = best_rates(given)
    shorter = epochs_at_equal_time(given)
    jobs = [
        {
            "name": f"{arm}-{epochs}-{seed}",
            "phase": "final",
            "arm": arm,
            "rate": rates[arm],
            "seed": seed,
            "epochs": epochs,
        }
        for seed in given.seeds
        for arm in FAMILIES[given.family]
        for epochs in dict.fromkeys([given.epochs, shorter.get(arm, given.epochs)])
    ]  # fmt: skip
    final = run_all(jobs, given)
    import torch

    result = {
        "question": __doc__.splitlines()[0],
        "command": f"python benchmarks/evidence_cifar10_small.py {given.family} " + " ".join(
            f"--{name.replace('_', '-')} {value}" for name, value in vars(given).items()
            if name not in ("family", "job", "data", "out", "result", "costs", "collect")
        ),
        "recipes": FAMILIES[given.family],
        "rates": rates, "seeds": given.seeds, "epochs": given.epochs, "epochs_at_equal_time": shorter,
        "machine": {"processor": platform.processor() or platform.machine(), "threads_per_run": 1,
                    "torch": torch.__version__},
        "summary": summary(final), "search": search, "runs": final,
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    if given.result:
        given.result.write_text(text + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
