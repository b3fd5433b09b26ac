"""Joins what the parts of gpu.sh left in a folder into OUT/gpu.json and OUT/gpu-logs.tar.gz; ends with 1 if one failed.

python benchmarks/gpu_result.py WORK OUT
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from hexa.runtime import packages

#: How `timeout` says that it ended a command.
TIMED_OUT = (124, 137)


def main() -> int:
    work, out = Path(sys.argv[1]), Path(sys.argv[2])
    parts: dict[str, Any] = {}
    for path in sorted(work.glob("*.end")):
        code, seconds, limit = map(int, path.read_text().split())
        parts[path.stem] = {
            "code": code,
            "seconds": seconds,
            "limit": limit,
            "timed_out": code in TIMED_OUT,
        }
    for path in work.glob("*.json"):
        name, _, what = path.stem.partition(".")
        owner = parts[name] if name in parts else parts[f"training-{name}"]
        try:
            owner[what or "measured"] = json.loads(path.read_text())
        except ValueError:  # cut off, or a complaint: the log has it
            owner["code"] = owner["code"] or 1
    for path in work.glob("*.xml"):
        suite = ElementTree.parse(path).getroot().find("testsuite")
        assert suite is not None
        parts[path.stem]["measured"] = {
            name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")
        }
    failed = [name for name, part in parts.items() if part["code"]]
    on_gpu = torch.cuda.is_available()
    result = {
        "date": date.today().isoformat(),
        **packages.provenance(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "data": Path(os.environ["DATA"]).name,
        "epochs": int(os.environ["EPOCHS"]),
        "failed": failed,
        "parts": parts,
    }
    (out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    with tarfile.open(out / "gpu-logs.tar.gz", "w:gz") as tar:
        for path in sorted(
            [*work.glob("*.log"), *work.glob("*.xml"), *work.glob("runs/*/*.json*")]
        ):
            tar.add(path, path.relative_to(work))
    print(
        f"gpu.sh: {len(parts) - len(failed)} parts done, failed: {', '.join(failed) or 'none'}; {out / 'gpu.json'}"
    )
    return 1 if failed or not parts else 0


if __name__ == "__main__":
    sys.exit(main())
