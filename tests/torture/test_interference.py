"""Interference by users, other programs and the system while a command runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hexa.cli import main
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.adaptation.conftest import be_quick
from tests.adaptation.test_adapt import QUICK
from tests.torture.harness import Ended, Tally, forked
from tests.torture.struck import Strike, owner_of, send

Act = Callable[[], object]
Harmed = Callable[..., Ended]
Expected = Callable[[str], tuple[str, object]]
NETWORK = NetworkConfig(
    name="small-resnet", widths=(4, 8), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)
)
#: Nothing depends on the clock or on the speed of the machine, and images are read in each pass.
FIELDS = f"{QUICK} --training.report=false --training.resident_limit_bytes=0"
FIELDS += (
    " --training.checkpoint_every_steps=2 --time=20m --epochs=3 --views.size=8 --batch_size=16"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, 64 JPEGs without classes, and 30 of three classes, by which results are scored."""
    root = tmp_path_factory.mktemp("original")
    generator = np.random.default_rng(0)
    for number in range(94):
        label = number % 3
        pixels = generator.integers(0, 120, (12, 12, 3))
        pixels[..., label] += 100
        folder = root / "labelled" / f"c{label}" if number >= 64 else root / "images"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.jpg")
    save_backbone(random_backbone(NETWORK, 8, seed=5), root / "start.safetensors")
    return root


@pytest.fixture
def here(original: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(original, tmp_path / "here"))


def words(command: str, here: Path, *more: object) -> list[object]:
    data = [f"--data={here / 'images'}", f"--labelled={here / 'labelled'}"]
    return [
        command,
        here / "start.safetensors",
        *data,
        *FIELDS.split(),
        f"--out={here / 'run'}",
        *more,
    ]


def record(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "adapt.json").read_text()))


def result(run: Path) -> tuple[str, object]:
    """The weights after training, and the scores."""
    return load_backbone(run / "backbone.safetensors").content_hash(), record(run)["table"]


def twice() -> None:
    # a shell that starts a command in the background lets it ignore this signal
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    send(signal.SIGINT)
    send(signal.SIGINT)


@pytest.fixture
def harmed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harmed:
    """Runs a command in this process; before call number `call` of a function of HOOKS, `act` happens."""
    be_quick(monkeypatch)

    def run(words: list[object], act: Act | None = None, at: str = "step", call: int = 1) -> Ended:
        with monkeypatch.context() as patch:
            if act is not None:
                owner, last = owner_of(at)
                patch.setattr(owner, last, getattr(owner, last))  # to be restored
                Strike(act, at, call).arm()
            code = main([str(word) for word in words])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def known() -> dict[str, tuple[str, object]]:
    """Results of commands that nothing happened to."""
    return {}


@pytest.fixture
def expected(
    original: Path,
    tmp_path: Path,
    known: dict[str, tuple[str, object]],
    harmed: Harmed,
) -> Expected:
    """The result of a command that nothing happens to."""

    def of(command: str) -> tuple[str, object]:
        if command not in known:
            place = Path(shutil.copytree(original, tmp_path / "whole"))
            assert harmed(words(command, place)).code == 0
            known[command] = result(place / "run")
        return known[command]

    return of


#: What is moved away, and before which call: of a step, or of the comparison after training.
MOVES = (("images", "step", 4), ("run", "conclude", 1))


@pytest.mark.parametrize(("name", "at", "call"), MOVES)
def test_moved_files_during_run(
    name: str,
    at: str,
    call: int,
    here: Path,
    expected: Expected,
    harmed: Harmed,
    tally: Tally,
) -> None:
    """The same command then ends with the same weights and scores; nothing is made in the place of a run folder."""
    asked = words("adapt", here)
    end = harmed(asked, partial(os.rename, here / name, here / "away"), at, call)
    left = (here / name).exists()
    if not left:
        os.rename(here / "away", here / name)
    again = harmed(asked)
    told = str(here / name) in end.err and ("same command" in end.err or "its new path" in end.err)
    same = again.code == 0 and result(here / "run") == expected("adapt")
    fine = end.complaint is None and told and not left and same
    tally.fault("files moved during a run", fine, (end, again))


