"""Does the verdict of `hexa adapt` agree with labelled images that it did not see?

    python benchmarks/adapt_verdicts.py --result FILE [--epochs 15]

Starts of different worth (a random network, and MoCo-v2 on the digits after 2, 10 and 40 epochs) are adapted to the
digits at a careful, a bold and a ruinous rate. The verdict sees training images alone; then start and result are
measured on the test images by k-NN, image by image. They agree if "it helped" comes with a difference above 0 there,
and "the start is kept" with one that is not above 0 with 95 % confidence.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from hexa import recipes
from hexa.adaptation import verdict
from hexa.adaptation.command import AdaptRequest, adapt
from hexa.data import open_source
from hexa.evaluation.features import extract
from hexa.evaluation.protocols.knn import knn_classify
from hexa.recipes.experiment import override
from hexa.run.run import pretrain
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone

RATES = (0.005, 0.1, 0.5)
QUIET = {"training.report": False, "training.tensorboard": False}


def right(backbone: str) -> torch.Tensor:
    """Whether each test image is named rightly by the training images; bool [N]."""
    loaded = load_backbone(backbone)
    (x, y, _), (test, wanted, _) = (extract(loaded, open_source("digits", split)) for split in ("train", "test"))
    assert y is not None
    return knn_classify(x, y, test, verdict.NEIGHBOURS, num_classes=10).argmax(1) == wanted


def main() -> None:
    """All tries, one row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        base = recipes.get("digits-moco-v2")
        starts = {
            "random": str(save_backbone(random_backbone(base.network, base.views.size), work / "random.safetensors"))
        }
        for epochs in (2, 10, 40):
            made = override(base, {"epochs": epochs, "monitor.knn_every": 0, **QUIET})
            starts[f"{epochs} epochs of MoCo-v2"] = str(pretrain(made, work / f"moco-{epochs}"))
        for title, start in starts.items():
            for rate in RATES:
                out = work / f"{title}-{rate}"
                fields = {"optimizer.learning_rate": rate, "epochs": given.epochs, "training.device": "cpu", **QUIET}
                found = adapt(AdaptRequest(start, "digits", fields=fields), out)
                seen = verdict.of_images(right(start).numpy(), right(str(out)).numpy())
                helped = found["kept"] == "result"
                agrees = seen.points > 0 if helped else seen.points <= seen.half
                rows.append(
                    {
                        "start": title,
                        "rate": rate,
                        "verdict": found["verdict"],
                        "helped": helped,
                        "test": str(seen),
                        "agrees": bool(agrees),
                    }
                )
                print(rows[-1], flush=True)
                record = {**provenance(), "epochs": given.epochs, "rows": rows}
                given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
