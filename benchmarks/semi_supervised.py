"""A few labels of the embedded digits: does a self-supervised start help, and may other hard views replace RandAugment?

    python benchmarks/semi_supervised.py --work FOLDER --result FILE [--seeds 0 1 2]

FixMatch of `hexa evaluate semi-supervised` from random weights and from MoCo-v2's (the demo's recipe on a narrower
network, 40 epochs, one run), with 20 and 40 labels. A seed draws labels, views and the random weights. Every arm trains
for 200 steps of 8 labelled and 56 unlabelled images, where the published training has 2^20 of 64 and 448: too short to
compare with published numbers, and no rate was searched. `supervised` is the same training without the second term,
`probe` a softmax regression on the features of the start, with the same labels.
A row is written as soon as it exists, and rows that FILE has are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from from_weights import COMMON

from hexa import recipes
from hexa.evaluation import evaluate
from hexa.experiment import override
from hexa.nn.pretrained import load_backbone, random_backbone
from hexa.runtime.packages import commit
from hexa.session.run import pretrain, resume

TRAINING = {"steps": 200, "labelled_batch": 8, "mirrored": False, "device": "cpu", "precision": "fp32"}
LABELS = (20, 40)
ADVERSARIAL = {"kind": "adversarial", "epsilon": 8.0, "step_size": 8.0}
#: Those of the question, then two that separate what the strong views add.
ARMS: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "supervised": {"unlabelled_weight": 0.0},
        "fixmatch": {},
        "fixmatch + adversarial": {"hard": [ADVERSARIAL]},
        "cutmix instead": {"strong": "weak", "hard": ["cutmix"]},
    },
    {"probe": {}},
    {
        "weak": {"strong": "weak"},
        "adversarial instead": {"strong": "weak", "hard": [ADVERSARIAL]},
    },
)


def main() -> None:
    """Every row that FILE lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipes.get("digits-moco-v2")
    network = recipe.network.model_copy(update={"widths": (16, 32, 64)})
    run = given.work / "start"
    if (run / "config.yaml").exists():
        _ = resume(run)
    else:
        _ = pretrain(override(recipe, COMMON | {"network.widths": [16, 32, 64], "training.device": "cpu"}), run)
    stored = json.loads(given.result.read_text()) if given.result.exists() else {"training": TRAINING, "rows": []}
    random = {seed: random_backbone(network, recipe.views.size, seed) for seed in given.seeds}
    for labels, arms, seed, start in itertools.product(LABELS, ARMS, given.seeds, ("random", "moco-v2")):
        for arm, fields in arms.items():
            key = {"arm": arm, "start": start, "labels": labels, "seed": seed}
            if any(key.items() <= row.items() for row in stored["rows"]):
                continue
            begun = time.process_time()
            backbone = load_backbone(run) if start == "moco-v2" else random[seed]
            how = {"learner": "fixmatch", "labels": labels, **TRAINING, **fields}
            if arm == "probe":
                how = {"shots": labels // 10, "draws": 1, "device": "cpu", "precision": "fp32"}
            protocol = "probe" if arm == "probe" else "semi-supervised"
            made = evaluate(protocol, backbone, "digits", seed=seed, **how)
            row = key | {"protocol": made["protocol"], "top1": made["metrics"]["top1"], "commit": commit()}
            stored["rows"].append(row | {"cpu_seconds": round(time.process_time() - begun, 1)})
            given.result.write_text(json.dumps(stored, indent=1) + "\n")
            print(stored["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