def more_images(here: Path) -> None:
    shutil.copy(here / "images" / "00.jpg", here / "images" / "another.jpg")


def fewer_labels(here: Path) -> None:
    shutil.rmtree(here / "labelled" / "c2")


@pytest.mark.parametrize(
    ("name", "change"), [("--data", more_images), ("--labelled", fewer_labels)]
)
def test_images_changed_after_plan(
    name: str, change: Callable[[Path], None], here: Path, harmed: Harmed, tally: Tally
) -> None:
    """A verdict on other images than planned says so."""
    end = harmed(words("adapt", here), partial(change, here), "step", 4)
    noted = [note for note in record(here / "run")["notes"] if "changed after the plan" in note]
    said = len(noted) == 1 and f"images of {name} changed" in noted[0]
    tally.fault("images changed during a run", end.code == 0 and said, (end, noted))


def test_concurrent_plan_and_training(here: Path, harmed: Harmed, tally: Tally) -> None:
    """It has found an empty folder, and finds a finished run when it wants to write."""
    asked = [str(word) for word in words("adapt", here)]
    left = list[str]()

    def other() -> None:
        assert main(asked) == 0
        left.append((here / "run" / "adapt.json").read_text())

    end = harmed([*asked, "--epochs=2"], other, "plan")
    kept = left == [(here / "run" / "adapt.json").read_text()]
    tally.fault("two commands on one folder", end.complaint is None and kept, end)


@pytest.mark.parametrize(
    ("command", "at", "call"),
    [("adapt", "conclude", 1), ("harden", "step", 4)],
)
def test_double_ctrl_c(
    command: str,
    at: str,
    call: int,
    here: Path,
    expected: Expected,
    harmed: Harmed,
    tally: Tally,
) -> None:
    end = harmed(words(command, here), twice, at, call)
    again = harmed(words(command, here))
    same = again.code == 0 and result(here / "run") == expected(command)
    tally.fault(
        "Ctrl-C twice", end.code == 130 and "Traceback" not in end.err and same, (end, again)
    )


#: What another user may not read or write, the command, its exit status and what it says.
FORBIDDEN = (
    ("", "adapt", 2, "cannot be written"),
    ("images/03.jpg", "embed", 0, "03.jpg: Permission denied"),
    ("start.safetensors", "embed", 2, "Permission denied"),
)


@pytest.mark.parametrize(("name", "command", "code", "said"), FORBIDDEN)
def test_forbidden_files(
    name: str, command: str, code: int, said: str, original: Path, harmed: Harmed, tally: Tally
) -> None:
    root = Path(tempfile.mkdtemp())  # tmp_path is shut to others as a whole
    try:
        place = Path(shutil.copytree(original, root / "here"))
        for path in (root, place, *place.rglob("*")):
            path.chmod(0o755)
        (root / "out").mkdir()
        (root / "out").chmod(0o777 if name else 0o555)
        if name:
            (place / name).chmod(0)
        more = words("adapt", place)[2:] if command == "adapt" else [f"--data={place / 'images'}"]
        asked = [command, place / "start.safetensors", *more, f"--out={root / 'out' / 'x.npz'}"]

        def work() -> Ended:
            if os.geteuid() == 0:  # who may do everything
                os.setegid(65534)
                os.seteuid(65534)
            return harmed(asked)

        ended = forked(work, seconds=600)
        end = ended.value
        fine = end is not None and end.code == code and said in end.out + end.err
        tally.input("files of others", fine and "Traceback" not in end.err, ended)
    finally:
        for path in (root / "out", place / "images"):
            path.chmod(0o755)
        shutil.rmtree(root)
