"""The protocol from the outside, on tiny photographs: it learns, resumes bit for bit, and says what is wrong."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa import published
from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.evaluation.detection import scoring
from hexa.evaluation.detection.training import Training
from hexa.evaluation.protocol import Task
from hexa.evaluation.protocols.detect import PROTOCOL
from hexa.nn.branch_norm import convert
from hexa.runtime.signals import Interrupted
from hexa.weights.pretrained import load_backbone, save_backbone

CLASSES = ("cat", "dog")
TINY: dict[str, Any] = {
    "device": "cpu",
    "precision": "fp32",
    "num_workers": 0,
    "iterations": 6,
    "batch_size": 2,
    "warmup_iterations": 2,
    "shorter_side": [48, 64],
    "test_shorter_side": 64,
    "longest_side": 100,
    "anchor_sizes": [12, 24, 48],
    "regions": 32,
    "test_proposals": 30,
    "save_every": 2,
    "learning_rate": 0.01,
    "precise_bn": 1,
}
NETWORK = "random:small-resnet-16-16-32-32"
#: Where `measured` keeps what is unfinished.
STATE = "found.json.unfinished-*"


def squares(folder: Path, year: str = "VOC2007", lists: tuple[str, ...] = ("trainval", "test"), count: int = 8) -> str:
    """Photographs of 96 × 64 with one light (cat) or dark (dog) square on grey, and all that VOC has beside them."""
    root = folder / "VOCdevkit" / year
    for name in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (root / name).mkdir(parents=True)
    generator = np.random.default_rng(len(year) + count)
    for part in lists:
        rows: dict[str, list[str]] = {name: [] for name in CLASSES}
        for number in range(count):
            name, kind = f"{part}{number:03d}", int(generator.integers(2))
            pixels = generator.integers(110, 140, (64, 96, 3), dtype=np.uint8)
            side = int(generator.integers(20, 44))
            x, y = int(generator.integers(0, 96 - side)), int(generator.integers(0, 64 - side))
            pixels[y : y + side, x : x + side] = (235, 20)[kind]
            Image.fromarray(pixels).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
            box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + side}</xmax><ymax>{y + side}</ymax>"
            size = "<size><width>96</width><height>64</height></size>"
            thing = f"<object><name>{CLASSES[kind]}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
            (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{thing}</annotation>")
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

    monkeypatch.setattr("hexa.evaluation.protocols.detect.find", watched)
    return seen


@pytest.mark.slow
def test_it_learns_to_find_squares(tmp_path: Path) -> None:
    data = squares(tmp_path, count=24)
    options = {**TINY, "batch_size": 4, "precise_bn": 5, "learning_rate": 0.02, "clip_norm": 5.0, "save_every": 500}
    before = evaluate("detect", NETWORK, data, **{**options, "iterations": 1})
    after = evaluate("detect", NETWORK, data, **{**options, "iterations": 150})
    assert before["metrics"]["AP50"] < 20
    assert after["metrics"]["AP50"] > 60
    assert after["metrics"]["AP50"] >= after["metrics"]["AP"] > 0


@pytest.mark.usefixtures("hears_hang_ups")
@pytest.mark.parametrize(("preset", "number"), [("moco", signal.SIGHUP), ("appendix", signal.SIGTERM)])
def test_a_stopped_one_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, number: int
) -> None:
    data, options = squares(tmp_path), {**TINY, "preset": preset, "precise_bn": 2 * (preset == "moco")}
    seen = weights_of(monkeypatch)
    whole = measured(tmp_path, data, **options)

    def stop(label: str, done: int, total: int) -> None:
        if label == "training the detector" and done == 2:
            signal.raise_signal(number)

    with pytest.raises(Interrupted, match="at step 3, which is saved; go on with: the same command") as caught:
        measured(tmp_path, data, progress=stop, **options)
    assert caught.value.exit_code == 128 + number
    assert len(list(tmp_path.glob(STATE + "/step-*.pt"))) == 2
    again = measured(tmp_path, data, **options)
    assert len(seen) == 2
    assert all(torch.equal(value, seen[1][name]) for name, value in seen[0].items())
    assert again["metrics"] == whole["metrics"]
    assert again["details"] == whole["details"]
    assert "continued from iteration 3 of an earlier attempt" in again["notes"]
    assert not list(tmp_path.glob(STATE)), "nothing is left once there is a result"


@pytest.mark.parametrize(
    ("label", "stop", "raised", "next_done"),
    [
        ("statistics of batch-norms", signal.SIGTERM, Interrupted, 5),
        pytest.param("statistics of batch-norms", KeyboardInterrupt, KeyboardInterrupt, 3, marks=pytest.mark.slow),
        ("detecting", signal.SIGINT, Interrupted, 5),
        ("detecting", KeyboardInterrupt, Interrupted, 3),
        pytest.param("detecting", MemoryError, MemoryError, 3, marks=pytest.mark.slow),
    ],
)
def test_after_learning_too_it_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, stop: Any, raised: Any, next_done: int
) -> None:
    """Asked to stop after three batches or images, it finishes and keeps the fourth; else it goes on from a state."""
    monkeypatch.setattr(scoring, "_CHUNK", 2)
    data, options = squares(tmp_path), {**TINY, "precise_bn": 6}
    (tmp_path / "VOCdevkit" / "VOC2007" / "JPEGImages" / "test001.jpg").write_bytes(b"broken")
    seen = weights_of(monkeypatch)
    whole = measured(tmp_path, data, **options)

    def end(what: str, done: int, total: int) -> None:
        if (what, done) == (label, 3):
            if isinstance(stop, signal.Signals):
                signal.raise_signal(stop)
            else:
                raise stop

    with pytest.raises(raised) as caught:
        measured(tmp_path, data, progress=end, **options)
    assert (raised is not Interrupted) or str(caught.value).endswith("which is saved; go on with: the same command")
    done: list[tuple[str, int]] = []
    again = measured(tmp_path, data, progress=lambda what, n, total: done.append((what, n)), **options)
    assert done[0] == (label, next_done)
    assert (again["metrics"], again["details"]) == (whole["metrics"], whole["details"])
    assert any("1 of 8 images" in note for note in again["notes"])
    assert all(torch.equal(value, seen[-1][name]) for name, value in seen[0].items())
    assert not list(tmp_path.glob(STATE))


def test_other_images_or_a_damaged_part_are_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scoring, "_CHUNK", 2)
    data = squares(tmp_path)
    whole = measured(tmp_path, data, **TINY)
    done: list[tuple[str, int]] = []

    def watch(what: str, number: int, total: int) -> None:
        done.append((what, number))
        if (what, number) == ("detecting", 7):
            raise MemoryError

    with pytest.raises(MemoryError):
        measured(tmp_path, data, progress=watch, **TINY)
    with pytest.raises(MemoryError):
        measured(tmp_path, data, progress=watch, **{**TINY, "test_shorter_side": 48})
    parts = sorted(tmp_path.glob(STATE + "/seen-*/step-*6.pt"))
    assert len(parts) == 2
    for part in parts:
        part.write_bytes(part.read_bytes()[:-100])
    done.clear()
    again = measured(tmp_path, data, progress=lambda what, n, total: done.append((what, n)), **TINY)
    assert done[0] == ("detecting", 5)
    assert "step-" in capsys.readouterr().err
    assert (again["metrics"], again["details"]) == (whole["metrics"], whole["details"])


def test_a_state_that_cannot_be_written_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = squares(tmp_path)
    whole = measured(tmp_path, data, **TINY)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "step-00000002.pt")

    monkeypatch.setattr("hexa.runtime.checkpoints.save", full)
    assert measured(tmp_path, data, **TINY)["metrics"] == whole["metrics"]
    assert capsys.readouterr().err.count("not saved") == 1

    def stop(what: str, done: int, total: int) -> None:
        if (what, done) == ("training the detector", 3):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        measured(tmp_path, data, progress=stop, **TINY)
    assert "saved" not in str(caught.value)


def test_killed_at_any_time_it_goes_on_from_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = squares(tmp_path), weights_of(monkeypatch)
    measured(tmp_path, data, **TINY)

    def killed(label: str, done: int, total: int) -> None:
        if done == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        measured(tmp_path, data, progress=killed, **TINY)
    states = sorted(tmp_path.glob(STATE + "/step-*.pt"))
    assert [path.name for path in states] == ["step-00000002.pt", "step-00000004.pt"]
    states[-1].write_bytes(b"damaged")
    again = measured(tmp_path, data, **TINY)
    assert "continued from iteration 2 of an earlier attempt" in again["notes"]
    assert all(torch.equal(value, seen[1][name]) for name, value in seen[0].items())
    other = evaluate("detect", NETWORK, data, seed=1, **TINY)
    assert not any("went on" in note for note in other["notes"])
    assert not all(torch.equal(value, seen[2][name]) for name, value in seen[0].items())


def test_its_state_stands_beside_the_result_and_files_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside --out, or in the run; nowhere else, and only its own checkpoints are removed."""
    data, cache = squares(tmp_path), tmp_path / "runs"
    monkeypatch.setenv("HEXA_CACHE", str(cache))
    for other in ("detect/exp/best.pt", "features/mine.npz"):
        (cache / other).parent.mkdir(parents=True)
        (cache / other).write_bytes(bytes(2000))
    before = sorted(cache.rglob("*"))

    def killed(label: str, done: int, total: int) -> None:
        if (label, done) == ("detecting", 3):
            raise MemoryError

    with pytest.raises(MemoryError):
        evaluate("detect", NETWORK, data, progress=killed, **TINY)
    assert "--out FILE.json" in capsys.readouterr().err
    assert not list(tmp_path.glob(STATE))
    with pytest.raises(MemoryError):
        measured(tmp_path, data, progress=killed, **TINY)
    (state,) = tmp_path.glob(STATE)
    (state / "notes.txt").write_text("mine")
    measured(tmp_path, data, **TINY)
    assert [path.name for path in state.rglob("*")] == ["notes.txt"]
    assert sorted(cache.rglob("*")) == before
    assert not list(tmp_path.rglob("*.lock"))


