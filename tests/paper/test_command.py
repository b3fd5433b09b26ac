"""The command and the recipes of this package are found through entry points."""

from __future__ import annotations

import subprocess
import sys


def test_other_wing_imports() -> None:
    """A command of the other wing does not import this one."""
    code = (
        "import sys; from hexa import cli; cli.build_parser('pretrain'); print(list(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hexa_paper" not in eval(said.stdout)
