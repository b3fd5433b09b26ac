"""Weights made robust without labels: the recipe `teacher` on CIFAR-10 or photographs, start beside result.

    OMP_NUM_THREADS=1 python benchmarks/harden.py --cifar10 parquet:PATH/cifar10 --work FOLDER --result FILE
        [--seeds 0 1 2] [--strengths 4] [--epochs 10] [--images 1000] [--fields objective.clean_fraction=1]
    OMP_NUM_THREADS=1 python benchmarks/harden.py --voc PATH/VOCdevkit --size 96 --judge chosen …

The start is EfficientNet-Lite0 (benchmarks/networks.py) at 64 pixels. Strengths are ε of the training's attack in grey
levels, with a step of ε from a random point. Figures are of a linear head on the frozen features, fitted to the
same 2,000 images with labels and tested on the first 4,000 of the test images, or on `--images` of them under attack:
APGD of 20 steps, on the cross-entropy and against three targets. Photographs are all 900 of VOC2007's trainval half; on
those of its test half with objects of one class the verdict of `hexa harden` is taken (cross-validated k-NN and probe,
corruptions, the same attacks): one half to choose by (`--judge chosen`), the other to report (`final`).
`cpu_seconds` is what the training took of one core, where it was not interrupted; `--fields` change the recipe, and
name the arm; `--shares` of the way from the start to the result are measured too. `--train` trains and measures
nothing, so that the same command without it measures later. A row is written as soon as it
exists, and rows that FILE has are not made again: ended anywhere, the command goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path
from typing import Any

import networks
import torch
from from_weights import COMMON, subset
from made_by import made_by

from hexa import recipes
from hexa.adaptation.harden_verdict import between
from hexa.adaptation.robustness import Shown, Side, attack_all
from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import Judge, labels_of
from hexa.data import open_source
from hexa.evaluation import evaluate
from hexa.recipes.experiment import override
from hexa.run.run import pretrain, resume
from hexa.run.start import begin_from_weights
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import Backbone, load_backbone

NEIGHBOURS = 15
#: Holds the seconds of one core of a training that was not interrupted, in its folder.
SECONDS = "cpu_seconds.txt"
ATTACK = {"preset": "apgd", "epsilons": [1, 2, 4], "steps": 20, "targets": 3}


def photographs(voc: Path, work: Path) -> tuple[str, dict[str, str]]:
    """Folders of links: all photographs to learn from, and those with one class to judge by, in two halves."""
    root, one = voc / "VOC2007", dict[str, list[str]]()
    for file in sorted(root.glob("ImageSets/Main/*_test.txt")):
        for image, value in map(str.split, file.read_text().splitlines()):
            one.setdefault(image, []).extend([file.stem.removesuffix("_test")] * (value == "1"))
    places = {
        root / f"JPEGImages/{image}.jpg": "photos"
        for image in (root / "ImageSets/Main/trainval.txt").read_text().split()
    }
    single = sorted((classes[0], image) for image, classes in one.items() if len(classes) == 1)
    for number, (name, image) in enumerate(single):
        places[root / f"JPEGImages/{image}.jpg"] = f"{('chosen', 'final')[number % 2]}/{name}"
    for file, folder in places.items():
        (work / folder).mkdir(parents=True, exist_ok=True)
        if not (link := work / folder / file.name).exists():
            link.symlink_to(file.resolve())
    return f"folder:{work / 'photos'},links=follow", {
        name: f"folder:{work / name},links=follow" for name in ("chosen", "final")
    }


def judged(backbone: str | Backbone, data: str, size: int, images: int) -> dict[str, Any]:
    """Metrics: what the verdict of `hexa harden` measures, in percent."""
    loaded = backbone if isinstance(backbone, Backbone) else load_backbone(backbone)
    network, source, device = loaded.prepared(size=size), open_source(data), torch.device("cpu")
    judge = Judge(labels_of(source))
    features, _ = features_of(network, source, Extraction(device="cpu", most=len(source)), device)
    side = Side.of(network, features, judge)
    attack_all([side], Shown.of(source, network, images, judge, device, 0), judge, lambda *_: None)
    return {"metrics": {name: side.mean(name) for name in side.values}}


def measured(backbone: str | Backbone, data: str, size: int, images: int) -> dict[str, Any]:
    """Metrics: k-NN, the linear head as it is and under attack, in percent, and per attacked image the smallest ε.

    The start and the result see images resized alike.
    """
    how = {"size": size, "crop": 1.0, "interpolation": "bicubic", "device": "cpu"}
    robust = evaluate("robust", backbone, data, images=images, **ATTACK, **how)
    head = evaluate("probe", backbone, data, **how)["metrics"]["top1"]
    knn = evaluate("knn", backbone, data, k=NEIGHBOURS, **how)["metrics"]["top1"]
    found: dict[str, Any] = {"metrics": {"knn": knn, "probe": head} | robust["metrics"]}
    found["attack"] = robust["protocol"]
    found["smallest_epsilon"] = robust["details"]["smallest_epsilon"]
    return found | {f"evaluated at {name}": value for name, value in provenance().items()}


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--cifar10")
    images.add_argument("--voc", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--judge", choices=("chosen", "final"), default="chosen")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--strengths", type=float, nargs="+", default=[4.0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--fields", nargs="*", default=[], metavar="PATH=VALUE")
    parser.add_argument("--shares", type=float, nargs="*", default=[])
    parser.add_argument("--train", action="store_true", help="train without measuring")
    given = parser.parse_args()
    if given.voc:
        data, judges = photographs(given.voc, given.work)
        of = functools.partial(
            judged, data=judges[given.judge], size=given.size, images=given.images
        )
        about: dict[str, Any] = {"size": given.size, "judge": given.judge, "images": given.images}
    else:
        data = subset(given.cifar10, given.work / "cifar10")
        of = functools.partial(measured, data=data, size=given.size, images=given.images)
        about = {"images": given.images} | ({} if given.size == 64 else {"size": given.size})
    changes = dict(field.split("=", 1) for field in given.fields)
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"rows": []}

    def add(key: dict[str, Any], row: dict[str, Any], backbone: str | Backbone) -> None:
        if given.train:
            return
        stored["rows"].append({**key, **row, **of(backbone)})
        given.result.write_text(json.dumps(stored, indent=1) + "\n")
        print({**key, **stored["rows"][-1]["metrics"]}, flush=True)

    def known(key: dict[str, Any]) -> bool:
        return any(
            key.items() <= row.items() and row.get("share") == key.get("share")
            for row in stored["rows"]
        )

    if not known(start := {"arm": "start", **about}):
        add(start, provenance(), networks.weights())
    for seed in given.seeds:
        for strength in given.strengths:
            arm = " ".join([f"ε = {strength:g}", *given.fields])
            key = {"arm": arm, "seed": seed, "epochs": given.epochs, **about}
            shares = [share for share in given.shares if not known(key | {"share": share})]
            if known(key) and not shares:
                continue
            attack = {"epsilon": strength, "step_size": strength}
            fields = COMMON | {
                "data": data,
                "seed": seed,
                "epochs": given.epochs,
                "views.size": given.size,
            }
            fields |= {"start.weights": networks.weights(), "training.device": "cpu"}
            fields |= {
                f"hard_examples.adversarial.{name}": value for name, value in attack.items()
            } | changes
            run, row, begun = (
                given.work / f"{arm}-{given.size}-{given.epochs}-{seed}",
                {},
                time.process_time(),
            )
            if (run / "config.yaml").exists():
                _ = resume(run)
            else:
                made = begin_from_weights(override(recipes.get("teacher"), fields), fields)
                _ = pretrain(made, run)
                (run / SECONDS).write_text(str(time.process_time() - begun))
            if (run / SECONDS).exists():
                row["cpu_seconds"] = float((run / SECONDS).read_text())
            if not known(key):
                add(key, row | made_by(run), str(run))
            for share in () if given.train else shares:
                made = between(load_backbone(networks.weights()), load_backbone(run), share)
                add(key | {"share": share}, provenance(), made)


if __name__ == "__main__":
    main()
