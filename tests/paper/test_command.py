"""The command and the recipes of this package are found through entry points."""

from __future__ import annotations

import subprocess
import sys

from hexa import recipes


def test_help_lists_the_commands_without_importing_torch() -> None:
    code = "import sys; from hexa import cli; cli.build_parser('')[0].print_help(); print(list(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    first = {line.split()[0] for line in said.splitlines() if line.strip()}
    assert {"benchmark", "figure", "reproduce"} <= first
    assert not {"torch", "pydantic"} & set(eval(said.splitlines()[-1]))


def test_a_command_of_the_other_wing_does_not_import_this_one() -> None:
    code = (
        "import sys; from hexa import cli; cli.build_parser('pretrain'); print(list(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hexa_paper" not in eval(said.stdout)


def test_recipes_of_the_paper_are_among_all() -> None:
    assert {"imagenet-hexa-moco-200", "imagenet-dino", "ablate-moco"} <= set(recipes.names())
