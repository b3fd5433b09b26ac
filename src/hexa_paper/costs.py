"""What an image costs in every arm of a study on this machine, from a short benchmark of its recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.measure.benchmark import benchmark
from hexa.objective.schemes import SCHEMES
from hexa.recipes.experiment import override
from hexa.reporting.tables import counted
from hexa_paper import storage
from hexa_paper.request import Request
from hexa_paper.studies import Study

Progress = Callable[[str, int, int], None]
_REPEATS = 3


def costs_of(
    study: Study, request: Request, out: Path, *, progress: Progress | None = None
) -> dict[str, dict[str, float]]:
    """Seconds of an image by recipe and scheme: those in `out`/costs.json, or measured now and kept there.

    They are kept because epochs at equal time follow from them: a study that is resumed must find its runs again.
    """
    needed: dict[str, set[str]] = {}
    for arm in study.arms:
        needed.setdefault(arm.recipe, set()).add(SCHEMES[arm.scheme].name)
    fields = {path: value for path, value in request.fields.items() if not path.startswith("hard_examples")}
    path = out / storage.COSTS
    kept: dict[str, Any] = storage.read(path) or {}
    if needed.keys() - kept.keys():
        with storage.at_work(out):  # two that measure at once slow each other down
            kept = storage.read(path) or {}
            for recipe in [recipe for recipe in needed if recipe not in kept]:
                experiment = override(recipes.get(recipe), fields)
                kept[recipe] = benchmark(experiment, _REPEATS, schemes=needed[recipe], progress=progress)
                storage.write(path, kept)
    views = {recipe: 1 / measured["views_images_per_second"] for recipe, measured in kept.items()}
    return {
        recipe: {name: 1 / scheme["images_per_second"] + views[recipe] for name, scheme in measured["schemes"].items()}
        for recipe, measured in kept.items()
    }


def origin_of(out: Path) -> str:
    """When the costs of a study were measured and on what, with the way to new ones."""
    path = out / storage.COSTS
    machines = [measured["machine"] for measured in (storage.read(path) or {}).values() if measured.get("machine")]
    when = max((machine["time"][:16].replace("T", " ") for machine in machines if "time" in machine), default="")
    devices = sorted({f"{machine['device']}, {counted(machine['threads'], 'thread')}" for machine in machines})
    words = (f" of {when}" if when else "") + (f" on {' and '.join(devices)}" if devices else "")
    return f"a benchmark{words}, kept in {path}; to measure anew, remove that file before any run is made"
