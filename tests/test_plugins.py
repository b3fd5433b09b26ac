"""Files of the user's own: what is wrong in them is said with the line, and is no bug of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest

from hexa import cli, named, recipes
from hexa.config import UserError
from hexa.experiment import dump, override
from hexa.plugins import Trust, experiment_of, load
from hexa.weights.pretrained import Backbone
from tests.torture.harness import forked

GOOD = """
from hexa import recipes

def recipe():
    return recipes.get("digits-moco-v2")

def asks(something):
    return recipe()

def fails():
    return {}["nothing"]
"""


@pytest.mark.parametrize(
    ("source", "function", "said"),
    [
        ("x = (\n", "recipe", r"line 1: SyntaxError"),
        ("import os\nimport notthere\n", "recipe", "line 2: ModuleNotFoundError: No module named 'notthere'"),
        (GOOD, "asks", "a recipe is a function without arguments"),
        (GOOD, "recipes", "has no function 'recipes'"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, source: str, function: str, said: str) -> None:
    file = tmp_path / "mine_wrong.py"
    file.write_text(source)
    with pytest.raises(UserError, match=said):
        experiment_of(f"{file}:{function}")


def test_an_error_in_the_users_code_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine_fails.py"
    file.write_text(GOOD)
    assert cli.main(["pretrain", f"{file}:fails", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"{file}:11, in your own file: KeyError: " in said
    assert "bug of hexa" not in said


@pytest.mark.parametrize(
    ("base", "field", "name", "own"),
    [("MethodConfig", "name", "moco", "MoCoConfig"), ("HardExample", "kind", "vat", "VAT")],
)
def test_a_name_of_hexas_own_is_refused_in_one_line(tmp_path: Path, base: str, field: str, name: str, own: str) -> None:
    file = tmp_path / f"mine_{field}.py"
    mine = f"class Mine({base}):\n    {field}: Literal['{name}'] = '{name}'\n"
    file.write_text(f"from typing import Literal\nfrom hexa.core import {base}\n{mine}{GOOD}")
    try:
        with pytest.raises(UserError) as caught:
            override(experiment_of(f"{file}:recipe"), {"hard_examples.vat.weight": 1})
    finally:
        del sys.modules[f"hexa_plugin_{file.stem}"]  # or every other test would hear of it
    said = f"{file}: Mine has the {field} '{name}' of hexa's own {own}; give it another {field}"
    assert str(caught.value).endswith(said)
    assert "\n" not in str(caught.value)


def test_the_untrained_network_of_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine_good.py"
    file.write_text(GOOD)
    assert isinstance(named(f"random:{file}:recipe"), Backbone)


OWN = """
from typing import Literal
from hexa import recipes
from hexa.methods.moco import MoCoConfig

open("imported", "a").close()

class NAMEConfig(MoCoConfig):
    name: Literal["NAME"] = "NAME"

def recipe():
    base = recipes.get("digits-moco-v2")
    return base.model_copy(update={"method": NAMEConfig(**base.method.model_dump(exclude={"name"}))})
"""


class Stored:
    """A run whose method came from a file of the user's. This process never imports it: its copies do."""

    def __init__(self, folder: Path, file: Path, method: str) -> None:
        self.folder, self.file = folder, file
        self.config = folder / "run" / "config.yaml"
        self.config.parent.mkdir(exist_ok=True)
        file.write_text(OWN.replace("NAME", method))
        dump(recipes.get("digits-moco-v2").model_copy(update={"recipe": f"{file}:recipe"}), self.config)
        self.config.write_text(self.config.read_text().replace("name: moco", f"name: {method}"))

    def name_it(self) -> None:
        """As `hexa pretrain ./file.py:recipe` does."""
        assert forked(lambda: experiment_of(f"{self.file}:recipe").epochs).value

    def read(self, trust: Trust) -> str:
        """What another process says of it: its method, or the error; followed by whether the file was imported."""
        seen = self.folder / "imported"
        seen.unlink(missing_ok=True)
        found = forked(lambda: load(self.config, trust).method.name)
        return f"{found.value or found.raised} {'imported' if seen.exists() else 'not'}"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.chdir(tmp_path)
    made = Stored(tmp_path, tmp_path / "own_method.py", "own_method")
    made.name_it()
    return made


def test_a_file_that_the_user_named_is_imported_to_go_on_and_never_to_look(stored: Stored) -> None:
    assert stored.read("named") == "own_method imported"
    assert stored.read("all") == "own_method imported"
    said = stored.read("nothing")
    assert said.endswith(" not")
    for part in ("unknown name 'own_method'", str(stored.file), "read it, then add --trust"):
        assert part in said


def test_a_file_that_has_changed_since_is_not_the_one_that_was_named(stored: Stored) -> None:
    stored.file.write_text(stored.file.read_text() + "# other\n")
    assert "none of your commands has named it" in stored.read("named")
    assert stored.read("named").endswith(" not")
    assert stored.read("all") == "own_method imported"
    assert stored.read("named").endswith(" not"), "to trust it once names nothing"
    stored.name_it()
    assert stored.read("named") == "own_method imported"


def test_a_file_in_the_runs_own_folder_is_never_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    inside = Stored(tmp_path, tmp_path / "run" / "inside_method.py", "inside_method")
    inside.name_it()
    assert "lies in the run's own folder" in inside.read("named")
    assert inside.read("named").endswith(" not")
    assert inside.read("all") == "inside_method imported"
    outside = tmp_path / "a_link.py"
    outside.symlink_to(inside.file)
    inside.config.write_text(inside.config.read_text().replace(str(inside.file), str(outside)))
    assert inside.read("named").endswith(" not"), "a link from outside leads inside"


def test_a_run_that_needs_nothing_of_the_file_needs_no_trust(stored: Stored) -> None:
    stored.config.write_text(stored.config.read_text().replace("name: own_method", "name: moco"))
    stored.file.write_text("raise SystemExit(3)\n")
    for trust in ("nothing", "named"):
        assert stored.read(trust) == "moco not"
    stored.file.unlink()
    for trust in get_args(Trust):
        assert stored.read(trust) == "moco not"


def test_a_users_folder_that_cannot_be_written_costs_the_memory_alone(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEXA_CONFIG", "/proc/nowhere")
    stored.name_it()
    assert "none of your commands" in stored.read("named")


def test_a_file_that_cannot_be_one_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "folder.py").mkdir()
    for name in (f"{tmp_path}/loop.py", f"{tmp_path}/folder.py", "\0.py", "/dev/zero.py", "x" * 300 + ".py"):
        with pytest.raises(UserError) as caught:
            experiment_of(f"{name}:f")
        assert "\n" not in str(caught.value)
