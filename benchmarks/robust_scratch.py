"""From random weights: adversarial views of MoCo-v2 at several ε and by several attacks, ACL, DeACL and CF-AMC.

    python benchmarks/robust_scratch.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE \\
        [--length 16] [--seeds 0] [--rates 0.03] [--teacher-rate 0.03] [--arms ...] [--score] [--precision bf16]

The small network of the recipes at views of 24 pixels, Muon, 10,000 images of CIFAR-10, 1,000 a class. Every arm has
the time of `length` plain epochs, by `costs`: processor time of an epoch of 2,560 images, the difference of three and
one. Three have twice that time: a longer plain arm; DeACL, whose teacher is the plain run of its seed; and CF-AMC,
of which one epoch takes longer still and is made of fewer images. Without `--score` what is scored is a search, on
held-out training images: k-NN, and 300 under attack of 20 steps on two losses; with it, the test images, 1,000 of them
under attack, heads fitted to all 50,000 training images. A row is written as soon as it exists, and rows that FILE has
are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from from_weights import COMMON
from made_by import made_by

_MOCO, _ATTACK = "cifar10-moco-v2+small", "hard_examples.adversarial"
_SINGLE = {f"{_ATTACK}.branch": "main"}


def _attack(epsilon: float, steps: int = 0) -> dict[str, Any]:
    """steps: 0 is N-FGSM, else projected gradients of that many steps from a random point."""
    start = {f"{_ATTACK}.epsilon": epsilon, f"{_ATTACK}.weight": 1.0}
    if not steps:
        return start | {f"{_ATTACK}.step_size": epsilon, f"{_ATTACK}.random_start": 2.0, f"{_ATTACK}.project": False}
    return start | {
        f"{_ATTACK}.step_size": 2.5 * epsilon / steps,
        f"{_ATTACK}.random_start": 1.0,
        f"{_ATTACK}.steps": steps,
    }


#: arm -> its recipe and what is changed of it
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "MoCo-v2": (_MOCO, {}),
    "one step, ε = 1": (f"{_MOCO}+adversarial", {}),
    **{f"N-FGSM, ε = {e}": (_MOCO, _attack(e)) for e in (1, 2, 4, 8)},
    **{f"PGD-3, ε = {e}": (_MOCO, _attack(e, 3)) for e in (4, 8)},
    **{f"N-FGSM, ε = {e}, one set of batch-norms": (_MOCO, _attack(e) | _SINGLE) for e in (4, 8)},
    "MoCo-v2, longer": (_MOCO, {}),
    "ACL": ("cifar10-acl+small", {}),
    "DeACL": ("cifar10-deacl+small", {}),
    "CF-AMC": ("cifar10-cf-amc+small", {}),
}
#: How many times as long as the others an arm is trained; the teacher of DeACL had the time of the others before.
LONGER = {"MoCo-v2, longer": 2, "CF-AMC": 2}


def fields(arm: str) -> dict[str, Any]:
    """Network, size and optimizer of MoCo-v2's small recipe for every arm."""
    from hexa import recipes

    small = recipes.get(_MOCO)
    same = {f"network.{name}": getattr(small.network, name) for name in ("widths", "stem_stride", "stem")}
    same |= {f"optimizer.{name}": value for name, value in small.optimizer.model_dump().items()}
    same |= {"views.size": small.views.size, "views.test_scale": small.views.test_scale}
    return COMMON | same | ARMS[arm][1]


