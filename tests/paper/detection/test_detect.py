"""The protocol from the outside, on tiny photographs: it learns, resumes bit for bit, and says what is wrong."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.evaluation import evaluate
from hexa.evaluation.protocol import Task
from hexa.nn.branch_norm import convert
from hexa.runtime.console import Progress
from hexa.runtime.signals import Interrupted
from hexa.weights.pretrained import load_backbone
from hexa_paper.detection import scoring
from hexa_paper.detection.training import Training
from tests.evaluation.given import QUIET

CLASSES = ("cat", "dog")
TINY: dict[str, Any] = QUIET | {
    "num_workers": 0,
    "iterations": 6,
    "batch_size": 2,
    "learning_rate": 0.01,
    "shorter_side": [48, 64],
    "test_shorter_side": 64,
    "longest_side": 100,
    "anchor_sizes": [12, 24, 48],
    "warmup_iterations": 2,
    "regions": 32,
    "test_proposals": 30,
    "save_every": 2,
    "precise_bn": 1,
}
#: A quarter of the pixels, so that little time goes into suppressing overlapping proposals.
SHORT = TINY | {"iterations": 4, "precise_bn": 5, "shorter_side": [24, 32], "test_shorter_side": 32}
SHORT |= {"longest_side": 50, "anchor_sizes": [8, 16, 24]}
NETWORK = "random:small-resnet-16-16-32-32"
#: Where `measured` keeps what is unfinished.
STATE = "found.json.unfinished-*"


def squares(folder: Path, count: int = 8) -> str:
    """Make photographs of 96 × 64 with one light (cat) or dark (dog) square on grey, and VOC's
    other files next to them."""
    root = folder / "VOCdevkit" / "VOC2007"
    for name in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (root / name).mkdir(parents=True)
    generator = np.random.default_rng(7 + count)
    for part in ("trainval", "test"):
        rows: dict[str, list[str]] = {name: [] for name in CLASSES}
        for number in range(count):
            name = f"{part}{number:03d}"
            kind = int(generator.integers(2))
            pixels = generator.integers(110, 140, (64, 96, 3), dtype=np.uint8)
            side = int(generator.integers(20, 44))
            x = int(generator.integers(0, 96 - side))
            y = int(generator.integers(0, 64 - side))
            pixels[y : y + side, x : x + side] = (235, 20)[kind]
            Image.fromarray(pixels).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
            box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + side}</xmax><ymax>{y + side}</ymax>"
            size = "<size><width>96</width><height>64</height></size>"
            thing = f"<object><name>{CLASSES[kind]}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
            (root / "Annotations" / f"{name}.xml").write_text(
                f"<annotation>{size}{thing}</annotation>"
            )
            for place, label in enumerate(CLASSES):
                rows[label].append(f"{name} {1 if place == kind else -1}")
        for label, lines in rows.items():
            (root / "ImageSets" / "Main" / f"{label}_{part}.txt").write_text("\n".join(lines))
    return f"voc:{folder / 'VOCdevkit'}"


def measured(folder: Path, data: str, **options: Any) -> dict[str, Any]:
    """An evaluation that can be continued, because its result goes to a file."""
    return evaluate("detect", NETWORK, data, out=folder / "found.json", **options)


def weights_of(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Filled with the detector's state at the end of every training to come."""
    seen: list[dict[str, torch.Tensor]] = []
    find = scoring.find

    def watched(task: Task, detector: Any, *rest: Any) -> Any:
        seen.append({name: value.clone() for name, value in detector.state_dict().items()})
        return find(task, detector, *rest)

    monkeypatch.setattr("hexa_paper.protocols.detect.find", watched)
    return seen


