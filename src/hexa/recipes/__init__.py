"""Recipes: functions that return a complete `Experiment`; those of hexa are entries of recipes.yaml, cifar10.yaml and
domains.yaml (after a change, run `python -m hexa.recipes.listing`).

The docstring of a recipe states the command, the expected result and the cost, which `hexa recipes` prints. The command
line uses the function name with dashes, optionally followed by modifiers (`hexa.recipes.modifiers`), such as
`cifar10-simclr+small+adversarial`. A recipe of your own is such a function in any file: `hexa pretrain ./mine.py:name`.
The recipes for the published rows of the paper are in `hexa_paper`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from hexa.config import UserError, nearest
from hexa.entry_points import loaded

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment

#: Group of entry points for modules with further recipes.
RECIPES = "hexa.recipes"
Recipe = Callable[[], "Experiment"]
_registry: dict[str, Recipe] = {}
#: For families of recipes: the docstring or a function that writes it, and the fields of the small version.
_docs: dict[str, str | Callable[[Experiment], str]] = {}
_small: dict[str, dict[str, Any]] = {}


def recipe(function: Recipe) -> Recipe:
    """Register a function as a recipe; its name is the function name with dashes."""
    name = function.__name__.replace("_", "-")
    if name in _registry:
        raise ValueError(f"two recipes have the name {name}; rename one of the functions")
    _registry[name] = function
    return function


def register(
    name: str, function: Recipe, doc: str | Callable[[Experiment], str] = "", **small: Any
) -> None:
    """Register one recipe of a family of recipes that differ by a parameter.

    doc: a docstring, or a function from the experiment to a docstring (default: the docstring of `function`). small:
    fields of the small version.
    """
    function.__name__ = name.replace("-", "_")
    _docs[name], _small[name] = doc, small
    recipe(function)


def import_own() -> list[str]:
    """Import the modules of this package, and return the names of all registered recipes."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return list(_registry)


@functools.cache
def _all() -> dict[str, Recipe]:
    """Return the recipes of this package, and of modules that installed distributions name as entry points."""
    import_own()
    loaded(RECIPES)
    return _registry


def names() -> list[str]:
    """Return the names of all recipes, sorted, without modifiers."""
    return sorted(_all())


def get(name: str) -> Experiment:
    """Return the experiment of a recipe with its modifiers. Raises UserError."""
    from hexa.recipes import modifiers

    known = _all()
    base, *chosen = name.split("+")
    check(base, known)
    return modifiers.apply(_made(base, known[base]), chosen, _small.get(base, {}))


def _made(name: str, function: Recipe) -> Experiment:
    """Return the experiment of a registered recipe, with its name even if it changes another recipe."""
    return function().model_copy(update={"recipe": name})


def check(base: str, known: Collection[str]) -> None:
    """Raise UserError if a name without modifiers is unknown."""
    if base not in known:
        raise UserError(
            f"unknown recipe '{base}'; {_nearest(base, known)} (`hexa recipes` lists all)"
        )


def _nearest(name: str, known: Collection[str]) -> str:
    """Return the nearest recipe for an error; a recipe with hard examples if the name contains one."""
    plain = name.replace("hexa-", "")
    if plain != name and plain in known:
        return f"did you mean '{plain}+adversarial'?"
    words = [word for word in ("hexa", "adversarial", "cutmix", "robust") if word in name]
    hard = [one for one in known if any(word in one for word in words)]
    hard += [
        f"{one}+{word}" for one in known for word in words if word in ("adversarial", "cutmix")
    ]
    return nearest(name, hard if words else known)


def describe() -> list[dict[str, Any]]:
    """Return a row for every recipe: name, method, hard examples, data, expected result and cost."""
    described = []
    for name, function in sorted(_all().items()):
        experiment = _made(name, function)
        doc = _docs.get(name) or inspect.getdoc(function) or ""
        summary, facts = _read(inspect.cleandoc(doc if isinstance(doc, str) else doc(experiment)))
        described.append({"name": name, "summary": summary, **facts_of(experiment), **facts})
    return described


def facts_of(experiment: Experiment) -> dict[str, Any]:
    """Return name, method, hard examples, data, epochs and batch size of an experiment."""
    return {
        "name": experiment.recipe,
        "method": experiment.method.name,
        "hard_examples": [n for n, h in experiment.hard_examples.items() if h.weight > 0],
        "data": experiment.data,
        "epochs": experiment.epochs,
        "batch_size": experiment.batch_size,
    }


def _read(doc: str) -> tuple[str, dict[str, str]]:
    """Return the summary line, and the paragraphs that begin with Command:, Expected: and Cost:."""
    labelled = re.split(r"^\s*(Command|Expected|Cost): ", doc, flags=re.MULTILINE)
    facts = {"command": "", "expected": "", "cost": ""}
    for label, text in zip(labelled[1::2], labelled[2::2], strict=True):
        facts[label.lower()] = _first_paragraph(text)
    return _first_paragraph(doc), facts


def _first_paragraph(text: str) -> str:
    """Return the first paragraph on one line."""
    return " ".join(text.split("\n\n")[0].split())
