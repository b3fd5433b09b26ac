"""`hexa adapt` through the command line, on folders of digits and a small network; its parts against naive ones."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest
import torch
from PIL import Image

from hexa import recipes
from hexa.adaptation import record as records
from hexa.adaptation.command import adapt
from hexa.adaptation.given import Budget
from hexa.adaptation.request import AdaptRequest
from hexa.comparison import compare as comparing
from hexa.config import UserError
from hexa.data import open_source
from hexa.measure.costs import Costs
from hexa.nn.backbones import NetworkConfig
from hexa.recipes.experiment import override
from hexa.reporting import runs
from hexa.weights import files, start as starts
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from tests.conftest import Says

NETWORK = NetworkConfig(
    name="small-resnet", widths=(4, 8), mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4)
)
QUICK = "--device cpu --precision fp32 --training.tensorboard false --training.num_workers 0"
#: A fixed length instead of one by the clock, so that two runs are alike.
FIXED = "--epochs 2 --max_steps 5 --views.size 8 --batch_size 64"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    start = random_backbone(NETWORK, 8, seed=5).prepared(crop=0.9, interpolation="bicubic")
    return save_backbone(start, tmp_path_factory.mktemp("start") / "start.safetensors")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as files, unlabelled; and those of the test split by class."""
    folder = tmp_path_factory.mktemp("photos")
    for split, most in (("train", 200), ("test", 120)):
        source = open_source("digits", split)
        assert source.classes is not None
        for number in range(most):
            pixels = source.decode(number).permute(1, 2, 0).numpy()
            name = (
                f"{number:03}.png"
                if split == "train"
                else f"{source.classes[number]}/{number:03}.png"
            )
            path = folder / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def command(weights: Path, photos: Path, out: Path, more: str) -> str:
    data = f"--data=folder:{photos}/train --labelled=folder:{photos}/test"
    return f"adapt {weights} {data} --out={out} {QUICK} {FIXED} {more}"


def test_adapt_folder_to_decision(weights: Path, photos: Path, tmp_path: Path, says: Says) -> None:
    out = tmp_path / "run"
    said = says(command(weights, photos, out, "--time=20m")).out
    kept = json.loads((out / "adapt.json").read_text())
    assert not (out / "best.safetensors").exists()  # no state is chosen by the labels that judge
    *_, conclusion, report, file, load = said.splitlines()
    assert [conclusion, load] == [kept["verdict"], kept["winner"]["load"]]
    assert str(out / "report.html") in report
    assert str(out / "winner.safetensors") in file
    assert kept["winner"]["load"] in html.unescape((out / "report.html").read_text())
    assert (kept["comparison"]["best"] == "result") == (kept["kept"] == "result")
    assert vars(load_backbone(out).preparation) == vars(load_backbone(weights).preparation) | {
        "origins": ANY
    }
    best = load_backbone(out / "winner.safetensors")
    better = load_backbone(out / "backbone.safetensors" if kept["kept"] == "result" else weights)
    images = torch.rand(4, 3, 8, 8)
    assert torch.equal(best(images), better.eval()(images))
    assert better.preparation.crop == 0.9
    assert best.preparation.crop == 1.0  # timm, too, is to take digits whole
    # again: there is nothing left to do
    assert "is finished" in says(command(weights, photos, out, "--time=20m")).out
    assert f"verdict is in {out / 'report.html'}" in says(f"resume {out}").out
    # another request does not touch it, and may be planned
    other = command(weights, photos, out, "--time=21m --epochs=3 --labelled=digits#test")
    err = says(other, status=2).err
    assert "--time in seconds 1200.0, not 1260.0; --epochs 2, not 3; repeat" in err
    says(command(weights, photos, out, "--time=21m --plan"))
    # a folder in which nothing was trained takes any
    (out := tmp_path / "planned").mkdir()
    (out / "adapt.json").write_text(
        json.dumps({k: kept[k] for k in ("request", "plan", "domain", "compared")})
    )
    assert records.read(out, AdaptRequest(str(weights), "digits"), only_plan=False) is None


