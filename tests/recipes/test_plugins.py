"""Files of the user's own: what is wrong in them is said with the line, and is no bug of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hexa import cli, named, recipes
from hexa.config import UserError
from hexa.recipes.experiment import dump, override
from hexa.recipes.plugins import experiment_of, load
from hexa.weights.pretrained import Backbone
from tests.conftest import Says
from tests.refusals import one_line
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
    ("source", "function", "said"),
    [
        ("x = (\n", "recipe", r"line 1: SyntaxError"),
        (
            "import os\nimport notthere\n",
            "recipe",
            "line 2: ModuleNotFoundError: No module named 'notthere'",
        ),
        (GOOD, "asks", "a recipe is a function without arguments"),
        (GOOD, "recipee", "has no function 'recipee'; did you mean 'recipe'"),
        (GOOD, "wrong", "returned int"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, source: str, function: str, said: str) -> None:
    file = tmp_path / "mine_wrong.py"
    file.write_text(source)
    with pytest.raises(UserError, match=said):
        experiment_of(f"{file}:{function}")


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("import sys\nsys.exit(0)\n", ""),
        (GOOD + "\nraise SystemExit\n", ""),
        ("def recipe():\n    raise SystemExit('done')\n", ":recipe"),
    ],
)
@pytest.mark.parametrize("command", ["check", "pretrain", "embed"])
def test_a_file_that_ends_the_program_is_no_success(
    tmp_path: Path, says: Says, source: str, where: str, command: str
) -> None:
    file = tmp_path / "mine_ends.py"
    file.write_text(source)
    words = {
        "check": [f"{file}:recipe"],
        "pretrain": [f"{file}:recipe", "--out", tmp_path / "run"],
        "embed": [f"python:{file}:recipe", "--data", "digits", "--out", tmp_path / "f.npz"],
    }
    said = says(command, *words[command], status=2).err
    assert f"{file}{where}" in said
    assert "its code ended the program by sys.exit(" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("f*"))


def test_a_method_that_ends_the_program_is_no_success(tmp_path: Path, says: Says) -> None:
    file = tmp_path / "mine_ends_later.py"
    network = (
        "class Network(nn.Module):\n    def forward(self, images):\n        raise SystemExit\n"
    )
    file.write_text(f"from torch import nn\n{network}")
    words = ["embed", f"python:{file}:Network", "--data", "digits", "--out", tmp_path / "f.npz"]
    assert "its code ended the program by sys.exit(None)" in says(*words, status=2).err


def test_an_error_in_the_users_code_is_told_as_such(tmp_path: Path, says: Says) -> None:
    file = tmp_path / "mine_fails.py"
    file.write_text(GOOD)
    said = says("pretrain", f"{file}:fails", "--out", tmp_path / "run", status=2).err
    assert f"{file}:11, in your own file: KeyError: " in said
    assert "bug of hexa" not in said


@pytest.mark.parametrize(
    ("base", "field", "name", "own"),
    [("MethodConfig", "name", "moco", "MoCoConfig"), ("HardExample", "kind", "vat", "VAT")],
)
def test_a_name_of_hexas_own_is_refused_in_one_line(
    tmp_path: Path, base: str, field: str, name: str, own: str
) -> None:
    file = tmp_path / f"mine_{field}.py"
    mine = f"class Mine({base}):\n    {field}: Literal['{name}'] = '{name}'\n"
    file.write_text(f"from typing import Literal\nfrom hexa.core import {base}\n{mine}{GOOD}")
    said = f"{file}: Mine has the {field} '{name}' of hexa's own {own}; give it another {field}"
    try:
        with one_line(f"{said}$"):
            override(experiment_of(f"{file}:recipe"), {"hard_examples.vat.weight": 1})
    finally:
        del sys.modules[f"hexa_plugin_{file.stem}"]  # or every other test would hear of it


def test_the_untrained_network_of_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine_good.py"
    file.write_text(GOOD)
    assert isinstance(named(f"random:{file}:recipe"), Backbone)


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
        self.folder, self.file, self.config = (
            folder,
            folder / "own_method.py",
            folder / "run" / "config.yaml",
        )
        self.config.parent.mkdir()
        self.file.write_text(OWN)
        made = override(recipes.get("digits-moco-v2"), {"data": "folder:nowhere"})
        dump(made.model_copy(update={"recipe": f"{self.file}:recipe"}), self.config)
        self.config.write_text(self.config.read_text().replace("name: moco", "name: own_method"))

    def tell(self, work: Callable[[], object]) -> str:
        """What another process says, its result or error, followed by whether the file was imported."""
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


def test_the_file_that_a_run_names_is_imported_with_trust_alone(stored: Stored) -> None:
    assert stored.read(trust=True) == "own_method imported"
    said = stored.read(trust=False)
    assert said.endswith(" not"), "also after it was imported before"
    for part in ("unknown name 'own_method'", str(stored.file), "read it, then add --trust"):
        assert part in said


@pytest.mark.parametrize(
    "command",
    [
        ["resume", "run"],
        ["pretrain", "--config", "run/config.yaml", "--data", "folder:nowhere"],
        ["visualize", "run", "--data", "digits", "--out", "views.png"],
        ["figure", "view-space", "run", "--data", "digits", "--out", "views.png"],
    ],
)
def test_commands_import_it_with_trust_alone(
    stored: Stored, command: list[str], says: Says
) -> None:
    seen = stored.folder / "imported"
    assert "add --trust" in says(*command, status=2).err
    assert not seen.exists()
    forked(
        lambda: cli.main([*command, "--trust"])
    )  # fails later: the run has no checkpoint, and there are no images
    assert seen.exists()


def test_a_run_that_needs_nothing_of_the_file_needs_no_trust(stored: Stored) -> None:
    stored.config.write_text(stored.config.read_text().replace("name: own_method", "name: moco"))
    stored.file.write_text("raise SystemExit(3)\n")
    assert stored.read(trust=False) == "moco not"
    stored.file.unlink()
    assert stored.read(trust=False) == stored.read(trust=True) == "moco not"


def test_a_file_that_cannot_be_one_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "folder.py").mkdir()
    for name in (
        f"{tmp_path}/loop.py",
        f"{tmp_path}/folder.py",
        "\0.py",
        "/dev/zero.py",
        "x" * 300 + ".py",
    ):
        with one_line("."):
            experiment_of(f"{name}:f")
