"""The real command line: its output goes nowhere, targets fail, names are not text, values absurd, packages missing."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hexa import recipes
from hexa.config import UserError
from hexa.evaluation import protocols
from hexa.evaluation.request import EvaluationRequest
from hexa.recipes.experiment import override
from hexa.runtime.parsing import from_option
from tests.conftest import Says
from tests.end_to_end.endings import RECIPE, options
from tests.run.test_run import events
from tests.torture.harness import Tally
from tests.torture.struck import Strike, fill, struck

GROUP = "standard output that cannot be written"


#: How output is lost, and the exit status of a command whose output is help.
SHELL = {
    "{} >/dev/full 2>/dev/full": 2,
    "{} >&- 2>&- <&-": 0,
    "{{ {}; echo $? >status; }} 2>&1 | true; exit $(cat status)": 1,
}
_CLOSED = "{} >&- 2>&- <&-"


@pytest.mark.parametrize(("line", "of_help"), SHELL.items())
def test_unwritable_output(line: str, of_help: int, tmp_path: Path, tally: Tally) -> None:
    words = ["pretrain", RECIPE, *options(epochs=1), "--out", "run"]
    training = " ".join(f"'{word}'" for word in words)
    for arguments, expected in [("pretrian", 2), ("--help", of_help), (training, 0)][
        : 3 if line == _CLOSED else 2
    ]:
        command = line.format(f"{sys.executable} -m hexa {arguments}")
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=120
        )
        said = b"Traceback" in done.stderr or b"Exception" in done.stderr
        tally.fault(GROUP, done.returncode == expected and not said, done)
    # no file of the run has become standard output
    assert line != _CLOSED or events(tmp_path / "run")[-1] == "end"


# -- names ----------------------------------------------------------------------------------------------------------

ODD = os.fsdecode(b"[b] \xff\x1b[31m:smile:")


def clean(text: str) -> bool:
    return "Traceback" not in text and not any(
        ord(letter) < 32 and letter not in "\n\t" for letter in text
    )


@pytest.mark.parametrize("name", ["x[/b]", ODD, "a\nhexa: error: b", "é"])
def test_printed_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says, tally: Tally
) -> None:
    """Names are printed as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hexa.run.run.pretrain", lambda experiment, out, console: Path(out))
    shown = name.encode("unicode-escape", "surrogatepass").decode().replace("\\xe9", "é")
    out = says("pretrain digits-moco-v2", f"--out={name}", f"--data=folder:{name}").out
    assert out.splitlines()[0] == f"run: {shown}"
    assert out.count("\n") == 2
    err = says("evaluate knn --data digits", f"./{name}", status=2).err
    told = err.startswith("hexa: error: ./") and err.count("\n") == 1 and clean(err)
    tally.input("names that are not text", told, err)


# -- targets --------------------------------------------------------------------------------------------------------


def test_full_disk_result(tmp_path: Path, tally: Tally) -> None:
    """A disk that fills up at the end loses no result."""
    out = tmp_path / "result.json"
    words = f"evaluate knn pixels:8 --data digits --device cpu --out {out}".split()
    end = struck(*words, strike=Strike(partial(fill, 1500), "evaluate"))
    told = f"{out}: the limit on the size of files is reached" in end.err
    kept = '"top1": 9' in end.err and "Traceback" not in end.err
    tally.fault("a target that cannot be written", end.code == 2 and told and kept, end)
    assert not list(tmp_path.iterdir())


TARGETS = (
    "evaluate knn pixels:8 --data digits --out /proc/x.json",
    "embed pixels:8 --data digits --out /proc/x.npz",
    "visualize digits-moco-v2 --out file/x.png",
    "report . --out file/x.html",
    "figure clusters pixels:8 --data digits --out loop/x.svg",
    "demo --out loop/x",
    "export random:small-resnet-4-8 --to safetensors --out nowhere/x.safetensors",
    f"pretrain digits-moco-v2 --out {'x' * 300}",
    f"reproduce ablation --data digits --out {'x' * 300}",
)


@pytest.mark.parametrize("line", TARGETS, ids=lambda line: line[:50])
def test_unwritable_target_before_work(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: Says,
    tally: Tally,
) -> None:
    """A target that cannot be written is reported before the work."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("loop").symlink_to("loop")
    Path("nowhere").symlink_to("gone")
    before = sorted(tmp_path.rglob("*"))
    err = says(line, status=2).err
    said = err.startswith("hexa: error: ") and err.count("\n") == 1
    tally.fault(
        "a target that cannot be written", said and sorted(tmp_path.rglob("*")) == before, err
    )


# -- values and packages ----------------------------------------------------------------------------------------------

#: Values, and fields to give them to; every field with every value: benchmarks/fuzz.py.
NASTY = [
    "",
    "none",
    "x",
    "[",
    "{a: 1}",
    "!!x y",
    "*a",
    "-1",
    "0.5",
    "1e999",
    ".nan",
    "\0",
    "\udcff",
]
NASTY += ["9" * 5000, "[" * 200]
_PATHS = """epochs views.size optimizer.learning_rate network.widths data method.name method a..b hard_examples
hard_examples..x hard_examples.adversarial.weight network.options.x"""
PATHS = ("", *_PATHS.split())


def told_in_a_line(error: Exception | None) -> bool:
    """Return True without an error, and for a one-line error."""
    said = "" if error is None else str(error)
    return (
        (error is None or isinstance(error, UserError)) and "\n" not in said and len(said) < 20_000
    )


@pytest.mark.parametrize("value", NASTY, ids=lambda value: repr(value[:9]))
def test_nasty_option_values(value: str, tally: Tally) -> None:
    """Values are taken or refused in one line."""
    experiment = recipes.get("digits-hexa-moco")
    given = EvaluationRequest.model_fields
    known = protocols.every()["linear"]
    tries = [lambda path=path: override(experiment, {path: value}) for path in PATHS]
    tries += [
        lambda name=name: EvaluationRequest.from_fields({name: from_option(value)})
        for name in given
    ]
    tries += [
        lambda name=name: known.options(None, {name: from_option(value)}, tuple(given))
        for name in ("epochs", "k ")
    ]
    for attempt in tries:
        error = None
        try:
            attempt()
        except Exception as raised:
            error = raised
        tally.input("options of the command line", told_in_a_line(error), repr(error))