def test_adapt_changed_labels(weights: Path, photos: Path, tmp_path: Path, says: Says) -> None:
    """Labelled images that changed or are others give a new verdict, and the record names them."""
    photos = shutil.copytree(photos, tmp_path / "photos")
    out = tmp_path / "run"
    again = functools.partial(says, command(weights, photos, out, "--time=20m"))

    def labels() -> list[str]:
        plan = json.loads((out / "adapt.json").read_text())["plan"]
        return [line for line in plan if line.startswith("labels:")]

    again()
    assert "(120 images)" in labels()[0]
    for path in [*(photos / "test").rglob("*.png")][:40]:
        path.with_name(f"{path.stem} again.png").write_bytes(path.read_bytes())
    trained = (out / "backbone.safetensors").read_bytes()
    assert "is finished" in says(command(weights, photos, out, "--time=20m --plan")).out
    told = again().out
    assert "labelled images or their groups have changed" in told
    assert "is finished" not in told
    assert ["(160 images)" in line for line in labels()] == [True]
    (photos / "train" / "000.png").unlink()
    told = again().out
    assert "is finished" in told
    assert "the images of --data have changed" in told
    kept = (out / "adapt.json").read_bytes()
    says(command(weights, photos, out, "--time=20m --labelled=digits#test"))
    assert ["digits#test" in line for line in labels()] == [True]
    assert "digits#test (450 images)" in (out / "report.html").read_text()
    again()
    shutil.rmtree(photos)
    assert "is finished" in again().out
    assert json.loads((out / "adapt.json").read_text())["table"] == json.loads(kept)["table"]
    assert (out / "backbone.safetensors").read_bytes() == trained


@pytest.mark.parametrize("command", ["adapt", "harden"])
def test_transformer_image_size(command: str, photos: Path, tmp_path: Path, says: Says) -> None:
    """A transformer is adapted and hardened at the size that was given."""
    config = NetworkConfig(
        name="vit_tiny_patch16_224", options={"depth": 1, "embed_dim": 48, "num_heads": 3}
    )
    start = save_backbone(random_backbone(config, 224, seed=5), tmp_path / "start.safetensors")
    length = "--epochs=1 --max_steps=1 --batch_size=16 --training.report=false --views.size=32"
    data = f"--data=folder:{photos}/train --out={tmp_path / 'run'}"
    says(f"{command} {start} {data} {QUICK} {length} --time=20m")
    assert load_backbone(tmp_path / "run" / "backbone.safetensors").image_size == 32


