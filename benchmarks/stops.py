"""Commands that are stopped at random moments, and given again, end as one that was never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.end_to_end.endings import RECIPE, difference, options
from tests.torture.struck import Strike, send, struck

HOW = {signal.SIGKILL: "kill -9 of", signal.SIGTERM: "SIGTERM to", signal.SIGHUP: "SIGHUP to"}
#: What is run, before which of struck.HOOKS its moments begin, and how many sequences of stops are drawn.
COMMANDS = {
    "pretrain": ("train", 8),
    "adapt": ("adapt", 2),
    "evaluate": ("evaluate", 2),
    "reproduce": ("reproduce", 1),
}
_TRAINING = ("--training.device=cpu", "--training.precision=fp32", "--training.tensorboard=false")
_RUN = (*_TRAINING, "--training.report=false", "--training.checkpoint_every_steps=1")
_SHORT = (
    "--epochs=2",
    "--max_steps=6",
    "--views.size=8",
    "--batch_size=64",
    "--time=20m",
    "--training.num_workers=0",
)
_STUDY = (
    "--seeds=0",
    "--epochs=1",
    "--rates=0.03",
    "--network.widths=[8,16]",
    "--method.queue_size=256",
)


def words(command: str, folder: Path) -> list[object]:
    """The command line, all of whose files are in the folder."""
    weights, out = folder / "start.safetensors", folder / "out"
    if command == "pretrain":
        begun = (out / "config.yaml").exists()
        return (
            ["resume", out]
            if begun
            else ["pretrain", RECIPE, "--out", out, *options(monitor__knn_every=1)]
        )
    if command == "adapt":
        return ["adapt", weights, "--data=digits", f"--out={out}", *_RUN, *_SHORT]
    if command == "reproduce":
        study = ["reproduce", "learning-curves", "--method=moco", "--data=digits", "--out", out]
        return [*study, *_STUDY, *_RUN, "--monitor.knn_every=0"]
    return [
        "evaluate",
        "linear",
        weights,
        "--data=digits",
        "--epochs=3",
        "--device=cpu",
        f"--out={out}/result.json",
    ]


def outcome(command: str, folder: Path, whole: Path) -> Any:
    """What a stop must not change."""
    out = folder / "out"
    if command == "pretrain":
        return difference(out, whole / "out")
    if command == "adapt":
        kept = json.loads((out / "adapt.json").read_text())
        hashes = [
            load_backbone(out / name).content_hash()
            for name in ("backbone.safetensors", "winner.safetensors")
        ]
        return hashes, kept["table"], kept["verdict"], kept["comparison"]["backbones"]
    result = json.loads((out / "result.json").read_text())
    if command == "reproduce":
        return [(row["arm"], row["seeds"], row["scores"]) for row in result["summary"]]
    return result["protocol"], result["metrics"], result["details"]


class _Countdown:
    """A profiler that acts at a function call, counted from its beginning."""

    def __init__(self, calls: int, act: Callable[[], object]) -> None:
        self.calls, self.act = calls, act

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls -= 1
            if not self.calls:
                sys.setprofile(None)
                self.act()


def after(calls: int, act: Callable[[], object]) -> None:
    """`act` at this function call from now on."""
    sys.setprofile(_Countdown(calls, act))


def count_calls(path: Path) -> None:
    """Write down how many functions this process calls from now until its end."""
    counter = _Countdown(-1, lambda: None)
    sys.setprofile(counter)
    Finalize(None, lambda: path.write_text(str(-1 - counter.calls)), exitpriority=0)


def stops(count: int, random: Random, home: Path) -> Iterator[tuple[str, object]]:
    """What was stopped and how, and what is wrong with what came of it. count: of sequences of three stops."""
    shares = sum(share for _, share in COMMANDS.values())
    for command, (hook, share) in COMMANDS.items():
        ended = home / command
        ended.mkdir()
        network = NetworkConfig(
            name="small-resnet", widths=(8, 16), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)
        )
        save_backbone(random_backbone(network, 8, seed=5), ended / "start.safetensors")
        end = struck(
            *words(command, ended), strike=Strike(partial(count_calls, ended / "calls"), hook)
        )
        assert end.code == 0, end
        calls = int((ended / "calls").read_text())
        for _ in range(max(1, count * share // shares)):
            with tempfile.TemporaryDirectory(dir=home) as place:
                yield from _stopped_thrice(command, ended, calls, random, Path(place))


def _stopped_thrice(
    command: str, ended: Path, calls: int, random: Random, place: Path
) -> Iterator[tuple[str, object]]:
    os.environ["HEXA_CACHE"] = str(place / "cache")
    folder = place / "folder"
    (folder / "out").mkdir(parents=True)
    shutil.copy(ended / "start.safetensors", folder)
    numbers = random.choices(list(HOW), k=3)
    moments = [
        Strike(partial(after, random.randrange(1, calls), partial(send, one)), COMMANDS[command][0])
        for one in numbers
    ]
    ends = [struck(*words(command, folder), strike=moment) for moment in moments]
    again = struck(*words(command, folder))
    same = again.code == 0 and outcome(command, folder, ended) == outcome(command, ended, ended)
    for one, end in zip(numbers, ends, strict=True):
        told = end.code == 128 + one and (
            "the same command" in end.err or "continue with" in end.err
        )
        if (
            end.code
        ):  # it may have ended before the moment; at its end a signal is what it always is
            fine = same and (end.code == -one or told) and "Traceback" not in end.err
            yield f"{HOW[one]} {command}", None if fine else (same, end, again)
