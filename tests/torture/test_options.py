"""Every field of an experiment and every option of a protocol, with values that make no sense."""

from __future__ import annotations

import contextlib
import itertools
import resource
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hexa import fields, recipes
from hexa.assembly.build import Machine, build_method, build_objective, setting_of
from hexa.complaints import complaint
from hexa.config import UserError, choices
from hexa.core import HardExample, MethodConfig
from hexa.evaluation import protocols
from hexa.evaluation.request import EvaluationRequest
from hexa.experiment import Experiment, override
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.parsing import from_option
from hexa.weights import preparation
from hexa.weights.pretrained import random_backbone
from tests.torture.harness import Tally, forked

NASTY = (
    *(
        "",
        "none",
        "null",
        "true",
        "no",
        "x",
        "[",
        "]",
        "{",
        "{}",
        "[]",
        "[[]]",
        "[none]",
        "{a: 1}",
        "[1, 2",
        "'",
        "!!x y",
    ),
    *(
        "*a",
        "&a b",
        "0",
        "-0",
        "-1",
        "1",
        "2",
        "3",
        "0.5",
        "1e999",
        "-1e999",
        ".nan",
        ".inf",
        "-.inf",
        "nan",
        "inf",
        "1e-400",
    ),
    *(
        "1.0e+308",
        "-1.0e+308",
        "5.0e-324",
        str(2**31),
        str(2**63 - 1),
        str(2**63),
        str(-(2**63)),
        str(2**70),
        "9" * 5000,
    ),
    *("0x" + "f" * 5000, "2024-01-01", "12:30:45", "[0]", "[-1]", "[1]", "[1, 1]", "[.nan, 1]", "[1, .inf]", "[x]"),
    *(
        "[" + "1, " * 3000 + "1]",
        "[" * 200,
        "\udcff",
        "\x00",
        "<<",
        "=",
        "~",
        "[/b]",
        "../../etc/passwd",
        "{name: moco}",
    ),
)


def experiments() -> dict[str, Experiment]:
    """One for every method, all kinds of hard examples among them."""
    base = recipes.get("digits-hexa-moco")
    found = {"moco, all hard examples": _with_all_hard_examples(base)}
    for name in choices(MethodConfig, "name", "hexa.methods"):
        found[name] = override(recipes.get("digits-moco-v2"), {"method.name": name})
    return found


def _with_all_hard_examples(experiment: Experiment) -> Experiment:
    kinds = choices(HardExample, "kind", "hexa.hard_examples")
    return override(experiment, {f"hard_examples.{kind}.kind": kind for kind in sorted(kinds)})


def paths() -> Iterator[tuple[str, str]]:
    """Fields that all experiments have once, those of methods for each."""
    for name, experiment in experiments().items():
        for field in fields.of_experiment(experiment):
            if name.startswith("moco, ") or field.path.startswith("method."):
                yield name, field.path


def problem_of(error: Exception | None) -> str | None:
    """Why this is not a mistake told in one line; None if it is, or none was made."""
    if error is None or isinstance(error, UserError):
        said = "" if error is None else str(error)
        return None if "\n" not in said and len(said) < 20_000 else f"not one line: {said[:200]}"
    return f"{type(error).__name__}: {error}"


COMMON = tuple(EvaluationRequest.model_fields)
Tries = Iterator[tuple[str, Callable[[], object]]]


def check(tries: Tries, tally: Tally) -> None:
    """Each is taken or refused in one line."""
    found = []
    for name, attempt in tries:
        error = None
        try:
            attempt()
        except Exception as raised:
            error = raised
        problem = problem_of(error)
        tally.input("options of the command line", problem is None)
        if problem is not None:
            found.append(f"{name}: {problem[:200]}")
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])


def of_fields(every: int) -> Tries:
    given = experiments()
    for number, (name, path) in enumerate(paths()):
        for value in NASTY[number % every :: every]:
            yield f"{name} --{path} {value[:30]!r}", partial(override, given[name], {path: value})


def of_protocols(every: int) -> Tries:
    number = 0
    for protocol, known in protocols.every().items():
        for options in known.presets.values():
            for option in [*type(options).model_fields, "unknown", "k "]:
                number += 1
                for value in NASTY[number % every :: every]:
                    changes = {option: from_option(value)}
                    yield f"{protocol} --{option} {value[:30]!r}", partial(known.options, None, changes, COMMON)
    for option, value in itertools.product(COMMON, NASTY):
        yield f"--{option} {value[:30]!r}", partial(EvaluationRequest.from_fields, {option: from_option(value)})
    backbone = random_backbone(NetworkConfig(name="small-resnet", widths=(4, 8)), 8)
    for name, value in itertools.product(preparation.NAMES, NASTY):
        yield f"--{name} {value[:30]!r}", partial(backbone.prepared, **{name: value})


def test_fields_are_taken_or_refused_in_one_line(tally: Tally) -> None:
    check(of_fields(every=14), tally)


@pytest.mark.slow
def test_every_field_with_every_value(tally: Tally) -> None:
    check(of_fields(every=1), tally)


def test_options_of_protocols_are_taken_or_refused_in_one_line(tally: Tally) -> None:
    check(of_protocols(every=7), tally)


@pytest.mark.slow
def test_every_option_with_every_value(tally: Tally) -> None:
    check(of_protocols(every=1), tally)


PATHS = (
    *("", ".", "..", "a..b", ".epochs", "epochs.", "views.", "views.size.x", "method", "views", "optimizer"),
    *(
        "hard_examples",
        "hard_examples.",
        "hard_examples..x",
        "hard_examples.a.b.c",
        "network.options",
        "network.options.x",
    ),
)


def test_paths_are_taken_or_refused_in_one_line(tally: Tally) -> None:
    experiment = recipes.get("digits-hexa-moco")
    tries = (
        (f"--{path} {value[:30]!r}", partial(override, experiment, {path: value}))
        for path in PATHS
        for value in NASTY[:: 1 if path == "hard_examples" else 5]
    )
    check(iter(tries), tally)


EXTREME = ("0", "1", "2", "7", "1000000", str(2**31), str(2**62), "1.0e-300", "1.0e+300", "[1]", "[7, 1000000]")


def build(experiment: Experiment) -> str | None:
    """What is wrong with how an experiment is built; None if it is, or is refused in a line."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * 1024**3, 6 * 1024**3))
    try:
        setting = setting_of(experiment, 1347)
        machine = Machine.of(experiment)
        build_objective(experiment, build_method(experiment, setting, machine), machine)
    except Exception as error:
        status, line = complaint(error)
        return None if status == 2 and "\n" not in line else f"{type(error).__name__}: {error}"
    return None


def builds(every: int) -> Iterator[tuple[str, Experiment]]:
    base = {"network.widths": "[4, 8]", "batch_size": "32", "training.device": "cpu", "training.precision": "fp32"}
    given = {name: override(experiment, base) for name, experiment in experiments().items()}
    for number, (name, path) in enumerate(paths()):
        for value in EXTREME[number % every :: every]:
            with contextlib.suppress(UserError):
                yield f"{name} --{path} {value}", override(given[name], {path: value})


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_what_is_taken_is_built_or_refused_in_one_line(part: int, tally: Tally) -> None:
    found = []
    for name, experiment in itertools.islice(builds(every=1), part, None, 4):
        done = forked(partial(build, experiment), seconds=60)
        problem = done.value if done.signal is None and done.raised is None else f"{done.signal} {done.raised}"
        tally.input("options of the command line", problem is None)
        if problem is not None:
            found.append(f"{name}: {problem[:300]}")
    assert not found, f"{len(found)}:\n" + "\n".join(found[:40])
