"""Commands that are stopped at random moments, and given again, end as one that was never stopped."""

from __future__ import annotations

import json
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.end_to_end.endings import RECIPE, difference, options
from tests.torture.harness import Tally
from tests.torture.struck import Strike, after, count_calls, send, struck

pytestmark = pytest.mark.slow

HOW = {signal.SIGKILL: "kill -9 of", signal.SIGTERM: "SIGTERM to", signal.SIGHUP: "SIGHUP to"}
#: What is run, before which of struck.HOOKS its moments begin, and how many sequences of stops are drawn.
COMMANDS = {"pretrain": ("train", 8), "adapt": ("adapt", 2), "evaluate": ("evaluate", 2), "reproduce": ("reproduce", 1)}
_TRAINING = ("--training.device=cpu", "--training.precision=fp32", "--training.tensorboard=false")
_RUN = (*_TRAINING, "--training.report=false", "--training.checkpoint_every_steps=1")
_SHORT = ("--epochs=2", "--max_steps=6", "--views.size=8", "--batch_size=64", "--time=20m", "--training.num_workers=0")
_STUDY = ("--seeds=0", "--epochs=1", "--rates=0.03", "--network.widths=[8,16]", "--method.queue_size=256")


def words(command: str, folder: Path) -> list[object]:
    """The command line, all of whose files are in the folder."""
    weights, out = folder / "start.safetensors", folder / "out"
    if command == "pretrain":
        begun = (out / "config.yaml").exists()
        return ["resume", out] if begun else ["pretrain", RECIPE, "--out", out, *options(monitor__knn_every=1)]
    if command == "adapt":
        return ["adapt", weights, "--data=digits", f"--out={out}", *_RUN, *_SHORT]
    if command == "reproduce":
        study = ["reproduce", "learning-curves", "--method=moco", "--data=digits", "--out", out]
        return [*study, *_STUDY, *_RUN, "--monitor.knn_every=0"]
    return ["evaluate", "linear", weights, "--data=digits", "--epochs=3", "--device=cpu", f"--out={out}/result.json"]


def outcome(command: str, folder: Path, whole: Path) -> Any:
    """What a stop must not change."""
    out = folder / "out"
    if command == "pretrain":
        return difference(out, whole / "out")
    if command == "adapt":
        kept = json.loads((out / "adapt.json").read_text())
        hashes = [load_backbone(out / name).content_hash() for name in ("backbone.safetensors", "winner.safetensors")]
        return hashes, kept["table"], kept["verdict"], kept["scores"]
    result = json.loads((out / "result.json").read_text())
    if command == "reproduce":
        return [(row["arm"], row["seeds"], row["scores"]) for row in result["summary"]]
    return result["protocol"], result["metrics"], result["details"]


@pytest.fixture(scope="module", params=list(COMMANDS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, int]:
    """A command, a folder where nothing happened to it, and how many functions it called there."""
    command, folder = request.param, tmp_path_factory.mktemp("whole")
    network = NetworkConfig(name="small-resnet", widths=(8, 16), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4))
    save_backbone(random_backbone(network, 8, seed=5), folder / "start.safetensors")
    counted = Strike(partial(count_calls, folder / "calls"), COMMANDS[command][0])
    end = struck(*words(command, folder), strike=counted)
    assert end.code == 0, end
    return command, folder, int((folder / "calls").read_text())


@pytest.mark.parametrize("number", range(max(count for _, count in COMMANDS.values())))
def test_stopped_at_any_moment_and_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[str, Path, int], number: int, tally: Tally
) -> None:
    """… until it ends, three times."""
    command, ended, calls = whole
    hook, count = COMMANDS[command]
    if number >= count:
        pytest.skip("enough of this command")
    monkeypatch.setenv("HEXA_CACHE", str(tmp_path / "cache"))
    folder, draw = tmp_path / "folder", random.Random(f"{command} {number}")
    (folder / "out").mkdir(parents=True)
    shutil.copy(ended / "start.safetensors", folder)
    if command == "reproduce":  # costs decide which runs there are
        for name in ("costs.json", "study.json"):
            shutil.copy(ended / "out" / name, folder / "out")
    numbers = draw.choices(list(HOW), k=3)
    moments = [Strike(partial(after, draw.randrange(1, calls), partial(send, one)), hook) for one in numbers]
    ends = [struck(*words(command, folder), strike=moment) for moment in moments]
    again = struck(*words(command, folder))
    assert again.code == 0, again
    same = outcome(command, folder, ended) == outcome(command, ended, ended)
    for one, end in zip(numbers, ends, strict=True):
        told = end.code == 128 + one and ("the same command" in end.err or "go on with" in end.err)
        if end.code:  # it may have ended before the moment; at its end a signal is what it always is
            fine = same and (end.code == -one or told) and "Traceback" not in end.err
            tally.fault(f"{HOW[one]} {command}", fine, (same, end))
