"""`hexa harden` on the sets of `draw_sets.py` by several seeds, each verdict beside heads on images it did not see.

    python benchmarks/harden_sets.py --start WEIGHTS --sets FOLDER --work FOLDER --result FILE
        [--names hands clothes …] [--seeds 0 1 2 3 4] [--arms recipe …] [--autoattack SET:SEED …] [--ends]
        [--shares 0.25 0.5 1] [--on objects …] [--images 600] [--device cuda] [--jobs 12] [--seconds 500]

Each set's `train` is learned from and its `labelled` judges. Then the start and the weights that the price left, with
`--ends` also those at the end of each training, are scored on the first `--images` of `test` at the size of the
verdict, by heads on `labelled`: k-NN, a linear probe, and 400 images under APGD of 20 steps with three targets. Arms differ
in rate, strength, length or views, see ARMS; views have 96 pixels and the result 160 of 224, as `hexa harden` chooses
on two cores. AutoAttack within ε = 1 is of the weights that the price left by the first arm, on 200 images.
`--shares` of the way to the end of each training are scored on one half of `labelled` by heads on the other, to choose
by: 150 images under APGD of 10 steps with one target. The weights that the price left on one set are also scored `--on` others, by heads
on the others' `labelled`, and by 1 to 16 labels of each of their classes. Layouts of links for these heads are written
into the sets' folders, anew each time. Every job is a process of its own, `--jobs` of them at once; a row is written as
soon as it exists, rows that FILE has are not made again, and no job begins after `--seconds`. Ends with 1 if a job
failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

#: About what 15 minutes of two cores are enough for, at the rate of the recipe `teacher`.
RECIPE: dict[str, Any] = {"max_steps": 1000, "optimizer.learning_rate": 0.002}
MIXED = {"kind": "cutmix", "weight": 0.0, "per_sample": True}
#: Of as many pixels as the result sees: 96 of 160 are 0.36 of the area.
CROPS: dict[str, Any] = {"views.scale": (0.36, 1.0), "views.ratio": (3 / 4, 4 / 3)}


def clean(share: float) -> dict[str, Any]:
    """This share of each batch is not attacked; 1/32 in the recipe."""
    return {"objective.clean_fraction": share, "hard_examples.adversarial.fraction": 1 - share}


#: By name: what `hexa harden` is given beside `PRICE` and `SIZE`.
ARMS: dict[str, dict[str, Any]] = {
    "recipe": RECIPE,
    "half the rate": RECIPE | {"optimizer.learning_rate": 0.001},
    "crops": RECIPE | CROPS,
    "crops, half the rate": RECIPE | CROPS | {"optimizer.learning_rate": 0.001},
    "crops, a quarter clean": RECIPE | CROPS | clean(1 / 4),
    "crops, half clean": RECIPE | CROPS | clean(1 / 2),
    "a quarter": RECIPE | {"optimizer.learning_rate": 0.0005},
    # the attack is on cut-mixed images, which are to have both images' features by area
    "cut-mixed": RECIPE
    | {f"hard_examples.cutmix.{name}": value for name, value in MIXED.items()}
    | {"hard_examples.adversarial.source": "cutmix"},
    "ε = 2": RECIPE | {"strength": 2.0},
    "hour": RECIPE | {"max_steps": 4000},
    "short": {"max_steps": 20},
}
PRICE, VIEWS, SIZE, NEIGHBOURS = 1.0, 96, 160, 15
ATTACK: dict[str, Any] = {"epsilons": [1, 2, 4], "steps": 20, "targets": 3, "images": 400}
FEW = (1, 2, 4, 8, 16)
QUICK: dict[str, Any] = {
    "epsilons": [1, 2],
    "steps": 10,
    "targets": 1,
    "images": 150,
}


def scores(
    backbone: Any,
    layout: Path,
    asked: argparse.Namespace,
    attack: dict[str, Any],
    few: bool = False,
) -> dict[str, Any]:
    """Accuracy of heads on a layout's train, on its test, in percent: under attack, by k-NN, probe and few labels."""
    from hexa.evaluation import evaluate

    how: dict[str, Any] = {"device": asked.device, "num_workers": 0, "size": SIZE}

    def measure(protocol: str, **options: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = evaluate(
            protocol, backbone, f"folder:{layout},links=follow", **options, **how
        )["metrics"]
        return metrics

    found: dict[str, Any] = measure("robust", extraction_batch=100, **attack)
    if few:
        found |= {k: v for k, v in measure("probe", shots=FEW).items() if k[5:] in map(str, FEW)}
    if "preset" not in attack:
        found |= {"knn": measure("knn", k=NEIGHBOURS)["top1"], "probe": measure("probe")["top1"]}
    return found


def layouts(folder: Path, images: int) -> None:
    """Layouts of links. `further`: train is `labelled`, test the first images of `test`; `halves`: of `labelled`."""
    labelled, test = (
        sorted((folder / n).rglob("*.*"), key=lambda file: file.name) for n in ("labelled", "test")
    )
    parts = {"further/train": labelled, "further/test": test[:images]}
    for name in ("further", "halves"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for part, files in (
        parts | {"halves/train": labelled[1::2], "halves/test": labelled[::2]}
    ).items():
        for file in files:
            link = folder / part / file.parent.name / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())


def row(asked: argparse.Namespace, job: dict[str, Any]) -> dict[str, Any]:
    """What a job measured."""
    from made_by import made_by

    import hexa
    from hexa.adaptation.harden_verdict import between
    from hexa.run.folder import ADAPTATION
    from hexa.runtime.packages import provenance
    from hexa.weights.pretrained import load_backbone

    folder, begun = asked.sets / job["data"], time.perf_counter()
    start = load_backbone(asked.start)
    if job["arm"] == "start":
        return {
            "further": scores(start, folder / "further", asked, ATTACK, few=True),
            **provenance(),
        }
    run = asked.work / f"{job['data']}-{job.get('of', job['arm']).replace(' ', '')}-{job['seed']}"
    if "of" in job:
        share = (
            job["share"]
            if "share" in job
            else json.loads((run / ADAPTATION).read_text())["comparison"]["share"]
        )
        made = between(start, load_backbone(run), share)
        if job["arm"] == "way":
            return {"halves": scores(made, folder / "halves", asked, QUICK), **made_by(run)}
        if job["arm"] == "on":
            other = asked.sets / job["on"] / "further"
            return {"further": scores(made, other, asked, ATTACK, few=True), **made_by(run)}
        attack = (
            ATTACK
            if job["arm"] == "end"
            else {"preset": "autoattack", "epsilons": [1], "images": 200}
        )
        return {"further": scores(made, folder / "further", asked, attack), **made_by(run)}
    fields = {
        "views.size": VIEWS,
        "views.test_scale": SIZE / VIEWS,
        "epochs": 10_000,
        "seed": job["seed"],
    }
    fields |= {
        "training.device": asked.device,
        "training.num_workers": 0,
        "price": PRICE,
        **ARMS[job["arm"]],
    }
    found = hexa.harden(
        asked.start, str(folder / "train"), labelled=str(folder / "labelled"), out=run, **fields
    )
    told = {name: found[name] for name in ("plan", "verdict", "kept", "comparison", "notes")}
    told["plan"] = [
        line.replace(str(asked.start), "WEIGHTS").replace(str(folder), "SET")
        for line in told["plan"]
    ]
    told["seconds"] = time.perf_counter() - begun
    kept = between(start, load_backbone(run), found["comparison"]["share"])
    return {**told, "further": scores(kept, folder / "further", asked, ATTACK), **made_by(run)}


def main() -> int:
    """Every job whose row FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--start", "--sets", "--work", "--result"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--names", nargs="+", default=["hands", "clothes", "objects", "groceries"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=["recipe"])
    parser.add_argument("--autoattack", nargs="*", default=[], metavar="SET:SEED")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--ends", action="store_true", help="also the weights at the end of the trainings"
    )
    parser.add_argument("--on", nargs="*", default=[], metavar="SET", help="other sets to score on")
    parser.add_argument("--shares", type=float, nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(row(asked, asked.job)))
        return 0
    begun, alone, failed = time.perf_counter(), Lock(), list[dict[str, Any]]()
    stored: dict[str, Any] = {"rows": []}
    if asked.result.exists():
        stored = json.loads(asked.result.read_text())
    asked.work.mkdir(parents=True, exist_ok=True)
    for name in {*asked.names, *asked.on}:
        layouts(asked.sets / name, asked.images)

    def make(job: dict[str, Any]) -> bool:
        """Whether the row of a job is there, or could be made in time, by a process of its own."""
        if any(job.items() <= other.items() for other in stored["rows"]):
            return True
        if time.perf_counter() - begun >= asked.seconds:
            return False
        command = [sys.executable, __file__, *sys.argv[1:], "--job", json.dumps(job)]
        log = asked.work / ("-".join(map(str, job.values())).replace(" ", "") + ".log")
        with log.open("w") as told:
            made = subprocess.run(command, stdout=subprocess.PIPE, stderr=told, text=True)
        with alone:
            if made.returncode:
                failed.append(job)
                print(f"{job}: ended with {made.returncode}; {log.read_text()[-600:]}", flush=True)
                return False
            stored["rows"].append(job | json.loads(made.stdout.splitlines()[-1]))
            asked.result.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
            print(f"{time.perf_counter() - begun:.0f} s: {stored['rows'][-1]}", flush=True)
        return True

    chains: list[list[dict[str, Any]]] = []
    for arm in asked.arms:
        for seed, name in itertools.product(asked.seeds, asked.names):
            job = {"data": name, "arm": arm, "seed": seed}
            shares = [("end", 1.0)] * asked.ends + [("way", share) for share in asked.shares]
            later = [{**job, "arm": kind, "of": arm, "share": share} for kind, share in shares]
            attacked = arm == asked.arms[0] and f"{name}:{seed}" in asked.autoattack
            later += [
                {**job, "arm": "on", "of": arm, "on": other}
                for other in asked.on
                if arm == asked.arms[0]
            ]
            chains.append([job, *[{**job, "arm": "autoattack", "of": arm}] * attacked, *later])
    chains += [
        [{"data": name, "arm": "start"}] for name in dict.fromkeys([*asked.names, *asked.on])
    ]
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(lambda chain: all(make(job) for job in chain), chains))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
