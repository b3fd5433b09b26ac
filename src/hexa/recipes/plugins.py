"""Recipes in files of the user: `./my_method.py:recipe` names a function that returns an Experiment.

The config.yaml of a run names the file of its method. Reading a run imports this file only with --trust, because the
author of a run folder must not decide which code runs here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from hexa.config import ConfigError, UserError, nearest, users_code
from hexa.entry_points import added

if TYPE_CHECKING:
    from types import ModuleType

    from hexa.recipes.experiment import Experiment


#: Name in an imported file for the hash of its source.
_DIGEST = "_hexa_digest"


def is_plugin(spec: str) -> bool:
    """True if `spec` names a function in a file."""
    return ".py:" in spec


def experiment_of(spec: str) -> Experiment:
    """Return the experiment of a recipe name or of `file.py:function`. Raises UserError.

    The file is imported. Its absolute path is stored in the field `recipe`, so that a run finds its method from any
    working directory.
    """
    if not is_plugin(spec):
        from hexa import recipes

        if spec.endswith(".py"):
            raise UserError(f"{spec}: name the function too, such as {spec}:recipe")
        return recipes.get(spec)

    from hexa.recipes.experiment import Experiment

    file, _, name = spec.rpartition(":")
    module = _import(Path(file))
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise UserError(f"{file}: has no function '{name}'; {nearest(name, functions)}")
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # some built-in functions have no signature
        raise UserError(
            f"{spec}: a recipe is a function without arguments that returns an Experiment"
        ) from None
    try:
        with users_code(spec):
            experiment = function()
    except pydantic.ValidationError as error:
        raise UserError(f"{spec}: {ConfigError.of(error)}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"{spec}: returned {type(experiment).__name__}, not a hexa.recipes.experiment.Experiment"
        )
    return experiment.model_copy(update={"recipe": f"{module.__file__}:{name}"})


def load(config: Path, trust: bool = False, within: Path | None = None) -> Experiment:
    """Read the experiment of a config.yaml. trust: import the file that it names as the source of its method.

    within: the folder of a run, which must contain the file after resolving links.
    Raises UserError; if the experiment needs that file, the message names the file and the option --trust.
    """
    from hexa.recipes import experiment

    recipe = experiment.fields_of(config, within).get("recipe")
    file = recipe.rpartition(":")[0] if isinstance(recipe, str) and is_plugin(recipe) else None
    untried = f"its method came from {file}, which is not imported: read it, then add --trust"
    if file and trust:
        if Path(file).is_file():
            _import(Path(file))
            file = None
        else:  # a run may name a file that it does not need
            untried = f"its method came from {file}, which no longer exists"
    try:
        return experiment.load(config)
    except UserError as error:
        raise UserError(f"{error}; {untried}") if file else error from None


def _import(file: Path) -> ModuleType:
    """Return the module of a file, which is imported once. Raises UserError."""
    if not file.is_file():
        raise UserError(
            f"{file}: no such file; give a recipe of your own as path/to/file.py:function"
        )
    path = str(file.resolve())
    name = f"hexa_plugin_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == path:
        return known
    specification: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # before the code runs, because classes look up their module
    try:
        with users_code(path):
            source = file.read_bytes()
            vars(module)[_DIGEST] = hashlib.sha256(source).hexdigest()
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception) or isinstance(error, UserError):
            raise
        place = _last_line(error, {path}) or path
        raise UserError(f"{place}: {type(error).__name__}: {error}") from error
    return module


def own_line(error: BaseException) -> str | None:
    """Return FILE:LINE of the innermost frame of an error in a file of the user; None without such a frame."""
    return _last_line(error, _files())


def own_code() -> list[str]:
    """Return the user's files that are imported, and the imported packages that add methods or hard examples."""
    entries = (*added("hexa.methods"), *added("hexa.hard_examples"))
    packages = {entry.module.partition(".")[0] for entry in entries} - {"hexa", "hexa_paper"}
    return [*_files(), *sorted(packages & sys.modules.keys())]


def digest(recipe: str) -> str:
    """Return a hash of the imported file of a recipe `file.py:function`; empty for other recipes."""
    file = recipe.rpartition(":")[0]
    return next((vars(one)[_DIGEST] for one in _plugins() if one.__file__ == file), "")


def _files() -> list[str]:
    return [str(plugin.__file__) for plugin in _plugins()]


def _plugins() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("hexa_plugin_")]


def _last_line(error: BaseException, files: Collection[str]) -> str | None:
    """FILE:LINE of the innermost frame of an error in one of these files; None if there is none."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
