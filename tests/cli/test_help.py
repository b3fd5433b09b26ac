"""The output of `--help`: groups of commands, common fields, presets."""

from __future__ import annotations

import re

import pytest

from hexa.cli import OVERVIEW, overview
from hexa.cli.declare import commands
from tests.conftest import Says


def test_help_overview() -> None:
    """Every command appears once, with its summary; the groups list no command that does not
    exist."""
    known = commands()
    text = overview()
    for name, command in known.items():
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1
        assert command.summary.split()[0] in text
    assert {name for names in OVERVIEW.values() for name in names} <= known.keys()


def test_common_fields_of_a_recipe(says: Says) -> None:
    common = says("pretrain digits-hexa-moco --help").out
    everything = says("pretrain digits-hexa-moco --help-all").out
    fields = re.findall(r"^  (--\S+)", common, re.MULTILINE)
    assert {"--epochs", "--method.temperature", "--hard_examples.adversarial.epsilon"} <= set(
        fields
    )
    assert "--views.hue" not in fields
    all_fields = re.findall(r"^  (--\S+)", everything, re.MULTILINE)
    assert set(fields) < set(all_fields)
    assert f"lists {len(all_fields) - len(fields)} more fields" in common


@pytest.mark.parametrize("protocol", ["robust", "linear"])
def test_fields_of_a_protocol(says: Says, protocol: str) -> None:
    """Every field has a description and a type; a second preset lists only its differences."""
    text = says(f"evaluate {protocol} --help").out
    assert "( or none)" not in text
    assert "Options of the protocol `" not in text
    assert text.count("--head_epochs") <= 1
