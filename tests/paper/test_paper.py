"""The page of the whole paper: every published row is on it, with a command that parses or a reason."""

from __future__ import annotations

import re
import shlex

import pytest

from hexa import cli, recipes
from hexa.cli import fields
from hexa.evaluation import protocols
from hexa_paper import paper, plan
from hexa_paper.studies import EXPERIMENTS, PLAIN, TABLES, arms_of, shown, study
from tests.paper.conftest import RECORD, request_for

#: Rows that no command makes.
WITHOUT = {"BigBiGAN"}
NAMES = [name for name in TABLES if name != "low-shot-curve"]


def parsed(command: str, epochs: int | None = None) -> None:
    """Raises for a command that would not start."""
    words = shlex.split(command)
    assert words.pop(0) == "hexa"
    parser, parsers = cli.build_parser(only=words[0])
    ours, extra = fields.split(words, sorted(parsers[words[0]]._option_string_actions))
    given = parser.parse_args(ours)
    if given.command == "pretrain":
        assert not extra
        assert int(given.epochs or recipes.get(given.recipe).epochs) == epochs
    elif given.command == "evaluate":
        protocols.get(given.protocol).options(None, extra)
    else:
        assert not extra
        assert given.experiment in EXPERIMENTS
        study(given.experiment, method=given.method, scale=given.scale)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_row_has_a_command_that_parses_or_a_reason(name: str) -> None:
    page = paper.page(RECORD)
    section = page[page.index(f"## Table {name[-1]}") :].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert [row for row in shown(name) if (row.method, row.epochs) != PLAIN] == list(
        TABLES[name].rows
    )
    for line, row in zip(lines, shown(name), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert cells[:2] == [row.method, str(row.epochs or "–")]
        assert cells[2 : 2 + len(row.values)] == [
            "–" if value is None else f"{value:.1f}" for value in row.values
        ]
        commands = re.findall("`(hexa .*?)`", line)
        assert bool(commands) != (row.method in WITHOUT), line
        for command in commands:
            parsed(command, row.epochs)


def test_moco_v1_is_small_with_its_own_views_and_temperature() -> None:
    """A linear head, τ 0.07, colours always changed and no blur (He et al. 2020)."""
    (arm,) = [arm for arm in arms_of("compared", "cifar") if arm.published == ("MoCo", 200)]
    made = plan.experiment_of(arm, request_for("cifar10"))
    assert (made.method.name, made.method.head, made.method.temperature) == ("moco", "linear", 0.07)  # type: ignore[attr-defined]
    views = made.views
    assert (views.size, views.jitter_probability, views.hue, views.blur_probability) == (
        32,
        1.0,
        0.4,
        0.0,
    )
    assert made.network.name == "small-resnet"
