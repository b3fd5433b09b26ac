"""What share of a data set's images does a start find again from a quarter of each: the outlook of `hexa adapt`.

    python benchmarks/outlook.py WEIGHTS SETS OUT.json

SETS/NAME/train has images without labels. Of each set as many groups of 40 images as its sample has, each with its
share; what training gained on these sets stands in 2026-11-26-adapt-sets.json and -30m.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hexa.adaptation.looking import features_of, found_again, look
from hexa.data import open_source
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import load_backbone

GROUP = 40


def main() -> None:
    """Measure, print and write."""
    weights, sets, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    backbone, shares = load_backbone(weights).eval(), dict[str, list[float]]()
    for folder in sorted(path for path in sets.iterdir() if (path / "train").is_dir()):
        _, pixels = look(open_source(f"folder:{folder / 'train'}", "train"), backbone.image_size)
        groups = [group for group in torch.split(pixels, GROUP) if len(group) == GROUP]
        shares[folder.name] = [
            found_again(backbone, group, features_of(backbone, group)) for group in groups
        ]
        print(folder.name, shares[folder.name], flush=True)
    command = f"python benchmarks/outlook.py WEIGHTS SETS {out.name}"
    found = {"command": command, **provenance(), "torch": torch.__version__, "shares": shares}
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
