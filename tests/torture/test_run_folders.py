"""A run folder may come from a stranger: whatever is in it, looking at it ends in order, and runs and opens nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

from hexa import cli, recipes
from hexa.config import UserError
from hexa.experiment import override
from hexa.reporting.pictures import Gallery
from hexa.reporting.report import render
from hexa.reporting.runs import read_run
from tests.torture.harness import Tally, damaged, forked

SECRET = "a-secret-that-no-report-may-hold"
TINY = {
    "epochs": 1,
    "batch_size": 128,
    "views.size": 8,
    "network.widths": [4, 8],
    "method.queue_size": 256,
    "training.device": "cpu",
    "training.precision": "fp32",
    "training.report": False,
    "training.tensorboard": False,
    "monitor.knn_every": 0,
}
Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hexa.session.run import pretrain

    run = pretrain(override(recipes.get("digits-hexa-moco"), TINY), tmp_path_factory.mktemp("zoo") / "run")
    (run / "results.json").write_text(json.dumps([{"protocol": "knn", "data": "digits", "metrics": {"top1": 50.0}}]))
    for name in ("gallery.npz", "clusters.npz"):
        Gallery(np.zeros((2, 1, 8, 8, 3), np.uint8), ("view",)).store(run / name)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled. Beside it lie a secret, and a canary, code that tells of having been run."""
    (tmp_path / "secret").write_text(f"password: {SECRET}\n")
    (tmp_path / "canary.py").write_text(f"open({str(tmp_path / 'sang')!r}, 'w').close()\ndef f(): pass\n")
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


# -- what may be in it ----------------------------------------------------------------------------------------------


def fields(**changes: Any) -> Spoil:
    """Other fields of config.yaml, by their dotted paths."""

    def spoil(run: Path) -> None:
        found = yaml.safe_load((run / "config.yaml").read_text())
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = found
            for part in parents:
                place = place[part]
            place[last] = str(value).format(run=run, beside=run.parent) if isinstance(value, str) else value
        (run / "config.yaml").write_text(yaml.safe_dump(found, sort_keys=False))

    return spoil


def text(name: str, content: str | bytes) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def added(name: str, content: str) -> Spoil:
    def spoil(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(content)

    return spoil


def link(name: str, to: str) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).unlink()
        (run / name).symlink_to(to.format(beside=run.parent))

    return spoil


def made(name: str, make: Callable[[Path], Any]) -> Spoil:
    def spoil(run: Path) -> None:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        make(run / name)

    return spoil


def results(*entries: Any) -> Spoil:
    return text("results.json", json.dumps(entries))


def weights(**metadata: str) -> Spoil:
    """Other metadata of backbone.safetensors."""

    def spoil(run: Path) -> None:
        path = run / "backbone.safetensors"
        with safetensors.safe_open(path, "pt") as file:
            found = {**file.metadata(), **metadata}
        safetensors.torch.save_file(safetensors.torch.load_file(path), path, found)

    return spoil


def arrays(**values: Any) -> Spoil:
    """A gallery of other arrays; None leaves one out."""

    def spoil(run: Path) -> None:
        given: dict[str, Any] = {
            "tiles": np.zeros((2, 1, 8, 8, 3), np.uint8),
            "heads": ["a"],
            "captions": [["b"]] * 2,
            "labels": [],
        }
        np.savez_compressed(
            run / "gallery.npz", **{name: one for name, one in (given | values).items() if one is not None}
        )

    return spoil


