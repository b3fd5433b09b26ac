"""From random weights: adversarial views of MoCo-v2 at several ε and by several attacks, ACL and DeACL.

    python benchmarks/robust_scratch.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE \\
        [--length 12] [--seeds 0] [--rates 0.03] [--teacher-rate 0.03] [--arms ...] [--score] [--precision bf16]

The small network of the recipes at views of 24 pixels, Muon, 10,000 images of CIFAR-10, 1,000 a class. Every arm has
about the time of `length` plain epochs, in whole epochs, by seconds of one core that an epoch takes: at first of 2,560
images (`costs`: the difference of three epochs and one, the least of three), and of the arm's own least row in a search
once it has one. The hardened ones begin by half of that time of MoCo-v2, at the teacher's rate. Without `--score` it is a search, by k-NN
of held-out training images, a fifth of which were also learned from (without labels); the rate is thus the best for
clean accuracy. With it the test images are scored, 500 of them, clean and under attack of 20 steps on two losses, heads
fitted to all 50,000 training images; `aux` is the same through the second set of batch-norms. A row is written as soon
as it exists, and rows that FILE has are not made again; FILE is of one length, precision and teacher's rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from from_weights import COMMON, subset
from made_by import made_by

_MOCO, _ATTACK = "cifar10-moco-v2+small", "hard_examples.adversarial"
_SINGLE = {f"{_ATTACK}.branch": "main"}


def _attack(epsilon: float, steps: int = 0) -> dict[str, Any]:
    """steps: 0 is N-FGSM, else projected gradients of that many steps from a random point."""
    start = {f"{_ATTACK}.epsilon": epsilon, f"{_ATTACK}.weight": 1.0}
    if not steps:
        return start | {
            f"{_ATTACK}.step_size": epsilon,
            f"{_ATTACK}.random_start": 2.0,
            f"{_ATTACK}.project": False,
        }
    return start | {
        f"{_ATTACK}.step_size": 1.5 * epsilon / steps,
        f"{_ATTACK}.random_start": 1.0,
        f"{_ATTACK}.steps": steps,
    }


#: arm -> its recipe and what is changed of it
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "MoCo-v2": (_MOCO, {}),
    "one step, ε = 1": (f"{_MOCO}+adversarial", {}),
    **{f"N-FGSM, ε = {e}": (_MOCO, _attack(e)) for e in (1, 2, 4, 8)},
    "PGD-3, ε = 8": (_MOCO, _attack(8, 3)),
    **{f"N-FGSM, ε = {e}, one set of batch-norms": (_MOCO, _attack(e) | _SINGLE) for e in (4, 8)},
    "ACL": ("cifar10-acl+small", {}),
    # as DeACL, but the student begins as its teacher, and two steps of ¾ ε as `hexa harden` takes in long trainings
    **{f"hardened, ε = {e}": ("cifar10-deacl+small", _attack(e, 2) | _SINGLE) for e in (4, 8)},
    "DeACL": ("cifar10-deacl+small", {}),
}
#: Arms that begin with a teacher.
_TAUGHT = ("hardened", "DeACL")


def fields(arm: str) -> dict[str, Any]:
    """What is changed of an arm's recipe; small ones of CIFAR-10 have one network, size of views and optimizer."""
    return COMMON | ARMS[arm][1]


def trained(arm: str, run: Path, changes: dict[str, Any]) -> float | None:
    """Train, or go on; seconds of one core, None if it was interrupted."""
    from hexa import recipes
    from hexa.recipes.experiment import override
    from hexa.run.run import pretrain, resume
    from hexa.run.start import begin_from_weights

    begun, spent = time.process_time(), run.with_name(run.name + ".seconds")
    if spent.exists():
        return json.loads(spent.read_text())
    if going_on := (run / "config.yaml").exists():
        _ = resume(run)
    else:
        asked = fields(arm) | changes
        if arm.startswith("hardened"):
            asked["start.weights"] = asked["method.teacher"]
        _ = pretrain(begin_from_weights(override(recipes.get(ARMS[arm][0]), asked), asked), run)
    seconds = None if going_on else time.process_time() - begun
    spent.write_text(json.dumps(seconds))
    return seconds