def test_of_a_run_its_state_is_kept_in_the_run(tmp_path: Path) -> None:
    data, run = squares(tmp_path), tmp_path / "run"
    save_backbone(load_backbone(NETWORK), run / "backbone.safetensors")
    (run / "config.yaml").write_text("recipe: r\n")

    def killed(label: str, done: int, total: int) -> None:
        if done == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        evaluate("detect", str(run), data, progress=killed, **TINY)
    assert len(list(run.glob("results.json.unfinished-*"))) == 1
    again = evaluate("detect", str(run), data, **TINY)
    assert "continued from iteration 4 of an earlier attempt" in again["notes"]
    assert {path.name for path in run.iterdir()} == {"backbone.safetensors", "config.yaml", "results.json"}


def test_workers_do_not_change_it(tmp_path: Path) -> None:
    data = squares(tmp_path)
    alone, together = (evaluate("detect", NETWORK, data, **{**TINY, "num_workers": number}) for number in (0, 2))
    assert alone["details"]["loss"] == together["details"]["loss"]
    assert alone["metrics"] == together["metrics"]


def test_what_a_result_says(tmp_path: Path) -> None:
    data = squares(tmp_path)
    found = evaluate("detect", NETWORK, data, **{**TINY, "save_every": 500, "ap": "area"})
    assert set(found["metrics"]) == {"AP", "AP50", "AP75"}
    assert found["protocol"].startswith("detect/moco-6it-batch_size=2-")
    assert "ap=area" in found["protocol"]
    assert "save_every" not in found["protocol"]
    assert found["deviations"]["shorter_side"] == [list(range(480, 801, 32)), [48, 64]]
    assert (found["options"]["iterations"], found["options"]["epochs"]) == (6, None)
    assert found["options"]["with_2012"] is False
    assert any("without VOC2012" in note for note in found["notes"])
    assert set(found["details"]["other_rules"]) == {"eleven_point"}
    assert found["details"]["training_images"] == 8
    assert found["transform"]["shorter_side"] == 64
    squares(tmp_path, "VOC2012", ("train", "val", "trainval"), count=5)
    both = evaluate("detect", NETWORK, data, **{**TINY, "epochs": 2, "iterations": None})
    assert both["details"]["training_images"] == 13
    assert both["options"]["iterations"] == 2 * 13 // 2
    assert both["options"]["with_2012"] is True
    alone = evaluate("detect", NETWORK, data, with_2012=False, holdout=0.4, **TINY)
    assert alone["details"]["training_images"] < 8


