"""Imports point one way, read from the source text, so that an import inside a function counts as well."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hexa
from hexa.config import choices
from hexa.core import MethodConfig

SOURCE = Path(hexa.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

#: The packages from the lowest floor up: each may import from all floors below its own.
FLOORS = (
    ("entry_points",),
    ("config",),
    ("runtime",),
    ("core", "ops"),
    ("objective", "nn", "data"),
    ("weights", "methods", "hard_examples", "training"),
    ("evaluation",),
    ("recipes",),
    ("reporting", "testing"),
    ("run", "comparison"),
    ("measure",),
    ("adaptation",),
    ("cli", "__main__", ""),
)
FLOOR = {package: number for number, floor in enumerate(FLOORS) for package in floor}
#: Where no method is named.
ENGINE = {
    "config",
    "runtime",
    "core",
    "ops",
    "objective",
    "data",
    "hard_examples",
    "training",
    "reporting",
    "run",
    "measure",
    "cli",
}
#: What core and ops may import.
TORCH_ALONE = {"torch", "hexa", "pydantic", "typing_extensions"} | sys.stdlib_module_names
#: What packages that need torch alone may use besides.
USES: dict[str, set[str]] = {"core": set(), "ops": {"torchvision", "sklearn"}}


def package_of(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return "" if part == "__init__.py" else part.removesuffix(".py")


TREES = {path: ast.parse(path.read_text()) for path in MODULES}


def asked_of(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement of a file, wherever it stands, with each module that it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # the version is a constant, anyone's
            names = [f"hexa.{alias.name}" for alias in node.names if alias.name != "__version__"]
            yield from (
                (node, name)
                for name in (names if module == "hexa" else ["." * node.level + module])
            )


def brought(requirements: list[str]) -> set[str]:
    """The distributions that come with these requirements, theirs included."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if name not in names and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
            names.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                waiting += map(Requirement, importlib.metadata.requires(name) or [])
    return names


def test_declared_dependencies() -> None:
    """At the top of a file what comes with the package; in functions also what comes with an extra."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    extras = [
        text
        for name, extra in project["optional-dependencies"].items()
        if name != "dev"
        for text in extra
    ]
    always = brought(project["dependencies"])
    sometimes = brought([*project["dependencies"], *extras])
    given = importlib.metadata.packages_distributions()
    for path, tree in TREES.items():
        for node, module in asked_of(tree):
            top = module.partition(".")[0]
            if top in given and top not in sys.stdlib_module_names | {"hexa"}:
                # of extras that are not installed nothing is known
                there = {canonicalize_name(name) for name in given[top]}
                assert there & (always if node in tree.body else sometimes), f"{path}: {top}"


def test_import_direction() -> None:
    """From the floors below, never from the same or those above; core needs torch alone, ops also torchvision, sklearn."""
    unknown = {package_of(path) for path in MODULES} - FLOOR.keys()
    assert not unknown, f"new packages: say in this test on which floor {unknown} stand"
    wrong = []
    seen = set()
    for path, tree in TREES.items():
        package = package_of(path)
        for _, module in asked_of(tree):
            top, _, below = module.partition(".")
            found = below.partition(".")[0]
            seen.add((path.stem, found))
            if top == "":
                wrong.append(f"{path}: imports are absolute, not {module}")
            elif top == "hexa_paper":
                wrong.append(f"{path} imports {module}, which is found through entry points alone")
            elif (
                top == "hexa"
                and found != package
                and FLOOR.get(found, 0) >= FLOOR[package] < FLOOR["cli"]
            ):
                wrong.append(f"{path} imports from {found or 'hexa'}")
            elif package in USES and top not in TORCH_ALONE | USES[package]:
                wrong.append(f"{path} imports {top}")
    assert not wrong, "\n".join(wrong)
    assert ("training", "run") in seen  # an import in a function of cli/training.py


def test_method_and_module_names() -> None:
    """`if method == "moco"`, or a table of methods, stands in methods/ and recipes/ alone; no module is a drawer."""
    methods = set(choices(MethodConfig, "name", "hexa.methods"))
    wrong = [path for path in MODULES if path.stem in {"utils", "helpers", "common", "misc"}]
    for path, tree in TREES.items():
        # views have recipes of methods' names, and the published rows name methods: neither is a choice made by name
        if package_of(path) in ENGINE and path.stem not in {"config", "demo"}:
            constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            wrong += [path] if constants & methods else []
    assert not wrong


def test_names_in_scripts() -> None:
    """Scripts import names that exist, also inside functions, which no test calls."""
    for path in sorted((SOURCE.parents[1] / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hexa"):
                exec(ast.unparse(node), {"__name__": str(path)})