def cost(arm: str, work: Path, data: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Processor time of an epoch."""
    if arm.startswith(_TAUGHT):
        changes = changes | {"method.teacher": str(work / "cost-MoCo-v2-0-3")}
    least = []
    for old in work.glob(f"cost-{arm}-*"):  # cut off: what goes on is not the time of an epoch
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for epochs in (1, 3):
        runs = [work / f"cost-{arm}-{number}-{epochs}" for number in range(3)]
        least.append(
            min(
                trained(arm, run, changes | {"data": data, "epochs": epochs}) or 0.0 for run in runs
            )
        )
    return {"arm": arm, "seconds": (least[1] - least[0]) / 2} | made_by(runs[0])


def unit(
    arm: str,
    seed: int,
    rate: float,
    score: bool,
    times: float,
    asked: argparse.Namespace,
    changes: dict[str, Any],
) -> dict[str, Any]:
    """One training and its scores. times: how many plain epochs one epoch of the arm takes."""
    from hexa.evaluation import evaluate

    taught = arm.startswith(_TAUGHT)
    length, count = asked.length * (0.5 if taught else 1), 10_000
    changes |= {"seed": seed, "data": subset(asked.cifar10, asked.work / str(count), count // 10)}
    row: dict[str, Any] = {"arm": arm, "seed": seed, "rate": rate}
    if taught:
        teacher = asked.work / f"teacher-{seed}-{round(length)}"
        plain = changes | {"epochs": round(length), "optimizer.learning_rate": asked.teacher_rate}
        row["teacher_seconds"] = trained("MoCo-v2", teacher, plain)
        changes["method.teacher"] = str(teacher)
    if times > length:
        count = int(count * length / times) // 10 * 10
        changes["data"] = subset(asked.cifar10, asked.work / str(count), count // 10)
    epochs = max(1, round(length / times))
    run = asked.work / f"{arm}-{seed}-{rate:g}-{epochs}-{count}"
    seconds = trained(arm, run, changes | {"optimizer.learning_rate": rate, "epochs": epochs})
    row |= {"epochs": epochs, "images": count, "cpu_seconds": seconds}
    if not score:
        return (
            row
            | {"held_out": evaluate("knn", str(run), asked.cifar10, holdout=0.1)["metrics"]}
            | made_by(run)
        )
    attack = {
        "preset": "pgd",
        "images": 500,
        "losses": ["cross-entropy", "margin"],
        "restarts": 1,
        "epsilons": [1.0, 2.0, 4.0, 8.0],
    }
    scored = {"knn": evaluate("knn", str(run), asked.cifar10)}
    scored["robust"] = evaluate("robust", str(run), asked.cifar10, **attack)
    if not (_SINGLE.keys() & ARMS[arm][1].keys() or taught or arm == "MoCo-v2"):
        scored["aux"] = evaluate("robust", str(run), asked.cifar10, branch="aux", **attack)
    return (
        row | {"score": {name: found["metrics"] for name, found in scored.items()}} | made_by(run)
    )


def main() -> None:
    """Every row that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--length", type=float, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03])
    parser.add_argument("--teacher-rate", type=float, default=0.03)
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    changes = {"training.precision": asked.precision}
    if asked.unit:
        one = json.loads(asked.unit)
        if isinstance(one, str):
            print(
                json.dumps(
                    cost(one, asked.work, subset(asked.cifar10, asked.work / "2560", 256), changes)
                )
            )
            return
        print(json.dumps(unit(*one, asked, changes)))
        return

    def made(one: Any) -> Any:
        command = [sys.executable, *sys.argv, "--unit", json.dumps(one)]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    one = {"length": asked.length, "precision": asked.precision, "teacher_rate": asked.teacher_rate}
    empty: dict[str, Any] = one | {"costs": [], "rows": []}
    stored = json.loads(asked.result.read_text()) if asked.result.exists() else empty
    if one != {name: stored[name] for name in one}:
        raise SystemExit(
            f"{asked.result} is of {[stored[name] for name in one]}, not of {[*one.values()]}"
        )
    write = lambda: asked.result.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")  # noqa: E731
    for arm in ["MoCo-v2", *asked.arms]:
        if arm not in {row["arm"] for row in stored["costs"]}:
            stored["costs"].append(made(arm))
            write()
            print(stored["costs"][-1], flush=True)
    seconds = {row["arm"]: row["seconds"] for row in stored["costs"]}
    searched = [row for row in stored["rows"] if "held_out" in row and row["cpu_seconds"]]
    if {row["arm"] for row in searched} >= {
        "MoCo-v2",
        *asked.arms,
    }:  # as long as the search did it, images alike
        seconds = {
            arm: min(
                row["cpu_seconds"] / row["epochs"] * 10_000 / row["images"]
                for row in searched
                if row["arm"] == arm
            )
            for arm in seconds
            if arm in {row["arm"] for row in searched}
        }
    have = {(row["arm"], row["seed"], row["rate"], "score" in row) for row in stored["rows"]}
    for seed, rate, arm in itertools.product(asked.seeds, asked.rates, asked.arms):
        if (key := (arm, seed, rate, asked.score)) not in have:
            stored["rows"].append(made([*key, seconds[arm] / seconds["MoCo-v2"]]))
            write()
            print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