@pytest.mark.parametrize(
    ("monitor", "trials"),
    [
        ({}, 1),
        ({"keep_best": "knn"}, 3),
        ({"until": 90.0}, 3),
    ],
    ids=["none", "best", "until"],
)
def test_adapt_trials(
    monitor: dict[str, Any],
    trials: int,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Intervals count the states among which labels chose, also if they ended the run."""
    lines = [{"kind": "monitor", "step": step, "knn": 50.0} for step in range(3)]
    read = Mock(return_value=Mock(monitor=lines))
    monkeypatch.setattr(runs, "read_run", read)
    compared = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(comparing, "of_backbones", compared)
    recipe = recipes.get("digits-moco-v2")
    changes = {f"monitor.{name}": value for name, value in monitor.items()}
    config = override(recipe, changes)
    trained = Mock(experiment=config, out=tmp_path)
    with pytest.raises(InterruptedError):
        AdaptRequest(str(weights), "digits").outcome(trained, Mock())
    assert compared.call_args.args[-1] == trials


def test_adapt_plan_side_effects(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """A plan writes nothing and reads the initial weights once."""
    out = tmp_path / "run"
    read = Mock(wraps=files.read)
    monkeypatch.setattr(files, "read", read)
    planning = f"adapt {weights} --plan --out={out} {QUICK}"
    data = f"--data=folder:{photos}/train --labelled=folder:{photos}/test"
    told = says(f"{planning} {data} --time=100s")
    assert "method: simclr, from" in told.out
    assert re.search(r"learning: the whole network.* head alone", told.out)
    assert re.search(r"for medical-grey \(--domain .*\), 8 px\n", told.out)
    assert re.search(rf"{photos}/test \(120 images\).* --groups .* 10 points", told.out)
    assert re.search(r"length: about [\d.]+ passes.* 32.* muon .*0\.012.* 1 min 40 s", told.out)
    assert "timing a few steps" in told.err
    assert not out.exists()
    read.assert_called_once()
    starts.read(str(weights))  # later, the file as it is then
    assert read.call_count == 2
    of_photos = says(f"{planning} {data} --time=100s --domain=photos").out
    assert re.search(r"learning: the last of 3 stages.* head alone", of_photos)
    small = says(f"{planning} {data} --epochs=9 --views.size=4").out
    assert re.search(r"views: .*4 px; .*8 px", small)
    inside = f"{planning} --data={photos}/test --epochs=9"
    apart, same = (says(f"{inside} --labelled={photos}{part}").out for part in ("#test", "/test"))
    assert re.search(r"labels: .*120 labelled images.* 10 points", apart)
    # folders of --data are not classes if --labelled has the labels
    assert "10 classes" not in apart
    assert "labels: those of the training images (10 classes)" in same


def test_adapt_too_little_time(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """If the time is not enough, the initial weights are kept."""
    slow = Costs(size=8, read=0.0, steps={3: 4.0, 1: 2.0, 0: 1.0}, look=0.01)
    monkeypatch.setattr("hexa.adaptation.given.measure", lambda *_, **__: slow)
    out = tmp_path / "run"
    asked = f"adapt {weights} --data=folder:{photos}/train --out={out} {QUICK}"
    said = says(f"{asked} --time=10m", status=2).out.splitlines()[-1]
    # 100 images: 1 + 5 · 2 seconds each, 0.9 of the time, and a third to spare
    assert said.endswith("--time 27m.")
    says(f"{asked} --out={tmp_path / 'planned'} --time=10m --plan", status=2)
    kept = json.loads((out / "adapt.json").read_text())
    assert kept["kept"] == "start"
    assert kept["verdict"] == said
    assert sorted(path.name for path in out.iterdir()) == ["adapt.json"]
    with pytest.raises(UserError, match="so not a run that has begun; give a run"):
        load_backbone(out)
    said = says(f"{asked} --time=30m --plan").out  # the same folder, with more time
    assert said.count("learning: the last of 3 stages") == said.count("labels: none") == 1
    assert float(re.findall(r"length: about ([\d.]+) passes", said)[0]) >= 6


def test_adapt_clock_judging_time(
    weights: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock leaves time to evaluate."""
    monkeypatch.setattr(
        "hexa.adaptation.given.measure", lambda *_, **__: Costs(8, 0.1, {3: 0.03, 0: 0.01}, 0.02)
    )
    monkeypatch.setattr(Budget, "left", 600.0)
    asked = AdaptRequest(str(weights), f"folder:{photos}/train", f"folder:{photos}/test", 600.0)
    planned = adapt(asked, weights.parent / "run", only_plan=True)
    # 120 images of ten classes, and 4 seconds at the end
    left = 600 - 120 * (2 * 0.02 + 4 * 0.1) - 4 - 120 * 10 * 8 * 6e-8
    assert planned["experiment"]["training"]["max_seconds"] == pytest.approx(left, abs=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--batch_size=201", "batch_size: 201"),
        ("--data=folder:{few}", "64"),
        ("--data=folder:{same}", "near-duplicates"),
        ("--data=folder:{broken}", "8 of 80 images"),
        ("--labelled=folder:{few}", "labels"),
        ("--groups=none.csv", "labels"),
        ("--domain=photo", "'photos'"),
        ("--epohcs=3", "'--epochs'"),
        ("--labeled=x", "'--labelled'"),
        ("--epochs=3 --training.max_seconds=9", "--training.max_seconds"),
        ("--start.trainable_stages=4", "start.trainable_stages: must be at most 3"),
    ],
)
def test_adapt_invalid_options(
    change: str, message: str, weights: Path, photos: Path, tmp_path: Path, says: Says
) -> None:
    folders = {name: tmp_path / name for name in ("few", "same", "broken")}
    image = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    for number in range(80):
        for name, most in (("few", 3), ("same", 80), ("broken", 80)):
            path = folders[name] / f"{number}.png"
            if number < most:
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path) if (name, number % 10) != ("broken", 0) else path.write_bytes(b"")
    out = tmp_path / "run"
    data = f"--data=folder:{photos}/train --time=1h"
    told = says(f"adapt {weights} --out={out} {QUICK} {data} {change.format(**folders)}", status=2)
    *stage, said = told.err.splitlines()
    assert message in said
    assert stage in ([], ["looking at the images …"])
    assert not out.exists()
