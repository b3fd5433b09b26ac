"""What an image costs in every arm of a study on this machine, from a short benchmark of its recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.recipes.experiment import override
from hexa.reporting.tables import counted
from hexa.runtime.progress import Progress, silent
from hexa_paper import storage
from hexa_paper.benchmark import benchmark
from hexa_paper.plan import Costs
from hexa_paper.schemes import SCHEMES
from hexa_paper.studies import Arm

_REPEATS = 3


def costs_of(
    arms: Iterable[Arm], fields: Mapping[str, Any], out: Path, *, progress: Progress = silent
) -> Costs:
    """Seconds of an image by recipe and scheme: those in `out`/costs.json, or measured now and kept there.

    They are kept because epochs at equal time follow from them: a study that is resumed must find its runs again.
    fields: of every arm's experiment; costs that were measured with other ones are measured again.
    """
    needed: dict[str, set[str]] = {}
    for arm in arms:
        needed.setdefault(arm.recipe, set()).add(SCHEMES[arm.scheme].name)
    fields = {path: value for path, value in fields.items() if not path.startswith("hard_examples")}
    kept: dict[str, Any] = storage.read(out / storage.COSTS) or {}
    for recipe in _missing(needed, kept, fields):
        experiment = override(recipes.get(recipe), fields)
        measured = benchmark(experiment, _REPEATS, schemes=needed[recipe], progress=progress)
        kept[recipe] = measured | {"fields": fields}
        storage.write(out / storage.COSTS, kept)
    views = {recipe: 1 / measured["views_images_per_second"] for recipe, measured in kept.items()}
    return {
        recipe: {
            name: 1 / scheme["images_per_second"] + views[recipe]
            for name, scheme in measured["schemes"].items()
        }
        for recipe, measured in kept.items()
    }


def _missing(
    needed: Mapping[str, set[str]], kept: Mapping[str, Any], fields: Mapping[str, Any]
) -> list[str]:
    """The recipes that were not measured with these fields, or not with every scheme that is needed."""
    of_these = {
        recipe: one["schemes"] for recipe, one in kept.items() if one.get("fields") == fields
    }
    return [
        recipe for recipe, schemes in needed.items() if schemes - of_these.get(recipe, {}).keys()
    ]


def origin_of(out: Path) -> str:
    """When the costs of a study were last measured and on what, with the way to new ones."""
    path = out / storage.COSTS
    machine = max(
        (measured["machine"] for measured in storage.read(path).values()),
        key=lambda one: one["time"],
    )
    when = machine["time"][:16].replace("T", " ")
    on = f"{machine['device']}, {counted(machine['threads'], 'thread')}"
    return f"a benchmark of {when} on {on}, kept in {path}; to measure anew, remove that file before any run is made"
