"""Does HEXA raise accuracy? Carries out benchmarks/claim/PLAN.md, unit by unit, on one core.

    python benchmarks/claim/run.py --cifar10 parquet:PATH/cifar10 --work FOLDER --rows FOLDER [--hours 2]
    python benchmarks/claim/run.py --list --rows FOLDER       what is made, what it took, and what comes next
    python benchmarks/claim/run.py --report                   the page and the plot, from benchmarks/claim/rows
    python benchmarks/claim/run.py --smoke --cifar10 … --work FOLDER    the whole path in minutes, with tiny trainings

Every unit is a process of its own with one thread, and writes one file into the folder of rows as soon as it ends. Rows
that are there are not made again, and an interrupted training resumes from its last checkpoint, so the same command
continues after any stop. `--hours` ends the work after that time; a training is then saved in the middle. If the work
folder is lost, unfinished trainings start again, and nothing else is lost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import plan
from plan import Row, Unit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Everything that all arms and steps have in common.
COMMON: dict[str, Any] = {
    "monitor.knn_every": 0,
    "training.device": "cpu",
    "training.num_workers": 0,
    "training.precision": "fp32",
    "training.report": False,
    "training.tensorboard": False,
    "objective.reduction": "sum",
}
EVALUATION: dict[str, Any] = {"device": "cpu", "precision": "fp32", "num_workers": 0}
#: Images of a class that are held out for choices, the last ones of the training images; and those of the small set,
#: the first ones.
HELD, FEW = 500, 200
#: Rates of the network in fine-tuning on 500 labels, of which held-out images choose one for each run.
TUNING_RATES = (0.01, 0.05)
#: `--smoke`: small networks and few images.
SMOKE: dict[str, Any] = {"network.widths": [8, 16], "batch_size": 64}
SMOKE_METHOD: dict[str, dict[str, Any]] = {
    plan.MOCO: {"method.queue_size": 128},
    plan.DEEPCLUSTER: {"method.num_prototypes": [5, 5, 5], "method.hidden": 16},
}


# -- data --------------------------------------------------------------------------------------------------------------


def data_sets(cifar10: str, folder: Path, smoke: bool) -> dict[str, str]:
    """The data sets by name, made once: all, tune (no held-out images; these are its test split), small."""
    import pyarrow.parquet as pq

    original = Path(cifar10.partition(":")[2])
    where = {name: folder / name for name in ("all", "tune", "small")}
    named = {name: f"parquet:{path}" for name, path in where.items()}
    last = where["all"] / "test.parquet"
    if last.exists():
        return named
    held, few = (10, 20) if smoke else (HELD, FEW)
    train = pq.read_table(original / "train.parquet")
    if smoke:
        train = train.take(_of_each_class(train, slice(0, 60)))
    fit, out = (_of_each_class(train, part) for part in (slice(0, -held), slice(-held, None)))
    tables = {
        ("all", "train"): train,
        ("tune", "train"): train.take(fit),
        ("tune", "test"): train.take(out),
        ("small", "train"): train.take(_of_each_class(train, slice(0, few))),
    }
    for (name, split), table in tables.items():
        _written(table, where[name] / f"{split}.parquet")
    test = pq.read_table(original / "test.parquet")
    _written(test.slice(0, 200) if smoke else test, last)
    return named


def _of_each_class(table: Any, part: slice) -> list[int]:
    """Positions of a part of the images of each class, in order."""
    labels = table["label"].to_pylist()
    places = [[i for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))]
    return sorted(place for rows in places for place in rows[part])


def _written(table: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    from hexa.runtime.files import write_whole

    _ = write_whole(path, lambda file: pq.write_table(table, file))


# -- one unit ----------------------------------------------------------------------------------------------------------


def kind_of_machine() -> str:
    """What has to be equal within a pair: processor, instructions, torch, threads, and the package's code."""
    import torch

    from hexa.runtime.packages import processor_name, provenance

    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else []
    model = [
        line.split(":")[1].strip() for line in lines if line.startswith(("cpu family", "model\t"))
    ]
    parts = [processor_name(), "/".join(model[:2]), torch.backends.cpu.get_cpu_capability()]
    source = str(provenance()["source"])[:12]
    return " · ".join(
        [*parts, f"torch {torch.__version__}", "1 thread", "fp32", f"source {source}"]
    )


