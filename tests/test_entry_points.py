"""A package of someone else brings a method, a protocol and published results, as hexa_paper does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hexa import entry_points
from hexa.config import UserError, choices
from hexa.core import MethodConfig
from hexa.evaluation import protocols
from tests.torture.harness import forked

PLUGIN = '''"""A protocol without a result.

More of it.
"""

from typing import Literal
from hexa.config import Config
from hexa.core import MethodConfig
from hexa.evaluation.protocol import Outcome, Protocol
from hexa.reporting.tables import Table

class OthersConfig(MethodConfig):
    name: Literal["others"] = "others"

def run(task, options):
    return Outcome({})

PROTOCOL = Protocol(run, {"plain": Config()}, lambda preset, options: preset)

def tables(runs, names):
    return [Table(("method",), (("theirs",),), title="others")]

def of_result(result):
    return (tables([], [])[0], "caution") if result["protocol"] == "knn" else None
'''
Added = Callable[[Callable[[], object]], Any]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Added:
    """installed(work) is the result of `work`, or its error, in a process that has the plugin."""
    (tmp_path / "others_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    values = {"hexa.protocols": "others_plugin:PROTOCOL"}

    added = entry_points.added

    def fake(group: str) -> list[EntryPoint]:
        entry = EntryPoint("others", values.get(group, "others_plugin"), group)
        broken = EntryPoint("broken", "broken_plugin", group)
        return [*added(group), entry, broken]

    (tmp_path / "broken_plugin.py").write_text("raise SystemExit(0)\n")
    for module in ("hexa.evaluation.protocols", "hexa.entry_points"):
        monkeypatch.setattr(f"{module}.added", fake)

    def run(work: Callable[[], object]) -> Any:
        def alone() -> object:
            entry_points.loaded.cache_clear()
            return work()

        found = forked(alone, seconds=600)
        return found.value or found.raised

    return run


@pytest.mark.parametrize("name", ["moco", "cmc", "others"])
def test_installed_name_conflict(installed: Added, tmp_path: Path, name: str) -> None:
    """A name that is installed is refused."""
    source = (
        f"from hexa.core import MethodConfig\nclass Mine(MethodConfig):\n    name: str = {name!r}\n"
    )
    (tmp_path / "mine_config.py").write_text(source)

    def refused() -> str:
        importlib.import_module("mine_config")

        with pytest.raises(UserError) as error:
            choices(MethodConfig, "name", "hexa.methods")
        return str(error.value)

    said = installed(refused)
    assert "mine_config.py" in said
    assert f"'{name}'" in said


def test_installed_protocols(installed: Added) -> None:
    """Protocols of other packages are found."""

    def found() -> tuple[bool, str]:
        return "others" in protocols.names(), protocols.summary("others")

    assert installed(found) == (True, "A protocol without a result.")


def test_method_redefinition() -> None:
    """The last of two definitions counts."""

    def defined(length: int) -> type[MethodConfig]:
        class Twice(MethodConfig):
            name: str = "twice"
            epochs: int = length

        return Twice

    def found() -> int:
        both = [defined(length) for length in (1, 2)]
        assert len(both) == 2
        return choices(MethodConfig, "name", "hexa.methods")["twice"].model_fields["epochs"].default

    assert forked(found, seconds=600).value == 2
