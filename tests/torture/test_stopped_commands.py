"""Commands of several parts, stopped at random moments: the same command again ends as one that was never stopped."""

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
from hexa.nn.pretrained import load_backbone, random_backbone, save_backbone
from tests.torture.harness import Ended, Tally
from tests.torture.struck import Strike, after, ask, count_calls, hang_up, kill, struck

pytestmark = pytest.mark.slow

#: Where the moments of a command begin.
BEGIN = {
    "adapt": "hexa.adaptation.command:adapt",
    "reproduce": "hexa_paper.work:Work.costs",
    "evaluate": "hexa.evaluation.measure:measure",
}
HOW = {kill: ("kill -9 of", signal.SIGKILL), ask: ("SIGTERM to", signal.SIGTERM), hang_up: ("SIGHUP to", signal.SIGHUP)}
_TRAINING = ("--training.device=cpu", "--training.precision=fp32", "--training.tensorboard=false")
_RUN = (*_TRAINING, "--training.report=false", "--training.checkpoint_every_steps=1")
_STUDY = ("--seeds", "0", "--epochs", "1", "--rates", "0.03", "--network.widths=[8,16]", "--method.queue_size=256")


def words(command: str, folder: Path) -> list[object]:
    """The command line, all of whose files are in the folder."""
    weights, out = folder / "start.safetensors", folder / "out"
    if command == "adapt":
        length = ("--epochs=2", "--max_steps=6", "--views.size=8", "--batch_size=64", "--time=20m")
        return ["adapt", weights, "--data=digits", f"--out={out}", *_RUN, "--training.num_workers=0", *length]
    if command == "reproduce":
        return [
            "reproduce",
            "learning-curves",
            "--method=moco",
            "--data=digits",
            "--out",
            out,
            *_STUDY,
            *_RUN,
            "--monitor.knn_every=0",
        ]
    return ["evaluate", "linear", weights, "--data=digits", "--epochs=3", "--device=cpu", f"--out={out}/result.json"]


def outcome(command: str, folder: Path) -> Any:
    """What a stop must not change."""
    out = folder / "out"
    if command == "adapt":
        kept = json.loads((out / "adapt.json").read_text())
        hashes = [load_backbone(out / name).content_hash() for name in ("backbone.safetensors", "winner.safetensors")]
        return hashes, kept["table"], kept["verdict"], kept["scores"]
    result = json.loads((out / "result.json").read_text())
    if command == "reproduce":
        return [(row["arm"], row["seeds"], row["scores"]) for row in result["summary"]]
    return result["protocol"], result["metrics"], result["details"]


@pytest.fixture(scope="module", params=list(BEGIN))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, int]:
    """A command, a folder where nothing happened to it, and how many functions it called there."""
    command, folder = request.param, tmp_path_factory.mktemp("whole")
    network = NetworkConfig(name="small-resnet", widths=(8, 16), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4))
    save_backbone(random_backbone(network, 8, seed=5), folder / "start.safetensors")
    end = struck(*words(command, folder), strike=Strike(partial(count_calls, folder / "calls"), BEGIN[command]))
    assert end.code == 0, end
    return command, folder, int((folder / "calls").read_text())


@pytest.mark.parametrize("acts", [(kill, ask, kill), (ask, hang_up, kill)], ids=["one", "another"])
def test_stopped_and_given_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[str, Path, int],
    acts: tuple[Any, ...],
    tally: Tally,
) -> None:
    """… until it ends: three times at any moment from its beginning to its end."""
    command, ended, calls = whole
    monkeypatch.setenv("HEXA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "folder"
    (folder / "out").mkdir(parents=True)
    shutil.copy(ended / "start.safetensors", folder)
    if command == "reproduce":  # costs decide which runs there are
        for name in ("costs.json", "study.json"):
            shutil.copy(ended / "out" / name, folder / "out")
    draw = random.Random(f"{command} {acts[0].__name__}")
    ends = list[tuple[Any, Ended]]()
    for act in acts:
        moment = Strike(partial(after, draw.randrange(1, calls), act), BEGIN[command])
        ends.append((act, struck(*words(command, folder), strike=moment)))
    again = struck(*words(command, folder))
    same = again.code == 0 and outcome(command, folder) == outcome(command, ended)
    for act, end in ends:
        name, number = HOW[act]
        said = end.code == -number or (end.code == 128 + number and "the same command" in end.err)
        if end.code:  # it may have ended before the moment
            tally.fault(f"{name} {command}", same and said and "Traceback" not in end.err)
            assert said, end
            assert "Traceback" not in end.err
    assert again.code == 0, again
    assert outcome(command, folder) == outcome(command, ended)