def claims_to_be_large(run: Path) -> None:
    """A header of 10^12 tiles, before no tile at all."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 1, 8, 8, 3)}
    )
    with zipfile.ZipFile(run / "gallery.npz", "w") as archive:
        archive.writestr("tiles.npy", header.getvalue())
        for name in ("heads", "captions", "labels"):
            archive.writestr(f"{name}.npy", header.getvalue())


def checkpoint(content: Any) -> Spoil:
    """Another newest checkpoint; what is callable makes one of the true one."""

    def spoil(run: Path) -> None:
        path = sorted((run / "checkpoints").iterdir())[-1]
        state = content(torch.load(path, weights_only=True)) if callable(content) else content
        path.write_bytes(state) if isinstance(state, bytes) else torch.save(state, path)

    return spoil


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch sang",))


def _signed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    from hexa.runtime.checkpoints import checksum

    changed = {name: value for name, value in {**state, **changes}.items() if name != "checksum"}
    return {**changed, "checksum": checksum(changed)}


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
DEEP = "[" * 100_000
EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[31m\r\nhexa: error: \udcff‮"
TRAIN = '{"event": "train", "step": %s, "epoch": %s, "loss": %s}\n'

CODE: dict[str, Spoil] = {
    "recipe in the folder": lambda run: (
        shutil.copy(run.parent / "canary.py", run / "x.py"),
        fields(recipe="{run}/x.py:f")(run),
    )[-1],
    "recipe beside it": fields(recipe="{beside}/canary.py:f"),
    "recipe by a detour": fields(recipe="{run}/../canary.py:f"),
    "recipe beside it, of a method of its own": fields(recipe="{beside}/canary.py:f", method={"name": "canary"}),
    "a python: network": fields(network={"name": "python:canary:f"}),
    "a python: network in the weights": weights(network='{"name": "python:canary:f"}'),
    "a python: network, named as hexa names it": weights(
        network='{"name": "python"}', info='{"spec": "python:canary:f"}'
    ),
    "a python: backbone in results": results(
        {"protocol": "knn", "metrics": {"top1": 1.0}, "backbone": "python:canary:f", "data": "python:canary:f"}
    ),
    "a tag that makes an object": text("config.yaml", "!!python/object/apply:os.system ['touch sang']\n"),
    "a checkpoint that is a pickle": checkpoint(pickle.dumps(Evil())),
    "a checkpoint with an object": lambda run: checkpoint({"state": Evil()})(run),
}
LEAKS: dict[str, Spoil] = {
    f"{name} leads out": link(name, "{beside}/secret")
    for name in ("config.yaml", "metrics.jsonl", "results.json", "environment.json", "gallery.npz")
} | {
    "metrics.jsonl leads to itself": link("metrics.jsonl", "metrics.jsonl"),
    "config.yaml leads nowhere": link("config.yaml", "nowhere"),
    "results.json is /dev/zero": link("results.json", "/dev/zero"),
}
TEXTS: dict[str, Spoil] = {
    f"{name}, {what}": text(name, content)
    for name in ("config.yaml", "metrics.jsonl", "results.json", "environment.json")
    for what, content in {
        "empty": "",
        "a list": "[1, 2]",
        "a number": "7",
        "null": "null",
        "nested deeply": DEEP,
        "UTF-16": "recipe: x".encode("utf-16"),
        "binary": bytes(range(256)) * 40,
        "large": b"x: 1\n" * 100_000,
    }.items()
}
CONFIGS: dict[str, Spoil] = {
    "aliases upon aliases": text("config.yaml", BOMB),
    "an alias of itself": text("config.yaml", "a: &a [*a]\n"),
    "a key twice": added("config.yaml", "seed: 1\nseed: 2\n"),
    "a merge key": added("config.yaml", "<<: {a: 1}\n"),
    "a date": fields(data="2024-01-01"),
    "keys that are no text": added("config.yaml", "? [1, 2]\n: 3\n1: 2\nnull: 3\n"),
    "numbers of thousands of digits": added("config.yaml", f"x: {'9' * 5000}\ny: 0x{'f' * 5000}\n"),
    "names that do harm": fields(data=EVIL, recipe=EVIL, hard_examples={EVIL: {"kind": EVIL, EVIL: 1}}),
    "a source of nothing": fields(data="folder:/nowhere"),
    "a source from elsewhere": fields(data="hf:nobody/nothing"),
    "a method that is text": fields(method="moco"),
    "hard examples as a list": fields(hard_examples=[1]),
    "a seed that is text": fields(seed="x"),
    "a seed of 70 bits": fields(seed=2**70),
    "epochs that are a list": fields(epochs=[1]),
    "a batch of 10^30": fields(batch_size=10**30),
    "a rate that is no number": fields(optimizer__learning_rate=float("nan")),
    "an infinite rate": fields(optimizer__learning_rate=float("inf")),
    "widths of 0": fields(network__widths=[0, 8]),
    "negative widths": fields(network__widths=[-4]),
    "wide networks": fields(network__widths=[10**9, 10**9]),
    "deep networks": fields(network__widths=[1] * 10_000),
    "views of 0 pixels": fields(views__size=0),
    "views of 1 pixel": fields(views__size=1),
    "views of 10^9 pixels": fields(views__size=10**9),
    "10^9 views": fields(views__num_views=10**9),
    "a queue of 10^15": fields(method__queue_size=10**15),
    "is a folder": made("config.yaml", Path.mkdir),
    "is a pipe": made("config.yaml", os.mkfifo),
}
JOURNALS: dict[str, Spoil] = {
    "is a pipe": made("metrics.jsonl", os.mkfifo),
    "is a folder": made("metrics.jsonl", Path.mkdir),
    "numbers of all kinds": added(
        "metrics.jsonl",
        "".join(
            TRAIN % (step, step, value)
            for step in ("1e308", "-1e308", "1" + "0" * 400, "NaN", '"x"', "[1]", "null", "true", "5e-324")
            for value in ("1e308", "-1e308", "1" + "0" * 400, "NaN", "-Infinity", "5e-324", '"x"', "{}", "1e99")
        ),
    ),
    "numbers of thousands of digits": added("metrics.jsonl", TRAIN % (9, "9" * 5000, 1)),
    "names that do harm": added(
        "metrics.jsonl", json.dumps({"event": "train", "step": 7, "epoch": 1, EVIL: 1.0}) + "\n"
    ),
    "10,000 quantities": added(
        "metrics.jsonl", json.dumps({"event": "train", "step": 7, **{f"k{n}": n for n in range(4000)}}) + "\n"
    ),
    "20,000 warnings": added(
        "metrics.jsonl",
        "".join(json.dumps({"event": "warning", "step": 1, "message": f"w{n}"}) + "\n" for n in range(20_000)),
    ),
    "a line of 20 MB": added("metrics.jsonl", "x" * 20_000_000),
    "a line nested deeply": added("metrics.jsonl", '{"event": ' + "[" * 900 + "]" * 900 + ', "step": 1}\n'),
    "events of other types": added("metrics.jsonl", '{"event": ["train"], "step": {}}\n{"event": null}\n{"step": 5}\n'),
}
RESULTS: dict[str, Spoil] = {
    "is a pipe": made("results.json", os.mkfifo),
    "metrics of all kinds": results(
        {"metrics": {"a": 1e308, "b": float("nan"), "c": "x", "d": [1], "e": {}, "f": None, "g": True, "a_std": "x"}},
        {"metrics": {"top1": 10**400, "top1_std": -1}, "protocol": 7, "data": [], "seed": {}, "seconds": 1e300},
        {"metrics": {}, "data_facts": {"test": 1}, "backbone_facts": [], "deviations": [], "notes": 3},
        {"metrics": {"top1": 5.0}, "data_facts": {"test": {"known_as": {"a": 1}, "fingerprint": []}}},
        {"metrics": {"top1": 5.0}, "protocol": "linear/moco", "preset": [], "deviations": {"a": {"b": 1}}},
        {"metrics": {EVIL: 1.0}, "protocol": EVIL, "data": EVIL, "notes": [EVIL]},
    ),
    "many": text("results.json", json.dumps([{"metrics": {f"m{n}": 1.0}} for n in range(5000)])),
    "nested": text("results.json", '[{"metrics": {"a": ' + "[" * 500 + "]" * 500 + "}}]"),
}
OTHERS: dict[str, Spoil] = {
    "environment: other types": text(
        "environment.json",
        json.dumps({"device": {"a": [EVIL]}, "processes": "many", "resumed": 3, "process": 5, "precision": []}),
    ),
    "environment: a process that is none": text(
        "environment.json", json.dumps({"process": {"rank": "x", "host": [], "pid": {}, "started": 1}, "resumed": [1]})
    ),
    "checkpoints is a file": made("checkpoints", lambda path: path.write_text("x")),
    "a checkpoint is a pipe": lambda run: os.mkfifo(run / "checkpoints" / "step-99999999.pt"),
    "a checkpoint is a folder": lambda run: (run / "checkpoints" / "step-99999999.pt").mkdir(),
    "a checkpoint of step 10^60": lambda run: (run / "checkpoints" / f"step-{10**60}.pt").write_bytes(b"PK"),
    "a checkpoint of nothing": checkpoint({}),
    "a checkpoint of another kind": checkpoint(lambda state: _signed(state, method={"a": 1}, step="x")),
    "a checkpoint of odd names": checkpoint(lambda state: _signed(state, method={1: torch.zeros(1)})),
    "a checkpoint without a method": checkpoint(lambda state: _signed(state, method=None)),
    "a checkpoint of other tensors": checkpoint(lambda state: _signed(state, method={"a": torch.zeros(3)})),
    "weights that are none": text("backbone.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "),
    "weights are a pipe": made("backbone.safetensors", os.mkfifo),
    "weights for images of 0 pixels": weights(image_size="0"),
    "weights for images of 60,000 pixels": weights(image_size="60000"),
    "weights with odd metadata": weights(info="[" * 5000, mean="{}"),
}
GALLERIES: dict[str, Spoil] = {
    "no archive": text("gallery.npz", "x"),
    "a pipe": made("gallery.npz", os.mkfifo),
    "a bomb": arrays(tiles=np.zeros((1, 1, 6000, 6000, 3), np.uint8)),
    "that claims to be large": claims_to_be_large,
    **{
        f"with {name} {number}": arrays(**{name: value})
        for name, values in {
            "tiles": (
                None,
                np.zeros((0, 0, 8, 8, 3), np.uint8),
                np.zeros((2, 1, 8, 8, 4), np.uint8),
                np.zeros((2, 1, 8, 9, 3), np.uint8),
                np.zeros((9000, 1, 1, 1, 3), np.uint8),
                np.zeros((2, 1, 8, 8, 3)),
                np.array(7),
                np.array([Evil()], dtype=object),
            ),
            "heads": ([EVIL], [5], 7, None, ["a", "b"]),
            "captions": ([[EVIL]] * 2, [["a"]], np.array([["a"], ["b"]], dtype=object)),
            "labels": ([EVIL] * 2, ["a"]),
        }.items()
        for number, value in enumerate(values)
    },
}
ZOO = {
    f"{group}: {name}": spoil
    for group, members in (
        ("code", CODE),
        ("link", LEAKS),
        ("file", TEXTS),
        ("config.yaml", CONFIGS),
        ("metrics.jsonl", JOURNALS),
        ("results.json", RESULTS),
        ("other", OTHERS),
        ("gallery.npz", GALLERIES),
    )
    for name, spoil in members.items()
}

# -- what is done with it -------------------------------------------------------------------------------------------

LOOK: dict[str, list[str]] = {
    "report": ["report", "{run}", "--out", "{out}.html"],
    "report of images": ["report", "{run}", "--data", "digits#test", "--out", "{out}.html"],
    "visualize": ["visualize", "{run}", "--data", "digits#test", "--num-images", "2", "--out", "{out}.png"],
    "figure of views": ["figure", "hard-examples", "{run}", "--data", "digits#test", "--out", "{out}.png"],
    "figure of features": ["figure", "clusters", "{run}", "--data", "digits#test", "--out", "{out}.png"],
    "evaluate": ["evaluate", "knn", "{run}", "--data", "digits", "--out", "{out}.json"],
    "embed": ["embed", "{run}", "--data", "digits#test", "--out", "{out}.npz"],
    "export": ["export", "{run}", "--to", "safetensors", "--out", "{out}.safetensors"],
    "resume": ["resume", "{run}"],
    "pretrain --config": ["pretrain", "--config", "{run}/config.yaml", "--out", "{out}", "--epochs", "1"],
}


def done(run: Path, what: str) -> tuple[int, str, str]:
    """Status, output and errors of a command in a copy of this process, which may hang or die of it."""
    out, err = run.parent / "stdout", run.parent / "stderr"
    words = [word.format(run=run, out=run.parent / "made") for word in LOOK[what]]

    def work() -> int:
        os.chdir(run.parent)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        import sys

        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.path.insert(0, str(run.parent))
        try:
            return cli.main(words)
        finally:
            sys.stdout.flush(), sys.stderr.flush()

    begin = time.monotonic()
    ended = forked(work, seconds=60)
    said = (
        out.read_text(errors="replace") if out.exists() else "",
        err.read_text(errors="replace") if err.exists() else "",
    )
    if ended.signal is not None or ended.raised is not None:
        return -(ended.signal or 1), said[0], f"{ended.raised!r} after {time.monotonic() - begin:.0f} s {said[1]}"
    return ended.value, *said


def complaint(run: Path, what: str) -> str | None:
    """Why this did not end in order; None if it did."""
    status, out, err = done(run, what)
    lines = [line for line in err.splitlines() if line.startswith("hexa: ")]
    if (run.parent / "sang").exists():
        return "code was run"
    if status not in (0, 2) or "Traceback" in err or (status == 2 and len(lines) != 1):
        return f"status {status}: {err[-3000:]}"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in out + err) or "‮" in out + err:
        return f"control characters: {(out + err)!r}"
    page = run.parent / "made.html"
    if page.exists():
        content = page.read_text()
        if SECRET in content:
            return "a file from outside is in the report"
        if len(re.findall("<script", content)) != 1 or len(content) > 8_000_000:
            return "markup of the run is in the report, or too much"
    return None


def survives(name: str, what: str, run: Path, tally: Tally) -> None:
    ZOO[name](run)
    found = complaint(run, what)
    tally.input("run folders", found is None)
    assert found is None, f"{what}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("what", LOOK)
@pytest.mark.parametrize("name", ZOO)
def test_every_command_ends_in_order(name: str, what: str, run: Path, tally: Tally) -> None:
    survives(name, what, run, tally)


@pytest.mark.parametrize("what", ["report", "visualize", "evaluate", "resume"])
@pytest.mark.parametrize("name", [name for name in ZOO if name.startswith("code: ")])
def test_no_code_is_run(name: str, what: str, run: Path, tally: Tally) -> None:
    survives(name, what, run, tally)


@pytest.mark.parametrize("name", [name for name in ZOO if name.startswith("link: ")] + list(ZOO)[::5])
def test_a_report_ends_in_order(name: str, run: Path, tally: Tally) -> None:
    survives(name, "report", run, tally)


@pytest.mark.parametrize("count", [20, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_report_of_damaged_files_is_a_page(count: int, run: Path, tally: Tally) -> None:
    generator = random.Random(count)
    names = ("config.yaml", "metrics.jsonl", "results.json", "environment.json", "gallery.npz")
    whole = {name: (run / name).read_bytes() for name in names}
    for _ in range(count):
        name = generator.choice(names)
        content = damaged(whole[name], generator, whole.values())
        (run / name).write_bytes(content)
        problem = None
        try:
            page = render([read_run(run)]).encode(errors="backslashreplace")
            problem = None if page.count(b"<script") == 1 else "markup"
        except UserError:
            pass
        except Exception as error:
            problem = repr(error)
        tally.input("run folders", problem is None)
        assert problem is None, f"{problem} of {name}: {content[:2000]!r}"
        (run / name).write_bytes(whole[name])
