"""Untrusted YAML and JSON: everything that hexa writes is readable, and nothing in a file has side
effects."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hexa import recipes
from hexa.config import UserError
from hexa.recipes.experiment import dump, load, override
from hexa.runtime.parsing import MOST_YAML, from_json, from_option, from_yaml, read_text, seconds_of
from tests.refusals import one_line

BOMB = "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"


@pytest.mark.parametrize("name", recipes.names()[::6])
def test_config_roundtrip(name: str, tmp_path: Path) -> None:
    """A configuration that hexa writes is read unchanged."""
    experiment = recipes.get(name)
    dump(experiment, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert from_yaml(text) == yaml.safe_load(text) == experiment.model_dump(mode="json")
    assert load(tmp_path / "config.yaml") == experiment
    assert experiment.recipe == name


@pytest.mark.parametrize(
    "data",
    ["2024-01-01", "=", "<<", "yes", "1e5", "0o7", "folder:a: b", "folder:\udcff", "a\nb", "µ"],
)
def test_ambiguous_text(data: str, tmp_path: Path) -> None:
    """Text that looks like something else stays text."""
    dump(
        override(recipes.get("digits-moco-v2"), {}).model_copy(update={"data": data}),
        tmp_path / "config.yaml",
    )
    assert load(tmp_path / "config.yaml").data == data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "line 2, column 8: aliases"),
        ("a: &a [*a]", "aliases"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ("!!python/object/apply:os.system [x]", "tag"),
        ("a: !!binary aGk=", "tag"),
        ("a: !!set {b}", "tag"),
        ("{[1]: 2}", "a key must be text"),
        ("a: " + "9" * 5000, "limit"),
        ("a: " + "9" * 20, "64 bits"),
        ("a: 0x1f", "invalid literal"),
        ("[" * 100_000, "nested too deeply"),
        ("- " * 100_000, "nested too deeply"),
        ("a: \0", "not YAML"),
        ("a: [", "line 1"),
    ],
)
def test_hostile_yaml(text: str, said: str) -> None:
    """Hostile files are refused in one line, without delay."""
    begin = time.monotonic()
    with one_line(said):
        from_yaml(text)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 80 + "]" * 80, '{"a":' * 60 + "1" + "}" * 60, "{", "", "9" * 5000]
)
def test_hostile_json(text: str) -> None:
    with pytest.raises(UserError):
        from_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("none", None),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("2024-01-01", "2024-01-01"),
        ("010", 10),
        ("1:30", "1:30"),
        ("folder:photos: 2", "folder:photos: 2"),
        ("*a", "*a"),
        ("folder:\udcff", "folder:\udcff"),
    ],
)
def test_option_values(text: str, value: Any) -> None:
    """Options are parsed by their form, or are text."""
    assert from_option(text) == value


def test_readable_files(tmp_path: Path) -> None:
    """Only regular files of a bounded size in their folder are read."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "outside").write_text("a: 1")
    (folder / "inside").write_text("a: 2")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "in").symlink_to("inside")
    (folder / "up").symlink_to("../run/inside")
    os.mkfifo(folder / "pipe")
    (folder / "large").write_text("x" * (MOST_YAML + 1))
    (folder / "utf16").write_bytes("a: 1".encode("utf-16"))
    (folder / "bom").write_bytes(b"\xef\xbb\xbfa: 1")
    for name in ("in", "up", "inside"):
        assert read_text(folder / name, MOST_YAML, within=folder) == "a: 2"
    assert read_text(folder / "out", MOST_YAML) == "a: 1"
    assert read_text(folder / "bom", MOST_YAML) == "a: 1"
    for name, said in (
        ("out", "a link out"),
        ("pipe", "not a file"),
        ("large", "too large"),
        ("utf16", "UTF-8"),
    ):
        with pytest.raises(UserError, match=said):
            read_text(folder / name, MOST_YAML, within=folder)


def test_duration_parsing() -> None:
    assert [seconds_of(text) for text in ("90s", "1.5h", "1h30m", "1d 1s", 300)] == [
        90,
        5400,
        5400,
        86401,
        300,
    ]
    for text in (
        "30",
        "m",
        "0m",
        "-1m",
        "1w",
        "1e9m",
        "",
        "1h30",
        "9" * 400 + "s",
        "36501d",
        0,
        -1.0,
        float("inf"),
    ):
        with pytest.raises(UserError, match="must be a number > 0 followed by"):
            seconds_of(text)
