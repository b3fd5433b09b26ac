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
from hexa.evaluation.protocol import Progress, Task
from hexa.evaluation.protocols.detect import PROTOCOL
from hexa.nn.branch_norm import convert
from hexa.runtime.signals import Interrupted
from hexa.weights.pretrained import load_backbone, save_backbone
from tests.evaluation.given import QUIET
from tests.refusals import one_line

CLASSES = ("cat", "dog")
TINY: dict[str, Any] = QUIET | {"num_workers": 0, "iterations": 6, "batch_size": 2, "learning_rate": 0.01}
TINY |= {"shorter_side": [48, 64], "test_shorter_side": 64, "longest_side": 100, "anchor_sizes": [12, 24, 48]}
TINY |= {"warmup_iterations": 2, "regions": 32, "test_proposals": 30, "save_every": 2, "precise_bn": 1}
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


def ends(label: str, at: int, how: Any) -> Progress:
    """Progress that ends an evaluation there, by a signal or an exception. label: or a part of it."""

    def end(what: str, done: int, total: int) -> None:
        if label in what and done == at:
            if not isinstance(how, signal.Signals):
                raise how
            signal.raise_signal(how)

    return end


@pytest.mark.usefixtures("hears_hang_ups")
@pytest.mark.parametrize(
    ("preset", "how"), [("moco", signal.SIGHUP), ("appendix", signal.SIGTERM), ("moco", MemoryError)]
)
def test_one_that_ended_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, how: Any
) -> None:
    """After a signal where it stopped; else from the last state that is not damaged, of the same seed."""
    data, options = squares(tmp_path), {**TINY, "preset": preset, "precise_bn": 2 * (preset == "moco")}
    seen, asked = weights_of(monkeypatch), isinstance(how, signal.Signals)
    whole = measured(tmp_path, data, **options)
    with pytest.raises(Interrupted if asked else how) as caught:
        measured(tmp_path, data, progress=ends("training the detector", 2 if asked else 5, how), **options)
    states = sorted(tmp_path.glob(STATE + "/step-*.pt"))
    assert [path.name[-4:-3] for path in states] == (["2", "3"] if asked else ["2", "4"])
    if asked:
        assert "at step 3, which is saved; go on with: the same command" in str(caught.value)
        assert caught.value.exit_code == 128 + how
    else:
        states[-1].write_bytes(b"damaged")
        other = measured(tmp_path, data, seed=1, **options)
        assert not any("continued" in note for note in other["notes"])
    again = measured(tmp_path, data, **options)
    assert all(torch.equal(value, seen[-1][name]) for name, value in seen[0].items())
    assert (again["metrics"], again["details"]) == (whole["metrics"], whole["details"])
    assert f"continued from iteration {3 if asked else 2} of an earlier attempt" in again["notes"]
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

    with pytest.raises(raised) as caught:
        measured(tmp_path, data, progress=ends(label, 3, stop), **options)
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
    for side in (64, 48):
        with pytest.raises(MemoryError):
            measured(tmp_path, data, progress=ends("detecting", 7, MemoryError), **TINY | {"test_shorter_side": side})
    parts = sorted(tmp_path.glob(STATE + "/seen-*/step-*6.pt"))
    assert len(parts) == 2
    for part in parts:
        part.write_bytes(part.read_bytes()[:-100])
    done: list[tuple[str, int]] = []
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

    with pytest.raises(Interrupted) as caught:
        measured(tmp_path, data, progress=ends("training the detector", 3, signal.SIGTERM), **TINY)
    assert "saved" not in str(caught.value)


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

    killed = ends("detecting", 3, MemoryError)
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

    with pytest.raises(MemoryError):
        evaluate("detect", str(run), data, progress=ends("", 5, MemoryError), **TINY)
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
    found = evaluate("detect", NETWORK, data, **{**TINY, "save_every": 500, "ap": "area", "mean": 0.5})
    assert found["protocol"].endswith("-mean0.5")
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
    published = {"kind": "c4", "batch_size": 16, "learning_rate": 0.02, "iterations": 24_000, "warmup_iterations": 100}
    published |= {"test_shorter_side": 800, "weight_decay": 1e-4, "ap": "eleven_point", "frozen": False}
    assert moco.items() >= (published | {"shorter_side": tuple(range(480, 801, 32))}).items()
    assert [round(share * 24_000) for share in moco["decay_at"]] == [18_000, 22_000]
    published = {"kind": "fpn", "batch_size": 8, "learning_rate": 0.05, "epochs": 15, "frozen": True}
    assert appendix.items() >= published.items()
    assert [round(share * 15) for share in appendix["decay_at"]] == [12]


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


def test_training_images_that_cannot_be_read(tmp_path: Path) -> None:
    data = squares(tmp_path)
    (tmp_path / "VOCdevkit" / "VOC2007" / "JPEGImages" / "trainval003.jpg").write_bytes(b"broken")
    found = evaluate("detect", NETWORK, data, **{**TINY, "iterations": 12})
    assert any("1 training images could not be read" in note for note in found["notes"])


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
        (NETWORK, data, {"size": 64, "crop": 1}, "detect resizes images by options of its own; leave out crop, size"),
        (
            NETWORK,
            data,
            {"learning_rate": 1e12},
            r"not finite at iteration \d+ and learning rate .*lower learning_rate",
        ),
    ]
    for backbone, source, options, said in wrong:
        with one_line(said):
            evaluate("detect", backbone, source, out=tmp_path / "found.json", **{**TINY, **options})
        assert not list(tmp_path.glob(STATE)), "the same would come to the same"
    (tmp_path / "VOCdevkit" / "VOC2007" / "Annotations" / "test004.xml").unlink()
    with pytest.raises(UserError, match=r"1 annotations cannot be read.*test004\.xml"):
        evaluate("detect", NETWORK, data, **TINY)


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
