"""Every field of an experiment and every option of a protocol, with values that make no sense."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import pytest

from hexa import fields, recipes
from hexa.complaints import complaint
from hexa.config import UserError, choices
from hexa.core import HardExampleConfig, MethodConfig
from hexa.evaluation.protocol import protocols
from hexa.experiment import Experiment, override
from hexa.runtime.parsing import from_option
from hexa.training.assembly import Machine, build_method, build_objective, setting_of
from tests.torture.harness import Tally, forked

NASTY = (
    *("", "none", "null", "true", "no", "x", "[", "]", "{", "{}", "[]", "[[]]", "[none]", "{a: 1}", "[1, 2", "'", "!!x y"),
    *("*a", "&a b", "0", "-0", "-1", "1", "2", "3", "0.5", "1e999", "-1e999", ".nan", ".inf", "-.inf", "nan", "inf", "1e-400"),
    *("1.0e+308", "-1.0e+308", "5.0e-324", str(2**31), str(2**63 - 1), str(2**63), str(-(2**63)), str(2**70), "9" * 5000),
    *("0x" + "f" * 5000, "2024-01-01", "12:30:45", "[0]", "[-1]", "[1]", "[1, 1]", "[.nan, 1]", "[1, .inf]", "[x]"),
    *("[" + "1, " * 3000 + "1]", "[" * 200, "\udcff", "\x00", "<<", "=", "~", "[/b]", "../../etc/passwd", "{name: moco}"),
)


def experiments() -> dict[str, Experiment]:
    """One for every method, all kinds of hard examples among them."""
    base = recipes.get("digits-hexa-moco")
    found = {"moco, all hard examples": _with_all_hard_examples(base)}
    for name in choices(MethodConfig, "name", "hexa.methods"):
        found[name] = override(recipes.get("digits-moco-v2"), {"method.name": name})
    return found


def _with_all_hard_examples(experiment: Experiment) -> Experiment:
    kinds = choices(HardExampleConfig, "kind", "hexa.hard_examples")
    return override(experiment, {f"hard_examples.{kind}.kind": kind for kind in sorted(kinds)})


def paths() -> Iterator[tuple[str, str]]:
    """Fields that all experiments have once, those of methods for each."""
    for name, experiment in experiments().items():
        for field in fields.of_experiment(experiment):
            if name.startswith("moco, ") or field.path.startswith("method."):
                yield name, field.path


def complaint_of(error: Exception | None) -> str | None:
    """Why this is not a mistake told in one line; None if it is, or none was made."""
    if error is None or isinstance(error, UserError):
        said = "" if error is None else str(error)
        return None if "\n" not in said and len(said) < 20_000 else f"not one line: {said[:200]}"
    return f"{type(error).__name__}: {error}"


def test_every_field_is_taken_or_refused_in_one_line(tally: Tally) -> None:
    given, found = experiments(), []
    for name, path in paths():
        for value in NASTY:
            error = None
            try:
                override(given[name], {path: value})
            except Exception as raised:
                error = raised
            problem = complaint_of(error)
            tally.input("options of the command line", problem is None)
            if problem is not None:
                found.append(f"--{path} {value[:30]!r} ({name}): {problem[:200]}")
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])


@pytest.mark.parametrize("path", ["", ".", "..", "a..b", ".epochs", "epochs.", "views.", "views.size.x", "hard_examples.", "hard_examples..x", "hard_examples.a.b.c", "method", "views", "hard_examples", "network.options", "network.options.x", "optimizer"])
def test_every_path_is_taken_or_refused_in_one_line(path: str, tally: Tally) -> None:
    found = []
    for value in NASTY:
        error = None
        try:
            override(recipes.get("digits-hexa-moco"), {path: value})
        except Exception as raised:
            error = raised
        problem = complaint_of(error)
        tally.input("options of the command line", problem is None)
        if problem is not None:
            found.append(f"--{path} {value[:30]!r}: {problem[:200]}")
    assert not found, "\n".join(found[:40])


def test_every_option_of_a_protocol_is_taken_or_refused_in_one_line(tally: Tally) -> None:
    from hexa.evaluation import COMMON, _check_common

    found = []
    for protocol, known in protocols().items():
        for preset, options in known.presets.items():
            for option in [*type(options).model_fields, "unknown", "k "]:
                for value in NASTY:
                    error = None
                    try:
                        known.options(preset, {option: from_option(value)}, COMMON)
                    except Exception as raised:
                        error = raised
                    problem = complaint_of(error)
                    tally.input("options of the command line", problem is None)
                    if problem is not None:
                        found.append(f"{protocol} --{option} {value[:30]!r}: {problem[:200]}")
    for place in range(5):
        for value in NASTY:
            given: list[Any] = [None, "auto", None, 256, True]
            given[place] = from_option(value)
            error = None
            try:
                _check_common(*given)
            except Exception as raised:
                error = raised
            problem = complaint_of(error)
            tally.input("options of the command line", problem is None)
            if problem is not None:
                found.append(f"common option {place} {value[:30]!r}: {problem[:200]}")
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])
