"""Recipes from outside the package: `./my_method.py:recipe` names a function that returns an Experiment."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic
import yaml

from hexa.config import ConfigError, UserError, nearest

if TYPE_CHECKING:
    from types import ModuleType

    from hexa.experiment import Experiment


def is_plugin(spec: str) -> bool:
    """Whether this names a function of a file rather than a recipe of the package."""
    return ".py:" in spec


def experiment_of(spec: str) -> Experiment:
    """The experiment of a recipe's name or of `file.py:function`. Raises UserError with what is missing.

    The file's absolute path becomes the experiment's `recipe`, so that the run finds its method again from anywhere.
    """
    if not is_plugin(spec):
        from hexa import recipes

        if spec.endswith(".py"):
            raise UserError(f"{spec}: name the function too, such as {spec}:recipe")
        return recipes.get(spec)

    from hexa.experiment import Experiment

    file, _, name = spec.rpartition(":")
    module = _import_file(Path(file))
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{file}: has no function '{name}'; {nearest(name, functions)}")
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise UserError(f"{spec}: a recipe is a function without arguments that returns an Experiment") from None
    try:
        experiment = function()
    except pydantic.ValidationError as error:
        raise UserError(f"{spec}: {ConfigError.of(error)}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"{spec}: returned {type(experiment).__name__}, not a hexa.experiment.Experiment")
    return experiment.model_copy(update={"recipe": f"{Path(file).resolve()}:{name}"})


def restore(config: Path) -> None:
    """Import the file that a stored experiment came from, if it was none of ours, so that its method is known."""
    try:
        fields = yaml.safe_load(config.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return  # whoever reads it for its fields says what is wrong
    recipe = fields.get("recipe") if isinstance(fields, dict) else None
    if isinstance(recipe, str) and is_plugin(recipe):
        _import_file(Path(recipe.rpartition(":")[0]))


def run_folder(experiment: Experiment, out: str | Path | None = None) -> Path:
    """Where a run goes: `out`, or runs/RECIPE."""
    return Path(out) if out else Path("runs") / experiment.recipe.rpartition(":")[2]


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"hexa_plugin_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if not path.is_file():
        raise UserError(f"{path}: no such file; a recipe of your own is given as path/to/file.py:function")
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # before it runs: its classes look their module up
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception) or isinstance(error, UserError):
            raise
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(path, error)
        raise UserError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    return module


def _line_in(path: Path, error: BaseException) -> int | str:
    """The last line of this file that the error went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines and lines[-1] is not None else "?"


def own_line(error: BaseException) -> str | None:
    """FILE:LINE of the innermost frame of an error that lies in a file given by the user; None if none does."""
    files = {module.__file__ for name, module in sys.modules.items() if name.startswith("hexa_plugin_")}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
