"""A run folder may come from a stranger: whatever is in it, looking at it ends in order, and runs and opens nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hexa import cli, recipes
from hexa.recipes.experiment import override
from hexa.run.run import pretrain
from hexa.runtime.checkpoints import checksum
from tests.end_to_end.endings import FIELDS
from tests.pickles import Calls
from tests.torture.harness import Tally, forked

SECRET = "a-secret-that-no-report-may-hold"
FILES = ("config.yaml", "metrics.jsonl", "results.json", "environment.json")
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_in(tmp_path_factory.mktemp("zoo"))


def trained_in(folder: Path) -> Path:
    run = pretrain(
        override(recipes.get("digits-hexa-moco"), FIELDS | {"epochs": 1}), folder / "run"
    )
    (run / "results.json").write_text(
        json.dumps([{"protocol": "knn", "data": "digits", "metrics": {"top1": 50.0}}])
    )
    return run


def spoilt(name: str, trained: Path, place: Path) -> Path:
    """A spoiled copy. Beside it lie a secret, and a canary, code that tells of having been run."""
    (place / "secret").write_text(f"password: {SECRET}\n")
    (place / "canary.py").write_text(f"open({str(place / 'sang')!r}, 'w').close()\ndef f(): pass\n")
    run = Path(shutil.copytree(trained, place / "run", symlinks=True))
    ZOO[name](run)
    return run


# -- what may be in it ----------------------------------------------------------------------------------------------


def fields(**changes: Any) -> Spoil:
    """Other fields of config.yaml, by their paths with __ for the dots."""

    def spoil(run: Path) -> None:
        found = yaml.safe_load((run / "config.yaml").read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = found
            for part in parents:
                place = place[part]
            place[last] = (
                value.format(run=run, beside=run.parent) if isinstance(value, str) else value
            )
        (run / "config.yaml").write_text(yaml.safe_dump(found, sort_keys=False))

    return spoil


def text(content: str | bytes, *names: str) -> Spoil:
    """The same text in each of these files."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return lambda run: [(run / name).write_bytes(data) for name in names or FILES]


def added(name: str, content: str) -> Spoil:
    return lambda run: (run / name).write_text((run / name).read_text() + content)


def made(make: Callable[[Path], Any], *names: str) -> Spoil:
    """Something else under each of these names."""

    def spoil(run: Path) -> None:
        for name in names or FILES:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(
                missing_ok=True
            )
            make(run / name)

    return spoil


def several(*spoils: Spoil) -> Spoil:
    return lambda run: [spoil(run) for spoil in spoils]


def link(to: str, *names: str) -> Spoil:
    return made(
        lambda path: path.symlink_to(to.format(beside=path.parent.parent, name=path.name)), *names
    )


def results(*entries: Any) -> Spoil:
    return text(json.dumps(entries), "results.json")


def journal(**values: Any) -> Spoil:
    return added(
        "metrics.jsonl", json.dumps({"event": "train", "step": 7, "epoch": 1, **values}) + "\n"
    )


def checkpoint(content: bytes | dict[str, Any]) -> Spoil:
    """Another newest checkpoint; a dictionary changes the state of the true one, whose sum is made right again."""

    def spoil(run: Path) -> None:
        path = sorted((run / "checkpoints").iterdir())[-1]
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            state = {**torch.load(path, weights_only=True), **content}
            state.pop("checksum")
            torch.save({**state, "checksum": checksum(state)}, path)

    return spoil


EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[31m\r\nhexa: error: \udcff\u202e"
STRANGE = '{"device": {"a": [1]}, "resumed": 3, "precision": [], "launcher": [3]}'

#: Would run code if anything could.
CODE: dict[str, Spoil] = {
    "recipe beside it": fields(recipe="{run}/../canary.py:f"),
    "python network": fields(network={"name": "python:canary:f"}),
    "object": text("!!python/object/apply:os.system ['touch sang']\n", "config.yaml"),
    "pickle": checkpoint(pickle.dumps(Calls(os.system, "touch sang"))),
}
#: Is spoiled for a report.
LOOKS: dict[str, Spoil] = {
    "links out": link("{beside}/secret", *FILES, "gallery.png"),
    "pipes": made(os.mkfifo, *FILES, "gallery.png"),
    **{
        f"all {one[:8]!r}": text(one)
        for one in ("", "[1, 2]", "null", "[" * 100_000, "x: 1\n" * 20_000)
    },
    "harmful texts": several(
        fields(data=EVIL, recipe=EVIL, hard_examples={EVIL: {"kind": EVIL, EVIL: 1}}),
        journal(**{EVIL: 1.0}),
        results({"metrics": {EVIL: 1.0}, "protocol": EVIL, "data": EVIL, "notes": [EVIL]}),
    ),
    "too much of all": several(
        journal(**{f"k{n}": n for n in range(4000)}),
        added("metrics.jsonl", '{"event": ["train"], "step": {}}\n' + "x" * 20_000_000),
        results(*({"metrics": {f"m{n}": 1.0}} for n in range(5000))),
    ),
    "metrics of all kinds": results(
        {"metrics": {"a": 1e308, "b": float("nan"), "c": "x", "d": [1], "f": None}},
        {"metrics": {"top1": 10**400, "top1_std": -1}, "protocol": 7, "seed": {}},
    ),
    "other environment": text(STRANGE, "environment.json"),
}
#: Is spoiled for a run that is to go on.
WORKS: dict[str, Spoil] = {
    "an alias of itself": text("a: &a [*a]\n", "config.yaml"),
    "infinite numbers": fields(batch_size=10**30, optimizer__learning_rate=float("inf")),
    "a wide network": fields(network__widths=[10**9, 10**9]),
    "checkpoints that are not": lambda run: (
        os.mkfifo(run / "checkpoints" / "step-99999999.pt"),
        (run / "checkpoints" / "step-99999998.pt").mkdir(),
        (run / "checkpoints" / f"step-{10**60}.pt").write_bytes(b"PK"),
    ),
    "a checkpoint of other kinds": checkpoint({"method": {1: torch.zeros(1)}, "step": "x"}),
    "weights that are a pipe": made(os.mkfifo, "backbone.safetensors"),
}
ZOO = CODE | LOOKS | WORKS

# -- what is done with it -------------------------------------------------------------------------------------------

LOOK = {
    "report": "report {run} --out {out}.html",
    "report of images": "report {run} --data digits#test --out {out}.html",
    "visualize": "visualize {run} --data digits#test --num-images 2 --out {out}.png",
    "figure of features": "figure clusters {run} --data digits#test --out {out}.png",
    "evaluate": "evaluate knn {run} --data digits --out {out}.json",
    "embed": "embed {run} --data digits#test --out {out}.npz",
    "export": "export {run} --to safetensors --out {out}.safetensors",
    "resume": "resume {run}",
    "pretrain --config": "pretrain --config {run}/config.yaml --out {out} --epochs 1",
}


def complaint(run: Path, what: str) -> str | None:
    """Why a command does not end in order in a copy of this process, which may hang or die of it; None if it does."""
    streams = {1: run.parent / "stdout", 2: run.parent / "stderr"}

    def work() -> int:
        os.chdir(run.parent)
        for number, path in streams.items():
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout = os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w")
        sys.path.insert(0, str(run.parent))
        try:
            return cli.main(
                [word.format(run=run, out=run.parent / "made") for word in LOOK[what].split()]
            )
        finally:
            sys.stdout.flush(), sys.stderr.flush()

    ended = forked(work, seconds=60)
    out, err = (
        path.read_text(errors="replace") if path.exists() else "" for path in streams.values()
    )
    lines = [line for line in err.splitlines() if line.startswith("hexa: ")]
    if (run.parent / "sang").exists():
        return "code was run"
    if ended.value not in (0, 2) or "Traceback" in err or (ended.value == 2 and len(lines) != 1):
        return f"{ended}: {err[-3000:]}"
    if (
        any(ord(letter) < 32 and letter not in "\n\t" for letter in out + err)
        or "\u202e" in out + err
    ):
        return f"control characters: {(out + err)!r}"
    page = run.parent / "made.html"
    content = page.read_text() if page.exists() else ""
    if SECRET in content:
        return "a file from outside is in the report"
    return "markup, or too much" if "<script" in content or len(content) > 8_000_000 else None


TRIED = [
    (name, what)
    for name in CODE
    for what in ("report", "evaluate" if "network" in name else "resume")
]
TRIED += [(name, "report") for name in LOOKS] + [(name, "resume") for name in WORKS]


@pytest.mark.parametrize(("name", "what"), TRIED)
def test_hostile_run_folders(
    name: str, what: str, trained: Path, tmp_path: Path, tally: Tally
) -> None:
    """Every command with every spoiled folder: benchmarks/fuzz.py."""
    found = complaint(spoilt(name, trained, tmp_path), what)
    tally.input("run folders", found is None, found)