def drawn(cifar10: str, folder: Path, count: int) -> str:
    """The first `count` / 10 training images of each class of CIFAR-10."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    folder = folder / str(count)
    if not (folder / "train.parquet").exists():
        folder.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(Path(cifar10.partition(":")[2]) / "train.parquet")
        rows = [
            i for c in range(10) for i in pc.indices_nonzero(pc.equal(table["label"], c)).to_pylist()[: count // 10]
        ]
        pq.write_table(table.take(rows), folder / "train.parquet")
    return f"parquet:{folder}"


def trained(arm: str, run: Path, changes: dict[str, Any]) -> float:
    """Train, or go on; seconds of one core."""
    from hexa import recipes
    from hexa.recipes.experiment import override
    from hexa.run.run import pretrain, resume

    begun = time.process_time()
    if (run / "config.yaml").exists():
        _ = resume(run)
    else:
        _ = pretrain(override(recipes.get(ARMS[arm][0]), fields(arm) | changes), run)
    return time.process_time() - begun


def cost(arm: str, work: Path, data: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Processor time of an epoch."""
    if arm == "DeACL":
        changes = changes | {"method.teacher": str(work / "cost-MoCo-v2-3")}
    seconds = {e: trained(arm, work / f"cost-{arm}-{e}", changes | {"data": data, "epochs": e}) for e in (1, 3)}
    return {"arm": arm, "seconds": (seconds[3] - seconds[1]) / 2} | made_by(work / f"cost-{arm}-3")


def unit(
    arm: str, seed: int, rate: float, score: bool, times: float, asked: argparse.Namespace, changes: dict[str, Any]
) -> dict[str, Any]:
    """One training and its scores. times: how many plain epochs one epoch of the arm takes."""
    from hexa.evaluation import evaluate

    def run(arm: str, rate: float) -> Path:
        return Path(asked.work / f"{arm}-{asked.length:g}-{seed}-{rate:g}")

    length, count = asked.length * LONGER.get(arm, 1), 10_000
    if times > length:
        count = int(count * length / times) // 10 * 10
    epochs = max(1, round(length / times))
    changes |= {"seed": seed, "optimizer.learning_rate": rate, "epochs": epochs}
    changes["data"] = drawn(asked.cifar10, asked.work, count)
    if arm == "DeACL":
        changes["method.teacher"] = str(run("MoCo-v2", asked.teacher_rate))
    seconds = trained(arm, run(arm, rate), changes)
    row = {"arm": arm, "seed": seed, "rate": rate, "epochs": epochs, "images": count, "cpu_seconds": seconds}
    attack = {"images": 1000 if score else 300, "losses": ["cross-entropy", "margin"], "restarts": 1}
    scored: dict[str, dict[str, Any]] = {"knn": {}, "robust": attack | {"epsilons": [1.0, 2.0, 4.0, 8.0]}}
    held = {} if score else {"holdout": 0.1}
    scores = {name: evaluate(name, str(run(arm, rate)), asked.cifar10, **how, **held) for name, how in scored.items()}
    found = {name: result["metrics"] for name, result in scores.items()}
    return row | {"score" if score else "held_out": found} | made_by(run(arm, rate))


def main() -> None:
    """Every row that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--length", type=float, default=16)
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
            print(json.dumps(cost(one, asked.work, drawn(asked.cifar10, asked.work, 2560), changes)))
            return
        print(json.dumps(unit(*one, asked, changes)))
        return

    def made(one: Any) -> Any:
        command = [sys.executable, *sys.argv, "--unit", json.dumps(one)]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    empty: dict[str, Any] = {"length": asked.length, "costs": [], "rows": []}
    stored = json.loads(asked.result.read_text()) if asked.result.exists() else empty
    write = lambda: asked.result.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")  # noqa: E731
    for arm in ["MoCo-v2", *asked.arms]:
        if arm not in {row["arm"] for row in stored["costs"]}:
            stored["costs"].append(made(arm))
            write()
            print(stored["costs"][-1], flush=True)
    seconds = {row["arm"]: row["seconds"] for row in stored["costs"]}
    have = {(row["arm"], row["seed"], row["rate"], "score" in row) for row in stored["rows"]}
    for seed, rate, arm in itertools.product(asked.seeds, asked.rates, asked.arms):
        if (key := (arm, seed, rate, asked.score)) not in have:
            stored["rows"].append(made([*key, seconds[arm] / seconds["MoCo-v2"]]))
            write()
            print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
