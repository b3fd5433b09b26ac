"""Does training further from ImageNet's weights help, and do hard examples? Three data sets, at equal time.

    python benchmarks/from_weights.py --omniglot parquet:PATH/omniglot_small --cifar10 parquet:PATH/cifar10 \
        --voc voc:PATH/VOCdevkit --work FOLDER --result FILE [--seeds 0 1 2] [--only omniglot/plain]

The start is EfficientNet-Lite0 (benchmarks/networks.py). Every arm is the recipe `adapt` and trains for an equal time,
counted in passes (1 : 2 : 2 : 3, since all of SimCLR's crops carry gradient); `cpu_seconds` is what training took of
one core, where it was not interrupted. Nothing is chosen on the images that are scored. A row is written as soon as it
exists, and rows that FILE has are not made again: ended anywhere, the command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import networks

#: The recipe is that of `hexa adapt` until 2026-11-26, chosen on held-out training images of Omniglot and CIFAR-10.
COMMON = {
    "monitor.knn_every": 0,
    "training.report": False,
    "training.tensorboard": False,
}
#: cifar10-moco-v2+small as it was until 2026-11-25, so that new rows belong beside older ones.
NINE_LAYERS = {
    "network.widths": [16, 32, 64, 128],
    "network.stem": "learned",
    "views.size": 32,
    "views.test_scale": 1.0,
    "views.scale": [0.08, 1.0],
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.03,
    "method.queue_size": 4096,
    "method.momentum": 0.99,
}


def narrow(recipe: str) -> dict[str, Any]:
    """The fields of `+small` of MoCo-v2, SimCLR, DeepCluster-v2, BYOL or rotation as it was until 2026-11-27."""
    from hexa import recipes

    if "moco-v2" in recipe:
        return NINE_LAYERS
    full = recipes.get(recipe.partition("+")[0])
    optimizer = {f"optimizer.{name}": value for name, value in full.optimizer.model_dump().items()}
    views = {f"views.{name}": getattr(full.views, name) for name in ("size", "test_scale", "scale")}
    return {"network.widths": [16, 32, 64, 128], "network.stem": "learned", **views, **optimizer}


#: `adapt` as it was until then.
BY_SGD = {"optimizer.name": "sgd", "optimizer.learning_rate": 0.005, "method.temperature": 0.2}
SETS: dict[str, dict[str, Any]] = {
    # characters: mirrored they are others, and half of one is none
    "omniglot": {
        "views.size": 64,
        "views.scale": [0.5, 1.0],
        "views.flip_probability": 0.0,
        **BY_SGD,
    },
    "cifar10": {"views.size": 64, **BY_SGD},
    "voc": {"views.size": 96, **BY_SGD},
    # MoCo-v2 with the fields of its small recipe, at the rate that was seen to work from outside; nothing was searched
    "omniglot-moco": {
        "recipe": "cifar10-moco-v2+small",
        "views.size": 64,
        "views.scale": [0.5, 1.0],
        "views.flip_probability": 0.0,
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 0.02,
        "method.queue_size": 4096,
        "method.momentum": 0.99,
    },
}
#: With `--only`: at 96 pixels, what was seen from outside with six epochs of either.
SETS |= {f"{name}-96": SETS[name] | {"views.size": 96} for name in ("omniglot", "omniglot-moco")}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "head first": {"start.freeze_backbone": 1},
    "adversarial": {"start.freeze_backbone": 1, "hard_examples.adversarial.weight": 1.0},
    "cutmix": {"start.freeze_backbone": 1, "hard_examples.cutmix.weight": 1.0},
    "both": {
        "start.freeze_backbone": 1,
        "hard_examples.adversarial.weight": 1.0,
        "hard_examples.cutmix.weight": 1.0,
    },
    "shorter": {"start.freeze_backbone": 1},  # as many epochs as one hard example gets
    "random weights": {},
    # MoCo-v2
    "moco": {},
    "moco, shorter": {},  # as many epochs as with adversarial views
    "moco, adversarial": {"hard_examples.adversarial.weight": 1.0},
    "moco, cutmix": {"hard_examples.cutmix.weight": 1.0},
    "moco, both": {"hard_examples.adversarial.weight": 1.0, "hard_examples.cutmix.weight": 1.0},
    "moco, split": {
        "hard_examples.cutmix.weight": 1.0,
        "hard_examples.cutmix.fraction": 0.5,
        "objective.split": True,
        "objective.clean_fraction": 0.5,
    },
    "lightly-train": {},
    "lightly-train, our rate": {},
}
#: Epochs of an arm with no hard examples; each of those divides them.
EPOCHS = {"omniglot": 12, "cifar10": 6, "voc": 6}
PASSES = {"adversarial": 2, "cutmix": 2, "both": 3, "shorter": 2}
#: MoCo-v2's passes of the key network cost the same for every arm.
MOCO_EPOCHS = {
    "moco": 11,
    "moco, shorter": 6,
    "moco, adversarial": 6,
    "moco, cutmix": 6,
    "moco, both": 4,
    "moco, split": 11,
}
#: What lightly-train does in the same time, rounded up.
LIGHTLY_TRAIN = {"omniglot": 6, "cifar10": 3, "voc": 3}
#: Its rates for a batch of 256; 0.01 is 0.005 for our 128.
LIGHTLY_RATES = {"lightly-train": "default", "lightly-train, our rate": "0.01"}
#: Neighbours, and the weight decay of the probe: with 242 classes a search for the best one would take longer than the
#: training; 1e-3 is what it chose for the start.
NEIGHBOURS, DECAY = 15, 1e-3
VOC: tuple[tuple[str, dict[str, Any]], ...] = (
    ("svm", {"preset": "pcl"}),
    ("low-shot", {"preset": "pcl", "shots": [1, 2, 4, 8, 16]}),
)
#: To choose a setting by: a share of the training images of VOC, held out from the SVMs.
HELD_OUT: tuple[tuple[str, dict[str, Any]], ...] = (("svm", {"preset": "pcl", "holdout": 0.3}),)


def experiment(name: str, data: str, arm: str, seed: int, epochs: int = 1) -> Any:
    """The experiment of one arm on one data set."""
    from hexa import recipes
    from hexa.recipes.experiment import override
    from hexa.run.start import begin_from_weights

    fields = COMMON | SETS[name] | ARMS[arm] | {"data": data, "seed": seed, "epochs": epochs}
    recipe = fields.pop("recipe", "adapt")
    if arm == "random weights":
        fields |= {"network.name": "tf_efficientnet_lite0"}
    else:
        fields |= {"start.weights": networks.weights()}
    return begin_from_weights(override(recipes.get(recipe), fields), fields)


def measured(name: str, backbone: Any, data: str, held_out: bool = False) -> dict[str, float]:
    """Every metric of a backbone on a data set, in percent. held_out: of VOC, by held-out training images."""
    import torch

    from hexa.data import open_source
    from hexa.evaluation import evaluate
    from hexa.evaluation.features import extract
    from hexa.evaluation.protocols.knn import knn_classify
    from hexa.evaluation.protocols.probe import fast_probe
    from hexa.weights.pretrained import load_backbone

    how = {"size": SETS[name]["views.size"], "crop": 1.0}
    if name == "voc":
        found = {}
        for protocol, options in HELD_OUT if held_out else VOC:
            result = evaluate(protocol, backbone, data, **how, **options)
            found |= {f"{protocol} {metric}": value for metric, value in result["metrics"].items()}
        return found
    loaded = load_backbone(backbone, **how)
    sources = [open_source(data, split) for split in ("train", "test")]
    (x, rows), (test, judged) = (extract(loaded, source) for source in sources)
    y, wanted = (
        torch.from_numpy(source.classes)[places]
        for source, places in zip(sources, (rows, judged), strict=True)
    )
    classes = int(y.max()) + 1
    votes = knn_classify(x, y, test, NEIGHBOURS, 0.07, classes).argmax(1)
    probe = fast_probe(x, y, test, wanted, num_classes=classes, weight_decays=(DECAY,))
    row = {
        "knn": 100 * float((votes == wanted).double().mean()),
        "probe": probe["top1"],
        "probe top5": probe["top5"],
    }
    return row | further(name, backbone, data)


def further(name: str, backbone: Any, data: str) -> dict[str, float]:
    """The mAP of one SVM per class, and probes of 1 to 16 labels per class, the mean over five draws."""
    from hexa.evaluation import evaluate

    how = {"size": SETS[name]["views.size"], "crop": 1.0}
    svm = evaluate("svm", backbone, data, preset="pcl", **how)["metrics"]
    few = evaluate("probe", backbone, data, shots=[1, 2, 4, 8, 16], **how)["metrics"]
    return {"svm mAP": svm["mAP"]} | {
        f"probe {key}": value for key, value in few.items() if key.startswith("top1@")
    }


def with_lightly_train(
    python: str, name: str, data: str, arm: str, seed: int, run: Path
) -> dict[str, Any]:
    """The row of an arm that another library trains, in an environment of its own."""
    from hexa.data import open_source

    images = run.parent / f"{name}-images"
    if not images.exists():
        source = open_source(data, "train")
        images.mkdir(parents=True)
        for number in range(len(source)):
            (images / f"{number:06d}.png").write_bytes(source.encoded(number))
    views = SETS[name]
    fields = (
        views["views.size"],
        views.get("views.scale", [0.2])[0],
        views.get("views.flip_probability", 0.5),
    )
    weights, epochs = run.with_suffix(".pth"), LIGHTLY_TRAIN[name]
    script = Path(__file__).with_name("with_lightly_train.py")
    command = [
        python,
        *map(str, (script, images, weights, *fields, epochs, seed)),
        LIGHTLY_RATES[arm],
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = float(done.stdout.rpartition("cpu_seconds ")[2])
    return {"epochs": epochs, "cpu_seconds": seconds, "metrics": measured(name, str(weights), data)}


def unit(
    name: str, data: str, arm: str, seed: int, run: Path, python: str = "", held_out: bool = False
) -> dict[str, Any]:
    """One training and what it is worth."""
    from hexa.run.run import pretrain, resume
    from hexa.runtime.packages import provenance

    if arm in LIGHTLY_RATES:
        row = {"data": name, "arm": arm, "seed": seed, **provenance()}
        return row | with_lightly_train(python, name, data, arm, seed, run)
    epochs = (
        0
        if arm == "start"
        else MOCO_EPOCHS.get(arm) or EPOCHS[name.removesuffix("-96")] // PASSES.get(arm, 1)
    )
    row: dict[str, Any] = {"data": name, "arm": arm, "seed": seed, "epochs": epochs, **provenance()}
    if arm == "start":
        return row | {"metrics": measured(name, networks.weights(), data, held_out)}
    made = experiment(name, data, arm, seed, epochs)
    begun, going_on = time.process_time(), (run / "config.yaml").exists()
    _ = resume(run) if going_on else pretrain(made, run)
    if not going_on:
        row["cpu_seconds"] = time.process_time() - begun
    return row | {"metrics": measured(name, str(run), data, held_out)}


def fits(name: str, arm: str) -> bool:
    """Whether an arm is trained on a data set where none is named: MoCo-v2 is on Omniglot alone, at 64 pixels."""
    known = name in {*EPOCHS, "omniglot-moco"} and arm != "moco, shorter"
    return known and (arm == "start" or (arm in MOCO_EPOCHS) == (name == "omniglot-moco"))


def subset(cifar10: str, folder: Path, each: int = 200) -> str:
    """The first `each` training images of every class of CIFAR-10, and 4,000 test images."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = Path(cifar10.partition(":")[2])
    if not (folder / "test.parquet").exists():
        folder.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(path / "train.parquet")
        rows = [
            i
            for c in range(10)
            for i in pc.indices_nonzero(pc.equal(table["label"], c)).to_pylist()[:each]
        ]
        pq.write_table(table.take(rows), folder / "train.parquet")
        pq.write_table(pq.read_table(path / "test.parquet").slice(0, 4000), folder / "test.parquet")
    return f"parquet:{folder}"