def test_published_options_are_those_of_the_reference() -> None:
    moco, appendix = (PROTOCOL.presets[name].model_dump() for name in ("moco", "appendix"))
    assert [moco[name] for name in ("kind", "batch_size", "learning_rate", "iterations", "warmup_iterations")] == [
        "c4",
        16,
        0.02,
        24_000,
        100,
    ]
    assert [round(share * 24_000) for share in moco["decay_at"]] == [18_000, 22_000]
    assert moco["shorter_side"] == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    assert (moco["test_shorter_side"], moco["weight_decay"], moco["ap"], moco["frozen"]) == (
        800,
        1e-4,
        "eleven_point",
        False,
    )
    assert [appendix[name] for name in ("kind", "batch_size", "learning_rate", "epochs", "frozen")] == [
        "fpn",
        8,
        0.05,
        15,
        True,
    ]
    assert [round(share * 15) for share in appendix["decay_at"]] == [12]
    assert int(15 * 16_551 / 8) == 31_033


def test_batch_norms_take_the_means_over_further_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precise batch-norm against the statistics of each batch, read from the first one's input."""
    kept: list[Training] = []
    inputs: list[torch.Tensor] = []
    recalibrate = Training._recalibrate

    def watched(self: Training, item: Any) -> None:
        kept.append(self)
        first = next(m for m in self.detector.modules() if isinstance(m, torch.nn.BatchNorm2d))
        handle = first.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach().clone()))
        recalibrate(self, item)
        handle.remove()

    monkeypatch.setattr(Training, "_recalibrate", watched)
    evaluate("detect", NETWORK, squares(tmp_path), **{**TINY, "iterations": 2, "precise_bn": 3})
    first = next(m for m in kept[0].detector.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert (len(kept), len(inputs)) == (3, 3)
    assert first.momentum == 0.1
    torch.testing.assert_close(first.running_mean, torch.stack([x.mean((0, 2, 3)) for x in inputs]).mean(0))
    torch.testing.assert_close(first.running_var, torch.stack([x.var((0, 2, 3)) for x in inputs]).mean(0))


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    data = squares(tmp_path)
    for name in ("trainval003", "test005"):
        (tmp_path / "VOCdevkit" / "VOC2007" / "JPEGImages" / f"{name}.jpg").write_bytes(b"broken")
    found = evaluate("detect", NETWORK, data, **{**TINY, "iterations": 12})
    assert any("1 training images could not be read" in note for note in found["notes"])
    assert any("1 of 8 images" in note for note in found["notes"])


def test_a_loss_that_is_not_finite_stops_it(tmp_path: Path) -> None:
    data = squares(tmp_path)
    with pytest.raises(
        UserError, match=r"not finite at iteration \d+ and learning rate .*lower learning_rate"
    ) as caught:
        evaluate("detect", NETWORK, data, **{**TINY, "learning_rate": 1e12, "warmup_iterations": 0, "save_every": 1})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/detect/*")), "the same would come to the same"


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    data = squares(tmp_path)
    wrong: list[tuple[str, str, dict[str, Any], str]] = [
        ("random:vit_tiny_patch16_224", data, {}, "feature maps of several resolutions"),
        ("pixels:8", data, {}, "feature maps of several resolutions"),
        (NETWORK, "digits", {}, "voc:PATH/VOCdevkit"),
        (NETWORK, data, {"kind": "c5"}, "kind"),
        (NETWORK, data, {"shorter_side": [0]}, "above 0"),
        (NETWORK, data, {"iterations": None}, "iterations or epochs"),
        (NETWORK, data, {"epochs": 2}, "give one of them"),
        (NETWORK, data, {"anchor_sizes": [8], "kind": "fpn"}, "anchor_sizes"),
    ]
    for backbone, source, options, said in wrong:
        with pytest.raises(UserError, match=said) as caught:
            evaluate("detect", backbone, source, **{**TINY, **options})
        assert "\n" not in str(caught.value)
    (tmp_path / "VOCdevkit" / "VOC2007" / "Annotations" / "test004.xml").unlink()
    with pytest.raises(UserError, match=r"1 annotations cannot be read.*test004\.xml"):
        evaluate("detect", NETWORK, data, **TINY)


def test_it_resizes_by_options_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="detect resizes images by options of its own; leave out crop, size"):
        evaluate("detect", NETWORK, squares(tmp_path), **TINY, size=64, crop=1)
    found = evaluate("detect", NETWORK, f"voc:{tmp_path / 'VOCdevkit'}", **TINY, mean=0.5)
    assert found["protocol"].endswith("-mean0.5")


def test_two_equal_commands_do_not_share_a_state(tmp_path: Path) -> None:
    data = squares(tmp_path)

    def second(label: str, done: int, total: int) -> None:
        with pytest.raises(UserError, match="trains this detector already; wait for it"):
            measured(tmp_path, data, **TINY)
        raise MemoryError

    with pytest.raises(MemoryError):
        measured(tmp_path, data, progress=second, **TINY)


def test_it_is_read_beside_the_published_rows() -> None:
    facts = {"test": {"known_as": "VOC07", "images": 4952}}
    result = {"protocol": "detect/moco-24000it", "preset": "moco", "deviations": {}, "data_facts": facts}
    result["metrics"] = {"AP": 50.0, "AP50": 80.0, "AP75": 55.0}
    result["options"] = {"with_2012": True}
    found = published.beside(result)
    assert found is not None
    assert (found.columns, found.own, found.caution) == (("AP", "AP50", "AP75"), (50.0, 80.0, 55.0), "")
    assert ("HEXA-MoCo", 800, (57.7, 82.8, 64.9)) in [(row.method, row.epochs, row.values) for row in found.rows]
    others = ({"deviations": {"iterations": [24_000, 300]}}, {"preset": "appendix"}, {"options": {"with_2012": False}})
    for change in others:
        found = published.beside({**result, **change})
        assert found is not None
        assert "not comparable" in found.caution


def test_the_networks_main_batch_norms_are_used(tmp_path: Path) -> None:
    """A backbone in training form, with a second set: its maps are those of the main one."""
    plain, branched = load_backbone(NETWORK), load_backbone(NETWORK)
    convert(branched.network)
    for name, value in branched.network.named_buffers():
        if ".aux." in name and value.dtype.is_floating_point:
            value.fill_(9.0)
    data = squares(tmp_path)
    found = [evaluate("detect", one, data, **TINY)["details"]["loss"] for one in (plain, branched)]
    losses = [[point["loss"] for point in curve] for curve in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
