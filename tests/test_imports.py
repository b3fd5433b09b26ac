"""Imports point one way, read from the source text, so that an import inside a function counts as well."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hexa
from hexa.config import choices
from hexa.core import MethodConfig

SOURCE = Path(hexa.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# What each package may import from, itself apart. config is a leaf everybody may use.
ALLOWED = {
    "config": set(),
    "published": set(),
    "runtime": {"config"},
    "core": {"config", "runtime"},
    "ops": {"config", "runtime"},
    "nn": {"config", "runtime", "core", "ops"},
    "data": {"config", "runtime", "core", "ops"},
    "methods": {"config", "runtime", "core", "nn", "ops"},
    "hard_examples": {"config", "runtime", "core", "nn", "ops"},
    "training": {"config", "runtime", "core", "data"},
    "evaluation": {"config", "runtime", "core", "data", "nn", "ops", "hard_examples"},
    "experiment": {"config", "runtime", "core", "data", "nn", "training"},
    "recipes": {"config", "published", "core", "data", "nn", "methods", "hard_examples", "training", "experiment"},
    "plugins": {"config", "experiment", "recipes"},
    "assembly": {"config", "runtime", "core", "data", "nn", "evaluation", "training", "experiment"},
    "reporting": {
        *("config", "published", "runtime", "core", "data", "nn", "ops", "evaluation"),
        *("experiment", "recipes", "plugins", "assembly"),
    },
    "session": {
        *("config", "runtime", "core", "data", "nn", "ops", "evaluation", "training"),
        *("experiment", "assembly", "reporting"),
    },
    "adaptation": {
        *("config", "runtime", "core", "data", "nn", "ops", "evaluation", "training", "experiment", "recipes"),
        *("assembly", "reporting", "session"),
    },
}
# The way in: these may import everything below them, and nobody there may import them.
TOP = {"", "__main__", "cli", "commands", "complaints", "fields", "demo"}


def package_of(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return "" if part == "__init__.py" else part.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The packages of hexa that this file imports from, wherever in the file, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            # the version is a constant, anyone's
            asked = [alias.name for alias in node.names if alias.name != "__version__"]
            names = [f"{module}.{name}" for name in asked] if module == "hexa" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] if "." in name else "" for name in names if name.split(".")[0] == "hexa"}
    return found


def brought(requirements: list[str]) -> set[str]:
    """The distributions that come with these requirements, theirs included."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name not in names and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
            names.add(name)
            try:
                waiting += map(Requirement, importlib.metadata.requires(name) or [])
            except importlib.metadata.PackageNotFoundError:
                continue
    return names


def test_what_is_imported_is_asked_for() -> None:
    """At the top of a file what comes with the package; in functions also what comes with an extra."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    extras = [text for name, extra in project["optional-dependencies"].items() if name != "dev" for text in extra]
    always, sometimes = brought(project["dependencies"]), brought([*project["dependencies"], *extras])
    given = importlib.metadata.packages_distributions()
    for path in MODULES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"hexa"}
                for module in tops & given.keys():  # of extras that are not installed nothing is known
                    there = {canonicalize_name(name) for name in given[module]}
                    assert there & (always if node in tree.body else sometimes), f"{path}: {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    package = package_of(path)
    if package in TOP:
        return
    assert package in ALLOWED, f"a new package: say in this test what {package} may import"
    wrong = imported(path) - ALLOWED[package] - {package}
    assert not wrong, f"{path.relative_to(SOURCE)} imports from {sorted(wrong)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_package_of_the_paper_is_never_imported(path: Path) -> None:
    """It stands above this one, and is found through entry points."""
    assert not re.search(r"^\s*(from|import) hexa_paper\b", path.read_text(), re.MULTILINE)


def test_the_reader_sees_imports_in_functions() -> None:
    assert "session" in imported(SOURCE / "commands" / "training.py")


def test_no_two_packages_import_each_other() -> None:
    """Nor in a longer circle: the packages stand in floors."""
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_core_and_ops_need_torch_alone() -> None:
    allowed = {"torch", "hexa", "pydantic", "__future__", "abc", "collections", "contextlib", "dataclasses", "typing"}
    allowed.add("typing_extensions")  # which torch itself needs
    allowed |= {"copy", "math", "types", "enum", "functools", "itertools", "concurrent"}
    for path in [*(SOURCE / "core").glob("*.py"), *(SOURCE / "ops").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            roots = []
            if isinstance(node, ast.Import):
                roots = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                roots = [(node.module or "").split(".")[0]]
            assert set(roots) <= allowed, f"{path}: {roots}"


def test_no_module_is_a_drawer_for_everything() -> None:
    assert not [path for path in MODULES if path.stem in {"utils", "helpers", "common", "misc"}]


METHODS = set(choices(MethodConfig, "name", "hexa.methods"))
ENGINE = {"core", "ops", "hard_examples", "training", "runtime", "data", "reporting", "experiment", "config", "fields"}
ENGINE |= {"assembly", "session"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_engine_file_names_a_method(path: Path) -> None:
    """`if method == "moco"`, or a table of methods, has no place outside methods/ and recipes/ (DESIGN §3)."""
    if package_of(path) not in ENGINE | TOP:
        return
    tree = ast.parse(path.read_text())
    # views have recipes of methods' names, and the published rows name methods: neither is a choice made by name
    if path.stem in {"view_config", "published", "demo"}:
        return
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not strings & METHODS, path