def fields_of(
    unit: Unit, step: plan.Step, data: str, dose: float | None, smoke: bool
) -> dict[str, Any]:
    """What a unit changes in its recipe."""
    from hexa import recipes

    often = 20 if step.epochs > 200 else 1
    fields: dict[str, Any] = COMMON | {"data": data, "seed": unit.seed, "epochs": step.epochs}
    fields |= {"training.checkpoint_every": often}
    if step.marks:
        fields["training.keep_every"] = math.gcd(*step.marks)
    if step.recipe == plan.MOCO:
        fields |= {"optimizer.name": "sgd", "optimizer.learning_rate": unit.rate}
    else:
        published = recipes.get(step.recipe.partition("+")[0]).optimizer
        fields |= {f"optimizer.{name}": value for name, value in published.model_dump().items()}
        fields |= {"optimizer.learning_rate": unit.rate}
    if smoke:
        fields |= SMOKE | SMOKE_METHOD[step.recipe]
    return fields | plan.changes(unit.arm, dose)


def trained(recipe: str, fields: dict[str, Any], run: Path, stamp: str) -> None:
    """Train in the folder `run`, or resume there. A training of another kind of machine starts again."""
    from hexa import recipes
    from hexa.recipes.experiment import override
    from hexa.run.run import pretrain, resume
    from hexa.runtime.files import write_text

    note = run.with_name(f"{run.name}.stamp")
    if run.exists() and not (note.exists() and note.read_text() == stamp):
        shutil.rmtree(run)
    if (run / "config.yaml").exists():
        _ = resume(run)
        return
    shutil.rmtree(run, ignore_errors=True)
    write_text(note, stamp)
    _ = pretrain(override(recipes.get(recipe), fields), run)


def measured(
    unit: Unit, step: plan.Step, run: Path, data: dict[str, str], smoke: bool
) -> dict[str, Any]:
    """The scores of a trained unit, in percent."""
    scored = data[step.scored]
    scores: dict[str, Any] = {"knn": score("knn", run, scored)["top1"]}
    if not step.tests:
        return scores
    for mark in step.marks:
        scores[f"knn@{mark}"] = score("knn", at_epoch(run, mark, step.epochs), scored)["top1"]
    scores["probe"] = score("probe", run, scored)["top1"]
    if step.recipe == plan.DEEPCLUSTER:
        return scores | fine_tuned(unit, run, scored, smoke)
    few = score("probe", run, scored, shots=[1, 16])
    scores |= {f"labels{count}": few[f"top1@{count}"] for count in (1, 16)}
    attacked = score(
        "robust", run, scored, preset="pgd", images=20 if smoke else 1000, epsilons=[2.0]
    )
    return scores | {"robust2": attacked["robust@2"]}


def fine_tuned(unit: Unit, run: Path, scored: str, smoke: bool) -> dict[str, Any]:
    """Fine-tuning on 500 labels, three draws, at the rate that held-out training images choose; and on all labels."""
    epochs = 1 if smoke else 100
    how: dict[str, Any] = {"labels": 10 if smoke else 500, "epochs": epochs, "score_every": epochs}
    how |= {"batch_size": 10 if smoke else 64, "head_rate": 1.0, "seed": unit.seed}
    held = {
        rate: score("semi-supervised", run, scored, trunk_rate=rate, holdout=0.1, **how)[
            "top1_last"
        ]
        for rate in TUNING_RATES
    }
    rate = plan.best(held)
    draws = {"draws": 1 if smoke else 3}
    few = score("semi-supervised", run, scored, trunk_rate=rate, **draws, **how)
    epochs = 1 if smoke else 5
    every = {"epochs": epochs, "score_every": epochs, "learning_rates": [0.001], "seed": unit.seed}
    return {
        "labels500": few["top1_last"],
        "tuning_rate": rate,
        "held_out": {f"{one:g}": value for one, value in held.items()},
        "all_labels": score("fine-tune", run, scored, **every)["top1_last"],
    }


def score(protocol: str, backbone: Path, data: str, **options: Any) -> dict[str, float]:
    from hexa.evaluation import evaluate

    found: dict[str, float] = evaluate(protocol, str(backbone), data, **EVALUATION, **options)[
        "metrics"
    ]
    return found