def main() -> None:
    """Every unit that FILE lacks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in EPOCHS:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--held-out", action="store_true", help="measure VOC by held-out training images"
    )
    parser.add_argument(
        "--lightly-train",
        metavar="PYTHON",
        default="",
        help="an interpreter that has lightly-train",
    )
    parser.add_argument(
        "--again", action="store_true", help="only measure further what FILE has, by runs in FOLDER"
    )
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    data = {name: getattr(given, name) for name in EPOCHS}
    data |= {name: data["omniglot"] for name in SETS if name.startswith("omniglot")}
    data["cifar10"] = subset(data["cifar10"], given.work / "cifar10")
    if given.unit:
        asked = json.loads(given.unit)
        if "arm" not in asked:
            print(json.dumps(further(**asked)))
            return
        more = {
            "run": Path(asked["run"]),
            "python": given.lightly_train,
            "held_out": given.held_out,
        }
        print(json.dumps(unit(**asked | more)))
        return

    def child(asked: dict[str, Any]) -> Any:
        command = [sys.executable, *sys.argv, "--unit", json.dumps(asked)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return json.loads(
            subprocess.run(command, env=environment, check=True, capture_output=True).stdout
        )

    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}
    for row in stored["rows"] if given.again else []:
        name, arm = row["data"], row["arm"]
        run = given.work / f"{name}-{arm.replace(' ', '-')}-{row['seed']}"
        run = run.with_suffix(".pth") if arm in LIGHTLY_RATES else run
        known = (
            name == "voc"
            or "svm mAP" in row["metrics"]
            or (given.only and f"{name}/{arm}" not in given.only)
        )
        if not known and (arm == "start" or run.exists()):
            backbone = networks.weights() if arm == "start" else str(run)
            row["metrics"] |= child({"name": name, "backbone": backbone, "data": data[name]})
            given.result.write_text(json.dumps(stored, indent=1) + "\n")
            print(name, arm, row["seed"], row["metrics"], flush=True)
    if given.again:
        return
    for seed in given.seeds:
        for name in SETS:
            for arm in (["start"] if seed == given.seeds[0] else []) + [
                a for a in ARMS if seed == given.seeds[0] or a != "random weights"
            ]:
                wanted = f"{name}/{arm}" in given.only if given.only else fits(name, arm)
                if not wanted or any(
                    (r["data"], r["arm"], r["seed"]) == (name, arm, seed) for r in stored["rows"]
                ):
                    continue
                run = given.work / f"{name}-{arm.replace(' ', '-')}-{seed}"
                asked = {
                    "name": name,
                    "data": data[name],
                    "arm": arm,
                    "seed": seed,
                    "run": str(run),
                }
                row = child(asked)
                stored["rows"].append(row)
                given.result.write_text(json.dumps(stored, indent=1) + "\n")
                print(name, arm, seed, row.get("cpu_seconds"), row["metrics"], flush=True)


if __name__ == "__main__":
    main()
