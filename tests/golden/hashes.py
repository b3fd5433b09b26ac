"""Hashes of what a few steps of every method make, and the metrics of every protocol: a redesign leaves them alone.

    python -m tests.golden.hashes write FILE.json        before a change
    python -m tests.golden.hashes check FILE.json [moco-v2 knn …]    after it; prints what differs and ends with 1

Everything goes through the command line, so that nothing here knows how the package is laid out. Hashes are those of
one machine and one version of torch; the file is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

METHODS = """moco-v2 infomin simclr simsiam byol dino dino-vit swav swav-6crop deepcluster-v2
deepcluster-v2-6crop pcl-v2 pirl instdisc cmc cpc jigsaw rotation"""
HARD = ["--hard_examples.adversarial.weight=1", "--hard_examples.cutmix.weight=1"]
#: Views of puzzles, which cannot be mixed.
PUZZLES = ("pirl", "jigsaw")
SMALL = """--data=digits --epochs=2 --max_steps=3 --batch_size=64 --training.device=cpu
--training.precision=fp32 --training.report=false --training.tensorboard=false --monitor.knn_every=0 --seed=1"""
PROTOCOLS = {
    "knn": [],
    "probe": [],
    "linear": ["--preset=cifar", "--epochs=2"],
    "svm": [],
    "low-shot": [],
    "semi-supervised": ["--epochs=2"],
    "fine-tune": ["--epochs=2"],
}


def digest(value: Any, into: Any) -> None:
    """Add the content of a checkpoint, in the order of its keys."""
    if isinstance(value, torch.Tensor):
        into.update(
            str((value.dtype, tuple(value.shape))).encode()
            + value.contiguous().view(-1).numpy().tobytes()
        )
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            into.update(str(key).encode())
            digest(value[key], into)
    elif isinstance(value, list | tuple):
        for item in value:
            digest(item, into)


def state(run: Path) -> str:
    """Return a hash of every tensor of the last checkpoint and of the backbone: weights, queues,
    banks, momenta."""
    into = hashlib.sha256()
    newest = max((run / "checkpoints").glob("*.pt"), key=lambda path: path.stat().st_mtime_ns)
    content = torch.load(newest, map_location="cpu", weights_only=True)
    method = content["method"]
    for part in sorted(newest.parent.glob(f"{newest.stem}.part*")):  # banks [A, L, D] and marks [L]
        for name, rows in torch.load(part, weights_only=True)["method"].items():
            dim = rows.ndim // 3
            method[name] = torch.cat([method[name], rows], dim)
            method[name] = method[name].narrow(dim, 0, method["clusters"].shape[1])
    digest([method, content["optimizer"]], into)
    from safetensors.torch import load_file

    digest(load_file(run / "backbone.safetensors"), into)
    return into.hexdigest()[:16]


def hexa(*arguments: str) -> None:
    """One command in this process; quiet unless it fails."""
    from hexa.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(list(arguments))
    if status:
        raise SystemExit(f"hexa {' '.join(arguments)} ended with {status}:\n{said.getvalue()}")


def two(*arguments: str) -> None:
    """One command in two processes."""
    line = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 -m hexa"
    done = subprocess.run(
        [*line.split(), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"two processes, hexa {' '.join(arguments)}:\n{done.stdout}{done.stderr}")


def trained(method: str, kind: str, out: Path) -> str:
    """Three steps of a method: plain, hard (adversarial and cut-mixed), or hard in two processes."""
    hard = [] if kind == "plain" else HARD[: 1 if method in PUZZLES else 2]
    (two if kind == "two" else hexa)(
        "pretrain", f"cifar10-{method}+small", f"--out={out}", *SMALL.split(), *hard
    )
    return state(out)


def measured(protocol: str, folder: Path) -> dict[str, float]:
    """The metrics of a protocol on a backbone of few steps."""
    backbone = folder / "backbone"
    out = folder / f"{protocol}.json"
    if not backbone.exists():
        hexa("pretrain", "cifar10-moco-v2+small", f"--out={backbone}", *SMALL.split())
    options = ["--data=digits", "--device=cpu", f"--out={out}", *PROTOCOLS[protocol]]
    hexa("evaluate", protocol, str(backbone / "backbone.safetensors"), *options)
    metrics: dict[str, float] = json.loads(out.read_text())["metrics"]
    return metrics


def all_of_it(folder: Path, only: list[str]) -> dict[str, Any]:
    """Name -> hash or metrics. only: methods and protocols; all if empty."""
    found: dict[str, Any] = {}
    for method in METHODS.split():
        for kind in ("plain", "hard", "two"):
            if not only or method in only:
                name = f"{method}-{kind}"
                found[name] = trained(method, kind, folder / name)
                print(name, found[name], flush=True)
    for protocol in PROTOCOLS:
        if not only or protocol in only:
            found[protocol] = measured(protocol, folder)
            print(protocol, found[protocol], flush=True)
    return found


def main() -> None:
    """Write the file, or compare with it."""
    task = sys.argv[1]
    file = Path(sys.argv[2])
    only = sys.argv[3:]
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    os.environ["HEXA_CACHE"] = str(folder / "cache")
    try:
        found = all_of_it(folder, only)
    finally:
        shutil.rmtree(folder)
    if task == "write":
        file.write_text(json.dumps(found, indent=1) + "\n")
        return
    wanted = json.loads(file.read_text())
    differing = [name for name in found if found[name] != wanted[name]]
    print(f"{len(found) - len(differing)} of {len(found)} as they were", *differing, sep="\n  ")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
