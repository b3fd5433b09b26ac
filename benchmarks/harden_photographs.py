"""`hexa harden` by its defaults on a set of `draw_sets.py`, by several seeds, next to heads on images it did not see.

    OMP_NUM_THREADS=1 python benchmarks/harden_photographs.py --start WEIGHTS --set FOLDER --work FOLDER --result FILE
        [--time 15m] [--seeds 0 1 2] [--images 400]

The set's `train` is learned from and its `labelled` chooses and reports. Then the start and the winner's weights are
scored on `test`, which neither saw, at the image size of the verdict, by heads on `labelled`: k-NN and a linear probe on
all its images, and the probe on the first `--images` of them, shuffled by draw_sets.py, under APGD of 20 steps on the
cross-entropy and against three targets. Rows have one outcome for each image: `right` (1 or 0, k-NN and probe), and the
smallest ε that was enough (0: wrong as it is, null: none). A row is written as soon as it exists, and rows that FILE
has are not made again; a training that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_by import made_by
from torch import nn

import hexa
from hexa.adaptation.harden_verdict import between
from hexa.adaptation.robustness import STEPS, TARGETS
from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import NEIGHBOURS, labels_of
from hexa.data import open_source
from hexa.data.loading.evaluation_stream import evaluation_batches
from hexa.data.sources.source import Subset
from hexa.evaluation import attack
from hexa.evaluation.auto_attack import apgd, apgd_name
from hexa.evaluation.features import transform_of
from hexa.evaluation.protocols.knn import knn_classify
from hexa.evaluation.protocols.probe import fit_probe
from hexa.run.folder import ADAPTATION
from hexa.runtime.packages import provenance
from hexa.runtime.random import Stream
from hexa.weights.pretrained import Backbone, load_backbone

EPSILONS = (1.0, 2.0)
DEVICE = torch.device("cpu")


def scored(backbone: Backbone, folder: Path, size: int, images: int) -> dict[str, Any]:
    """Outcomes of the images of `test` by heads on `labelled`, at this image size."""
    network = backbone.prepared(size=size).eval()
    labelled, test = (open_source(f"folder:{folder / name}") for name in ("labelled", "test"))
    assert labelled.class_names == test.class_names
    how = Extraction(device="cpu", most=10**6)
    (x, _), (held, _) = (features_of(network, source, how, DEVICE) for source in (labelled, test))
    y, wanted = (torch.from_numpy(labels_of(source)) for source in (labelled, test))
    classes = len(test.class_names or ())
    probe = fit_probe(x, y, classes)
    votes = knn_classify(x, y, held, NEIGHBOURS, num_classes=classes)
    answers = {"k-NN": votes, "linear probe": probe.scores(held)}
    right = {name: (one.argmax(1) == wanted).int().tolist() for name, one in answers.items()}
    # files are numbered in the shuffled order, whatever their class
    order = np.argsort([Path(path).name for path in test.paths])[:images]
    smallest = attacked(nn.Sequential(network, probe.linear()), test, np.sort(order), network)
    return {
        "attack": apgd_name(STEPS, TARGETS, classes),
        "top1": {name: 100 * float(np.mean(one)) for name, one in right.items()},
        "robust": {
            f"{epsilon:g}": 100 * float(np.mean([s is None or s > epsilon for s in smallest]))
            for epsilon in EPSILONS
        },
        "right": right,
        "smallest_epsilon": smallest,
    }


def attacked(scores: nn.Module, test: Any, rows: Any, network: Backbone) -> list[float | None]:
    """The smallest ε that was enough for each of these images."""
    found: list[float | None] = []
    radii = {epsilon / 255: epsilon for epsilon in (0.0, *EPSILONS)}
    images = Subset(test, rows)
    for x, index in evaluation_batches(images, transform_of(network), 40, DEVICE):
        y = torch.from_numpy(images.classes)[index].to(DEVICE)
        streams = [Stream(0).child("attacked", int(rows[int(place)])) for place in index]
        smallest = attack.smallest_radius(scores, x, y, [*radii][1:], apgd(STEPS, TARGETS), streams)
        found += [radii.get(radius) for radius in smallest.tolist()]
        print(f"attacked {len(found)} of {len(rows)}", flush=True)
    return found


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--start", "--set", "--work", "--result"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--time", default="15m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=400)
    given = parser.parse_args()
    stored: dict[str, Any] = {"rows": []}
    if given.result.exists():
        stored = json.loads(given.result.read_text())

    def add(row: dict[str, Any]) -> None:
        stored["rows"].append(row)
        given.result.write_text(json.dumps(stored, ensure_ascii=False) + "\n")
        print({name: row[name] for name in ("arm", "seed", "top1", "robust")}, flush=True)

    def known(arm: str, seed: int | None) -> bool:
        return any((row["arm"], row["seed"]) == (arm, seed) for row in stored["rows"])

    begun_at = load_backbone(given.start)
    for seed in given.seeds:
        if known("hexa harden", seed):
            continue
        out, begun = given.work / f"{given.set.name}-{seed}", time.perf_counter()
        found = hexa.harden(
            str(given.start),
            f"folder:{given.set / 'train'}",
            labelled=f"folder:{given.set / 'labelled'}",
            out=out,
            time=given.time,
            seed=seed,
            **{"training.device": "cpu"},
        )
        seconds = time.perf_counter() - begun
        names = ("plan", "verdict", "kept", "comparison", "notes")
        told = {name: found[name] for name in names}
        told["plan"] = [
            line.replace(str(given.start), "WEIGHTS").replace(str(given.set), "SET")
            for line in told["plan"]
        ]
        comparison = json.loads((out / ADAPTATION).read_text())["comparison"]
        size = comparison["size"]
        made = between(begun_at, load_backbone(out), comparison["share"])
        row = {"arm": "hexa harden", "seed": seed, "time": given.time, "seconds": seconds, **told}
        add(row | scored(made, given.set, size, given.images) | made_by(out))
        if not known("start", None):
            row = {"arm": "start", "seed": None}
            add(row | scored(begun_at, given.set, size, given.images) | provenance())


if __name__ == "__main__":
    main()