@dataclass(frozen=True)
class Whole:
    """The result of an uninterrupted evaluation by SHORT on `data`, with one unreadable test
    image."""

    data: str
    result: dict[str, Any]
    weights: dict[str, torch.Tensor]

    def is_that_of(
        self, again: dict[str, Any], weights: dict[str, torch.Tensor] | None = None
    ) -> None:
        assert (again["metrics"], again["details"]) == (
            self.result["metrics"],
            self.result["details"],
        )
        assert weights is None or all(
            torch.equal(value, weights[name]) for name, value in self.weights.items()
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    data = squares(folder)
    (folder / "VOCdevkit" / "VOC2007" / "JPEGImages" / "test001.jpg").write_bytes(b"broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEXA_CACHE", str(folder / "cache"))
        seen = weights_of(patch)
        result = measured(folder, data, **SHORT)
    assert any("1 of 8 images" in note for note in result["notes"])
    assert not list(folder.glob(STATE)), "nothing is left once there is a result"
    return Whole(data, result, seen[0])


@pytest.mark.slow
def test_detector_learning(tmp_path: Path) -> None:
    """It learns to find squares."""
    data = squares(tmp_path, count=24)
    options = {
        **TINY,
        "batch_size": 4,
        "precise_bn": 5,
        "learning_rate": 0.02,
        "clip_norm": 5.0,
        "save_every": 500,
    }
    before = evaluate("detect", NETWORK, data, **{**options, "iterations": 1})
    after = evaluate("detect", NETWORK, data, **{**options, "iterations": 150})
    assert before["metrics"]["AP50"] < 20
    assert after["metrics"]["AP50"] > 60
    assert after["metrics"]["AP50"] >= after["metrics"]["AP"] > 0


def ends(label: str, at: int, how: Any) -> Progress:
    """Progress that ends an evaluation there, by a signal or an exception. label: or a part of it."""

    def end(what: str, done: int, total: int) -> None:
        if label in what and done == at:
            if not isinstance(how, signal.Signals):
                raise how
            signal.raise_signal(how)

    return end


def measured_again(out: Path, whole: Whole) -> tuple[Any, list[tuple[str, int]]]:
    """Return the result of a repeated measurement, and the progress that it reported."""
    done: list[tuple[str, int]] = []
    again = measured(
        out,
        whole.data,
        progress=lambda what, n, total: done.append((what, n)),
        **SHORT,
    )
    return again, done


@pytest.mark.usefixtures("hears_hang_ups")
@pytest.mark.parametrize(
    ("label", "at", "how", "kept", "first"),
    [
        ("training the detector", 2, signal.SIGHUP, 3, 4),
        ("statistics of batch-norms", 3, signal.SIGTERM, 8, 5),
        ("detecting", 3, signal.SIGINT, 9, 1),
        ("detecting", 3, KeyboardInterrupt, 9, 1),
    ],
)
def test_detection_resume_bits(
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    label: str,
    at: int,
    how: Any,
    kept: int,
    first: int,
) -> None:
    """A signal waits for the batch or image that follows it; scoring begins again."""
    seen = weights_of(monkeypatch)
    with pytest.raises(Interrupted) as caught:
        measured(tmp_path, whole.data, progress=ends(label, at, how), **SHORT)
    assert str(caught.value).endswith(": the same command")
    if isinstance(how, signal.Signals):
        assert caught.value.exit_code == 128 + how
    assert max(int(path.stem[5:]) for path in tmp_path.glob(STATE + "/step-*.pt")) == kept
    again, done = measured_again(tmp_path, whole)
    assert done[0] == (label, first)
    assert f"continued from iteration {kept} of an earlier attempt" in again["notes"]
    whole.is_that_of(again, seen[-1])
    assert not list(tmp_path.glob(STATE))


def test_detection_state_of_another_seed(whole: Whole, tmp_path: Path) -> None:
    """A state of another seed is not continued."""
    end = ends("training the detector", 4, MemoryError)
    with pytest.raises(MemoryError):
        measured(tmp_path, whole.data, progress=end, **SHORT, seed=1)
    again, done = measured_again(tmp_path, whole)
    assert done[0] == ("training the detector", 1)
    whole.is_that_of(again)


def test_precise_batch_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precise batch-norm against the statistics of each batch, read from the first one's input."""
    kept: list[Training] = []
    inputs: list[torch.Tensor] = []
    recalibrate = Training._recalibrate

    def watched(self: Training, item: Any) -> None:
        kept.append(self)
        first = next(m for m in self.detector.modules() if isinstance(m, torch.nn.BatchNorm2d))
        handle = first.register_forward_pre_hook(
            lambda _, given: inputs.append(given[0].detach().clone())
        )
        recalibrate(self, item)
        handle.remove()

    monkeypatch.setattr(Training, "_recalibrate", watched)
    evaluate("detect", NETWORK, squares(tmp_path), **{**SHORT, "iterations": 2, "precise_bn": 3})
    first = next(m for m in kept[0].detector.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert len(kept) == 3
    assert len(inputs) == 3
    assert first.momentum == 0.1
    torch.testing.assert_close(
        first.running_mean, torch.stack([x.mean((0, 2, 3)) for x in inputs]).mean(0)
    )
    torch.testing.assert_close(
        first.running_var, torch.stack([x.var((0, 2, 3)) for x in inputs]).mean(0)
    )


def test_main_branch_maps(whole: Whole) -> None:
    """A backbone in training form, with a second set: its maps are those of the main one."""
    branched = load_backbone(NETWORK)
    convert(branched.network)
    for name, value in branched.network.named_buffers():
        if ".aux." in name and value.dtype.is_floating_point:
            value.fill_(9.0)
    found = (
        evaluate("detect", branched, whole.data, **SHORT)["details"]["loss"],
        whole.result["details"]["loss"],
    )
    losses = [[point["loss"] for point in curve] for curve in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
