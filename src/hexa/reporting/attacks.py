"""Accuracy under attack over its strength, from the evaluations by `robust` of one run or of several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hexa.reporting import scores
from hexa.reporting.curves import Chart, Quantity, Series, drawn
from hexa.reporting.runs import Record, Run, flatten, is_number

_OVER = "ε in grey levels"


def charts(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """A chart for each attack and set of images: of one run a curve for each of its batch-norm branches, of several
    runs a curve each, of the main branch."""
    several = len(runs) > 1
    groups: dict[str, dict[str, Series]] = {}
    for slot, (run, name) in enumerate(zip(runs, names, strict=True)):
        for result in scores.newest(run):
            x, y = _points(result)
            branch = str(result.get("branch", "main"))
            if len(x) < 2 or (several and branch != "main"):
                continue
            attack = scores.protocol(result).removesuffix(f"-branch{branch}")
            curves = groups.setdefault(f"{attack} on {scores.data(result)}{_images(result)}", {})
            label = name if several else branch
            place = slot if several else list({**curves, label: None}).index(label)
            curves[label] = Series(label, place, x, y)  # of repetitions, the newest
    return [
        drawn(
            about,
            Quantity("Accuracy under attack", about, "%", from_zero=True),
            [*curves.values()],
            _OVER,
        )
        for about, curves in groups.items()
    ]


def _images(result: Record) -> str:
    """How many images were attacked, if the result says so."""
    count = flatten(result).get("details.images")
    return f", {count:,} images" if is_number(count) else ""


def _points(result: Record) -> tuple[NDArray[np.float64], ...]:
    """ε, from 0 on, and the accuracies there, in percent; of another protocol none."""
    points = []
    for name, value in ({"robust@0": result["metrics"].get("top1")} | result["metrics"]).items():
        kind, _, strength = str(name).partition("@")
        with suppress(ValueError):  # the file may be a stranger's
            epsilon = float(strength)
            if kind == "robust" and is_number(epsilon) and epsilon >= 0 and is_number(value):
                points.append((epsilon, value))
    return tuple(np.array(sorted(points), dtype=np.float64).reshape(-1, 2).T)
