"""What made a row: the commit, a hash of the package, and the machine, as the run's own environment.json has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def made_by(run: Path) -> dict[str, Any]:
    """Of a run folder: commit, source (a hash of the package), device, precision, threads, torch.

    Another precision or number of threads adds in another order, and trainings magnify that: one seed differs between
    machines by as much as two seeds differ on one.
    """
    found = json.loads((run / "environment.json").read_text())
    named = {
        name: found.get(name) for name in ("commit", "source", "device", "precision", "threads")
    }
    return named | {"torch": found["versions"]["torch"]}
