"""Tab completion as a shell asks for it, in a process in which torch cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexa import recipes
from hexa.cli.declare import COMMANDS
from hexa.recipes import listing
from hexa.recipes.modifiers import MODIFIERS

SLOW = ("torch", "torchvision", "timm", "numpy", "sklearn", "scipy")


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules of these names that refuse to be imported."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in SLOW:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is imported')\n")
    return folder


def completions(line: str, blocked: Path, folder: Path) -> list[str]:
    """The answers to TAB at the end of a line."""
    pytest.importorskip("argcomplete")
    out = folder / "answers"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(out), "PYTHONPATH": ""}
    path = os.pathsep.join([str(blocked), *sys.path])
    program = "import sys; sys.argv = ['hexa']; from hexa.cli import run; run()"
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        timeout=60,
    )
    return out.read_text().split("\n") if out.exists() else []


def test_commands(blocked: Path, tmp_path: Path) -> None:
    found = completions("hexa ", blocked, tmp_path)
    assert {*COMMANDS, "reproduce"} <= {*found}
    assert completions("hexa pre", blocked, tmp_path) == ["pretrain"]


def test_options(blocked: Path, tmp_path: Path) -> None:
    assert {"--data", "--out", "--images"} <= {*completions("hexa embed x --", blocked, tmp_path)}
    assert completions("hexa compare a b --lab", blocked, tmp_path) == ["--labelled"]
    assert "--holdout" in completions("hexa evaluate knn x --ho", blocked, tmp_path)
    assert "--data" in completions("hexa reproduce table1 --da", blocked, tmp_path)


def test_names_of_recipes_and_their_modifiers(blocked: Path, tmp_path: Path) -> None:
    found = completions("hexa pretrain digits-", blocked, tmp_path)
    assert found == [name for name in recipes.names() if name.startswith("digits-")]
    found = completions("hexa pretrain cifar10-simclr+sm", blocked, tmp_path)
    assert found == ["cifar10-simclr+small"]


def test_listing() -> None:
    """The files say what recipes say; `python -m hexa.recipes.listing` writes them anew."""
    listed = listing.read()
    assert listed.complete
    assert listed.modifiers == MODIFIERS
    assert listed.recipes == recipes.describe()


@pytest.mark.parametrize("command", ["recipes moco", "pretrain cifar10-moco-v3", "recipes --json"])
def test_recipes_without_torch(command: str, blocked: Path) -> None:
    """Listing recipes and refusing a mistyped name import nothing slow."""
    path = os.pathsep.join([str(blocked), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "hexa", *command.split()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (2 if "pretrain" in command else 0)
    assert "cifar10-moco-v2" in done.stdout + done.stderr
