"""Files of the user's own: what is wrong in them is said with the line, and is no bug of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexa import cli, named
from hexa.config import UserError
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


def test_the_untrained_network_of_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine_good.py"
    file.write_text(GOOD)
    assert isinstance(named(f"random:{file}:recipe"), Backbone)
