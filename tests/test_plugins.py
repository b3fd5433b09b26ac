"""Files of the user's own: what is wrong in them is said with the line, and is no bug of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hexa import cli, named
from hexa.config import UserError
from hexa.experiment import override
from hexa.nn.pretrained import Backbone
from hexa.plugins import experiment_of

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
    assert f"{file}:11, a file of yours: KeyError: " in said
    assert "bug of hexa" not in said


@pytest.mark.parametrize(
    ("base", "field", "name", "own"),
    [("MethodConfig", "name", "moco", "MoCoConfig"), ("HardExampleConfig", "kind", "vat", "VATConfig")],
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
