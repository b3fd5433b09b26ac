"""What an image costs in every arm of a study on this machine, from a short benchmark of its recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.experiment import override
from hexa.reproduce import storage
from hexa.reproduce.design import SCHEME_COSTS, Study
from hexa.reproduce.plan import Request
from hexa.session.benchmark import benchmark

Progress = Callable[[str, int, int], None]
_REPEATS = 3


def costs_of(
    study: Study, request: Request, out: Path, *, progress: Progress | None = None
) -> dict[str, dict[str, float]]:
    """Seconds of an image by recipe and scheme: those in `out`/costs.json, or measured now and kept there.

    The second stays: epochs at equal time follow from it, and a study that goes on must find its runs again.
    """
    needed: dict[str, set[str]] = {}
    for arm in study.arms:
        needed.setdefault(arm.recipe, set()).add(SCHEME_COSTS[arm.scheme])
    fields = {path: value for path, value in request.fields.items() if not path.startswith("hard_examples")}
    stored: dict[str, Any] = storage.read(out / storage.COSTS) or {}
    if needed.keys() - stored.keys():
        with storage.at_work(out):  # two that measure at once slow each other down, and one's numbers are lost
            stored = storage.read(out / storage.COSTS) or {}
            for recipe in [recipe for recipe in needed if recipe not in stored]:
                experiment = override(recipes.get(recipe), fields)
                stored[recipe] = benchmark(experiment, _REPEATS, schemes=needed[recipe], progress=progress)
                storage.write(out / storage.COSTS, stored)
    return {recipe: seconds(measured) for recipe, measured in stored.items()}


def origin_of(out: Path) -> str:
    """When the costs of a study were measured and by what, with the way to new ones."""
    path = out / storage.COSTS
    machines = [measured.get("machine", {}) for measured in (storage.read(path) or {}).values()]
    times = [machine["time"] for machine in machines if "time" in machine]
    devices = sorted({f"{machine['device']}, {machine['threads']} threads" for machine in machines if machine})
    when = f" of {max(times)[:16].replace('T', ' ')}" if times else ""
    by = f" on {' and '.join(devices)}" if devices else ""
    return f"a benchmark{when}{by}, kept in {path}; to measure anew, remove that file before any run is made"


def seconds(measured: dict[str, Any]) -> dict[str, float]:
    """Seconds of one image, its views and its step, by scheme; from what `hexa benchmark` found."""
    views = 1 / measured["views_images_per_second"]
    return {name: 1 / scheme["images_per_second"] + views for name, scheme in measured["schemes"].items()}
