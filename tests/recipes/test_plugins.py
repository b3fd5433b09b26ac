"""Python files of users: their errors name the line and are not reported as bugs of hexa."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hexa import cli, recipes
from hexa.cli.complaints import unexpected
from hexa.recipes.experiment import dump, override
from hexa.recipes.plugins import digest, experiment_of, load
from tests.conftest import Says
from tests.torture.harness import forked

GOOD = """
from hexa import recipes

def recipe():
    return recipes.get("digits-moco-v2")

def asks(something):
    return recipe()

def fails():
    return {}["nothing"]

def wrong():
    return 3
"""


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("import sys\nsys.exit(0)\n", ""),
        (GOOD + "\nraise SystemExit\n", ""),
        ("def recipe():\n    raise SystemExit('done')\n", ":recipe"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "check {file}:recipe",
        "pretrain {file}:recipe --out {folder}/run",
        "embed python:{file}:recipe --data digits --out {folder}/f.npz",
    ],
)
def test_plugin_program_exit(
    tmp_path: Path, says: Says, source: str, where: str, command: str
) -> None:
    """A file that ends the program is not a success."""
    file = tmp_path / "mine_ends.py"
    file.write_text(source)
    said = says(command.format(file=file, folder=tmp_path), status=2).err
    assert f"{file}{where}" in said
    assert "its code ended the program by sys.exit(" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("f*"))


OWN = """
from typing import Literal
from hexa import recipes
from hexa.methods.moco import MoCoConfig

open("imported", "a").close()

class OwnConfig(MoCoConfig):
    name: Literal["own_method"] = "own_method"

def recipe():
    base = recipes.get("digits-moco-v2")
    return base.model_copy(update={"method": OwnConfig(**base.method.model_dump(exclude={"name"}))})
"""


class Stored:
    """A run whose method came from a file of the user's. This process never imports it: its copies do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "own_method.py"
        self.config = folder / "run" / "config.yaml"
        self.config.parent.mkdir()
        self.file.write_text(OWN)
        made = override(recipes.get("digits-moco-v2"), {"data": "folder:nowhere"})
        dump(made.model_copy(update={"recipe": f"{self.file}:recipe"}), self.config)
        self.config.write_text(self.config.read_text().replace("name: moco", "name: own_method"))

    def tell(self, work: Callable[[], object]) -> str:
        """Return the result or error of another process, followed by whether it imported the
        file."""
        seen = self.folder / "imported"
        seen.unlink(missing_ok=True)
        found = forked(work)
        return f"{found.value or found.raised} {'imported' if seen.exists() else 'not'}"

    def read(self, trust: bool) -> str:
        return self.tell(lambda: load(self.config, trust).method.name)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.chdir(tmp_path)
    return Stored(tmp_path)


def test_plugin_import_trust(stored: Stored) -> None:
    """The file that a run names is imported with trust alone."""
    assert stored.read(trust=True) == "own_method imported"
    said = stored.read(trust=False)
    assert said.endswith(" not"), "also after it was imported before"
    for part in ("unknown name 'own_method'", str(stored.file), "read it, then add --trust"):
        assert part in said


@pytest.mark.parametrize(
    "command",
    [
        "resume run",
        "pretrain --config run/config.yaml --data folder:nowhere",
        "visualize run --data digits --out views.png",
        "figure view-space run --data digits --out views.png",
    ],
)
def test_command_plugin_trust(stored: Stored, command: str, says: Says) -> None:
    """Commands import the file of a run with trust alone."""
    seen = stored.folder / "imported"
    assert "add --trust" in says(command, status=2).err
    assert not seen.exists()
    forked(
        lambda: cli.main(f"{command} --trust".split())
    )  # fails later: the run has no checkpoint, and there are no images
    assert seen.exists()


def test_unneeded_plugin_trust(stored: Stored) -> None:
    """A run that needs nothing of the file needs no trust."""
    stored.config.write_text(stored.config.read_text().replace("name: own_method", "name: moco"))
    stored.file.write_text("raise SystemExit(3)\n")
    assert stored.read(trust=False) == "moco not"
    stored.file.unlink()
    assert stored.read(trust=False) == stored.read(trust=True) == "moco not"


def test_unexpected_error_with_own_code(tmp_path: Path) -> None:
    """If code of the user is loaded, an unexpected error asks for a check of it first."""
    file = tmp_path / "mine_watched.py"
    file.write_text(GOOD)

    def said() -> list[str]:
        for name in [name for name in sys.modules if name.startswith("hexa_plugin_")]:
            del sys.modules[name]  # of other tests
        before = unexpected(IndexError("lost"))
        experiment_of(f"{file}:recipe")
        return [before, unexpected(IndexError("lost"))]

    before, after = forked(said).value
    assert "hexa check" not in before
    assert "hexa check" in after
    assert str(file) in after


def test_digest_of_own_file(tmp_path: Path) -> None:
    """A checkpoint knows the file that was imported, and not its later versions."""
    file = tmp_path / "mine_hashed.py"

    def digests() -> list[str]:
        found = []
        for source in (GOOD, GOOD + "# changed"):
            file.write_text(source)
            recipe = experiment_of(f"{file}:recipe").recipe
            found.append(digest(recipe))
        sys.modules.pop("hexa_plugin_mine_hashed")
        return [*found, digest(recipe), digest(experiment_of(f"{file}:recipe").recipe)]

    first, cached, forgotten, again = forked(digests).value
    assert first == cached != ""
    assert forgotten == ""
    assert again not in (first, "")