def at_epoch(run: Path, epoch: int, epochs: int) -> Path:
    """The checkpoint at the end of an epoch."""
    from hexa.runtime.checkpoints import checkpoints, path_of, step_of

    folder = run / "checkpoints"
    last = step_of(checkpoints(folder)[-1])
    return path_of(folder, last // epochs * epoch)


def risen(run: Path, smoke: bool) -> dict[float, float]:
    """ε in 1/255 -> the mean rise of the loss of a run by one step, over ten batches of its own training views.

    Gradient and loss go through the main batch-norms in training mode, which the passes leave as they are.
    """
    import torch

    from hexa.core import MAIN, Branch
    from hexa.objective import STD
    from hexa.run.visualize import Look
    from hexa.runtime.random import Stream
    from hexa.training.overfitting import unchanged

    look = Look.at(run, None)
    doses = {f"at {epsilon:g}": epsilon for epsilon in plan.DOSES}
    attacks = {
        name: {"kind": "adversarial", "branch": "main", "epsilon": epsilon, "step_size": epsilon}
        for name, epsilon in doses.items()
    }
    objective = look.objective(attacks)
    still, count = Branch(MAIN.name, update=False), 1 if smoke else 10
    total = dict.fromkeys(plan.DOSES, 0.0)
    for number in range(count):
        batch = look.batch(
            look.experiment.batch_size, Stream(plan.CHOICE_SEED).child("dose", number)
        )
        with unchanged(objective.method):
            examples = objective.examples(batch)
            with torch.no_grad():
                loss = {
                    name: float(example.score_at(example.crops, still).mean())
                    for name, example in examples.items()
                }
        for name, epsilon in doses.items():
            total[epsilon] += (loss[name] - loss[STD]) / count
    return total


def row_of(unit: Unit, given: argparse.Namespace) -> Row:
    """Carry out one unit."""
    import torch

    from hexa.run.folder import CHECKPOINTS
    from hexa.runtime import checkpoints
    from hexa.runtime.packages import processor_name, provenance
    from hexa.training.journal import now
    from hexa.training.losses import NonFiniteError

    torch.set_num_threads(1)
    steps, rows = plan.smaller(plan.STEPS) if given.smoke else plan.STEPS, stored(given.rows)
    data = data_sets(given.cifar10, given.work / "data", given.smoke)
    origin, commit = plan.DOSE_RUN if unit == plan.DOSE else unit, str(provenance()["commit"])
    step, kind, dose = steps[origin.step], kind_of_machine(), plan.dose(rows)
    fields = fields_of(origin, step, data[step.trained], dose, given.smoke)
    run = given.work / "runs" / origin.name
    shown = {name: value for name, value in fields.items() if name != "data"}
    row: Row = unit._asdict() | {
        "recipe": step.recipe,
        "overrides": shown | {"data": step.trained},
        "dose": dose,
        "scored": step.scored,
        "smoke": given.smoke,
        "commit": commit.removesuffix("-dirty"),
        "clean": len(commit) == 40,
        "source": provenance()["source"],
        "kind": kind,
        "cpu": processor_name(),
        "torch": torch.__version__,
        "precision": "fp32",
        "threads": torch.get_num_threads(),
    }
    try:
        trained(step.recipe, fields, run, f"{kind} {json.dumps(fields, sort_keys=True)}")
    except NonFiniteError as error:
        return row | {"time": now(), "diverged": str(error)}
    newest = checkpoints.newest_good_of_all(run / CHECKPOINTS, print, torch.device("cpu"))
    row["training_seconds"] = round(newest[1]["seconds"], 1) if newest else None
    begun = time.process_time()
    if unit == plan.DOSE:
        rises = risen(run, given.smoke)
        row |= {"rises": {f"{epsilon:g}": rise for epsilon, rise in rises.items()}}
        row |= {"epsilon": plan.dose_of(rises)}
    else:
        row["scores"] = measured(unit, step, run, data, given.smoke)
    return row | {"scoring_seconds": round(time.process_time() - begun, 1), "time": now()}


# -- all units ---------------------------------------------------------------------------------------------------------


def stored(folder: Path) -> list[Row]:
    """The rows of a folder, in the order in which they were made."""
    rows = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(rows, key=lambda row: (row["time"], row["step"], row["arm"], row["rate"]))


def file_of(unit: Unit, kind: str, folder: Path) -> Path:
    return folder / f"{unit.name}-{hashlib.sha256(kind.encode()).hexdigest()[:8]}.json"


def following(rows: list[Row], kind: str, given: argparse.Namespace) -> Unit | None:
    """The first unit of the plan that is not made and may be made here."""
    steps, warned = plan.smaller(plan.STEPS) if given.smoke else plan.STEPS, set[tuple[str, int]]()
    for unit in plan.units(rows, steps):
        if plan.is_made(unit, rows, kind, steps):
            continue
        if plan.held_back(unit, rows, kind, steps) and not given.again_here:
            if (unit.step, unit.seed) not in warned:
                remedy = (
                    "left for that one; --again-here makes all arms of the seed on this machine"
                )
                print(f"{unit.step} seed {unit.seed}: begun on another kind of machine, {remedy}")
            warned.add((unit.step, unit.seed))
            continue
        return unit
    return None


def work(given: argparse.Namespace) -> None:
    """Every unit that lacks a row, until there is none or the time is over."""
    from hexa.runtime.lock import locked
    from hexa.runtime.packages import commit

    if not given.smoke and len(str(commit())) != 40:
        raise SystemExit(
            f"the checkout is not at a clean commit ({commit()}); commit, then start again"
        )
    end = time.monotonic() + 3600 * given.hours if given.hours else math.inf
    kind, environment = kind_of_machine(), os.environ | {"OMP_NUM_THREADS": "1"}
    given.rows.mkdir(parents=True, exist_ok=True)
    with locked(given.work / ".lock", "is already carrying out the plan there"):
        while time.monotonic() < end and (unit := following(stored(given.rows), kind, given)):
            print(f"{time.strftime('%H:%M:%S')} {unit.name}", flush=True)
            command = [sys.executable, *sys.argv, "--unit", json.dumps(unit)]
            child = subprocess.Popen(command, env=environment)
            try:
                code = child.wait(None if end == math.inf else max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.terminate()
                _ = child.wait()
                print(f"{unit.name}: stopped; the same command continues", flush=True)
                return
            finished = file_of(unit, kind, given.rows)
            if code or not finished.exists():
                raise SystemExit(f"{unit.name}: ended with exit code {code} and without a row")
            tidy(unit, given)


def tidy(unit: Unit, given: argparse.Namespace) -> None:
    """Remove the checkpoints of a unit that has its row; the dose needs those of its run until it is known."""
    if unit != plan.DOSE_RUN:
        origin = plan.DOSE_RUN if unit == plan.DOSE else unit
        shutil.rmtree(given.work / "runs" / origin.name / "checkpoints", ignore_errors=True)


def one(given: argparse.Namespace) -> None:
    """The process of one unit."""
    from hexa.runtime.files import write_text
    from hexa.runtime.signals import Interrupted
    from hexa_paper.torchrun import end_with_parent

    end_with_parent()
    unit = Unit(*json.loads(given.unit))
    try:
        row = row_of(unit, given)
    except Interrupted as stopped:
        raise SystemExit(stopped.exit_code) from None
    write_text(file_of(unit, row["kind"], given.rows), json.dumps(row, indent=1) + "\n")
    print(json.dumps(row.get("scores", row.get("rises", row.get("diverged")))), flush=True)


def listed(given: argparse.Namespace) -> None:
    """Print the rows with their cost, and how many units of each step are known and made."""
    steps, rows = plan.smaller(plan.STEPS) if given.smoke else plan.STEPS, stored(given.rows)
    for row in rows:
        spent = (row.get("training_seconds") or 0) + (row.get("scoring_seconds") or 0)
        found = row.get("scores", row.get("rises", row.get("diverged")))
        print(f"{row['time']} {plan.unit_of(row).name} {spent / 60:.0f} min {found}")
    made = {plan.unit_of(row) for row in rows}
    known = list(dict.fromkeys(plan.units(rows, steps)))
    for name in dict.fromkeys(unit.step for unit in known):
        of_step = [unit for unit in known if unit.step == name]
        print(f"{name}: {sum(unit in made for unit in of_step)} of {len(of_step)} known units made")
    print(f"next: {next((unit.name for unit in known if unit not in made), 'nothing')}")


def main() -> None:
    """Work, list, or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cifar10", help="parquet:PATH, the folder of train.parquet and test.parquet"
    )
    parser.add_argument("--work", type=Path, help="folder of trainings and data sets")
    parser.add_argument("--rows", type=Path, help="folder of rows (default: benchmarks/claim/rows)")
    parser.add_argument("--hours", type=float, help="end after this time (default: no limit)")
    parser.add_argument(
        "--again-here",
        action="store_true",
        help="make all arms of a seed again that another kind of machine began",
    )
    parser.add_argument("--list", action="store_true", help="print rows, costs and what comes next")
    parser.add_argument("--report", action="store_true", help="write the page and its plot")
    parser.add_argument("--page", type=Path, default=ROOT / "docs", help="folder of the page")
    parser.add_argument("--smoke", action="store_true", help="try every step with tiny trainings")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rows is None:
        given.rows = given.work / "rows" if given.smoke and given.work else HERE / "rows"
    if given.list:
        listed(given)
        return
    if given.report:
        import report

        report.write(stored(given.rows), given.page)
        return
    if given.cifar10 is None or given.work is None:
        parser.error("training needs --cifar10 and --work")
    (one if given.unit else work)(given)


if __name__ == "__main__":
    main()
