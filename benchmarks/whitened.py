"""Does it help to centre, standardise or whiten a start's features by images without labels, instead of training it?

    python benchmarks/whitened.py WEIGHTS SETS OUT.json [NAME …]

SETS/NAME/train has images without labels, by which the features' mean, deviations and covariance are estimated;
SETS/NAME/labelled judges: k-NN, probe and few labels by the judge of `hexa compare`, cross-validated, each against the
features as they are, paired by image, with 95 % intervals for one comparison. Nothing is chosen.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexa.comparison.extraction import Extraction, features_of
from hexa.comparison.labelled import DECIDING, MEASURES, Judge, difference, labels_of
from hexa.data import open_source
from hexa.data.sources.source import Subset
from hexa.runtime.packages import processor_name, provenance
from hexa.weights.pretrained import load_backbone

HOW = Extraction(seconds=math.inf)
CPU = torch.device("cpu")


def rotated(known: Tensor, directions: int, power: float) -> Callable[[Tensor], Tensor]:
    """x -> (x − mean) V Λ^−power for the leading eigenvectors V of the covariance; power ½ whitens, ¼ half-way."""
    mean = known.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((known - mean).T.double()))
    kept = values.flip(0)[:directions].clamp(min=1e-3 * float(values.mean()))
    turn = (vectors.flip(1)[:, :directions] * kept**-power).float()
    return lambda x: (x - mean) @ turn


def ways(known: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Each from the features [N, D] of images without labels."""
    mean, std = known.mean(0), known.std(0)
    return {
        "centred": lambda x: x - mean,
        "standardised": lambda x: (x - mean) / std.clamp(min=1e-3 * float(std.mean())),
        "whitened, 128 directions": rotated(known, 128, 0.5),
        "half whitened, 128 directions": rotated(known, 128, 0.25),
        "half whitened, all directions": rotated(known, known.shape[1], 0.25),
    }


def main() -> None:
    """Measure, print and write after each set."""
    weights, sets, out, names = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    command = f"python benchmarks/whitened.py WEIGHTS SETS {out.name}"
    found: dict[str, Any] = {
        "command": command,
        **provenance(),
        "torch": torch.__version__,
        "device": processor_name(),
    }
    backbone, found["sets"] = load_backbone(weights).eval(), {}
    for folder in sorted(path for path in sets.iterdir() if (path / "train").is_dir()):
        if names and folder.name not in names:
            continue
        sources = [
            open_source(f"folder:{folder / part}", "train") for part in ("train", "labelled")
        ]
        (known, _), (x, rows) = (features_of(backbone, source, HOW, CPU) for source in sources)
        judge = Judge(labels_of(Subset(sources[1], rows.numpy())))
        plain = judge.scores(x)
        start = {name: plain.accuracy(name) for name in MEASURES}
        found["sets"][folder.name] = {"images": [len(known), len(x)], "start": start, "changes": {}}
        for way, change in ways(known).items():
            scores = judge.scores(change(x))
            differences = {name: difference(plain, scores, name) for name in MEASURES}
            verdict = differences[DECIDING].sign
            told = {name: [one.points, one.half] for name, one in differences.items()}
            found["sets"][folder.name]["changes"][way] = {"verdict": verdict, **told}
            print(
                folder.name,
                way,
                verdict,
                {name: [round(v, 1) for v in pair] for name, pair in told.items()},
                flush=True,
            )
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
