"""Images of any number of channels from files to results: the pixels that views are made of, and every command."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from rich.console import Console

import hexa
from hexa import recipes
from hexa.config import UserError
from hexa.data import ArraySource, open_source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.nn.backbones import NetworkConfig
from hexa.recipes.experiment import override
from hexa.run.run import pretrain
from hexa.run.start import begin_from_weights
from hexa.weights import start
from hexa.weights.export import export
from hexa.weights.pretrained import load_backbone, random_backbone, save_backbone
from hexa.weights.start import StartConfig
from tests.conftest import Says
from tests.data.batches import loader_of
from tests.end_to_end.endings import ALONE

BANDS = 5
COUNT = 40
SIDE = 12
TINY = ALONE | {"batch_size": 16, "epochs": 1, "method.queue_size": 32, "monitor.knn_every": 1}
TINY |= {"network.channels": BANDS, "network.mean": "auto", "network.std": "auto"}


def _values(number: int, kind: str = "uint16") -> Any:
    values = np.random.default_rng(number).random((SIDE, SIDE, BANDS)) * (1 + number % 2) / 2
    return (values * 65535).astype(kind) if kind == "uint16" else values.astype(kind)


@pytest.fixture
def data(tmp_path: Path) -> str:
    for split in ("train", "test"):
        for number in range(COUNT):
            folder = tmp_path / "data" / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{number}.npy", _values(number + COUNT * (split == "test")))
    return f"folder:{tmp_path / 'data'}"


def test_sixteen_bit_loading(data: str) -> None:
    """Sixteen bits are kept on the device and from workers."""
    source = open_source(data, "train", channels=BANDS)
    views: dict[str, Any] = {
        "size": SIDE,
        "saturation": 0,
        "hue": 0,
        "grayscale_probability": 0,
        "vertical_flip_probability": 0.5,
    }
    resident = loader_of(source, **views)
    decoded = loader_of(source, resident_limit_bytes=0, **views)
    assert resident.store.images.dtype == torch.uint16
    images = torch.stack([source.decode(n) for n in range(COUNT)])
    floats = loader_of(ArraySource(images.float() / 65535), **views)
    for left, right, exact in zip(
        resident.epoch(0), decoded.epoch(0), floats.epoch(0), strict=True
    ):
        assert torch.equal(left.index, right.index)
        for views in zip(left.crops, right.crops, exact.crops, strict=True):
            assert views[0].shape == (16, BANDS, SIDE, SIDE)
            # a level of 16 bits is 1.5e-5, one of 8 bits 4e-3
            torch.testing.assert_close(views[0], views[1], atol=3e-6, rtol=0)
            torch.testing.assert_close(views[0], views[2], atol=3e-6, rtol=0)


def test_sixteen_bit_evaluation(data: str) -> None:
    """Evaluation sees all bits."""
    source = open_source(data, "test", channels=BANDS)
    ((images, index),) = evaluation_batches(source, EvaluationTransform(SIDE), COUNT, num_workers=0)
    for image, place in zip(images, index.tolist(), strict=True):
        assert torch.equal(image, source.decode(place).float() / 65535)
    enlarged = EvaluationTransform(2 * SIDE, interpolation="bicubic")(source.decode(0))
    assert enlarged.dtype == torch.float32
    assert 0 <= float(enlarged.min()) <= float(enlarged.max()) <= 1
    strip = torch.rand(BANDS, 4, 4 * 17)
    middle = torch.nn.functional.interpolate(
        strip[None, ..., 2:66], (9, 144), mode="bilinear", antialias=True
    )
    torch.testing.assert_close(
        EvaluationTransform(8)(strip), middle[0, :, :8, 68:76], atol=1e-5, rtol=0
    )


def test_multi_channel_commands(data: str, tmp_path: Path, says: Says) -> None:
    """Every command takes images of five channels."""
    run = pretrain(
        override(recipes.get("digits-hexa-moco"), {**TINY, "data": data, "views.hue": 0.2}),
        tmp_path / "run",
        console=Console(file=(said := io.StringIO()), width=200),
    )
    assert "images of 5 channels" in said.getvalue()
    assert "views.hue" in said.getvalue()
    assert "knn" in said.getvalue()
    backbone = load_backbone(run)
    assert len(backbone.mean) == len(backbone.std) == BANDS
    assert hexa.evaluate("knn", run, data)["metrics"]["top1"] >= 0
    hexa.embed(run, data, tmp_path / "features.npz")
    assert np.load(tmp_path / "features.npz")["features"].shape[0] == COUNT
    for kind in ("view-space", "clusters"):
        says(f"figure {kind} {run} --out {tmp_path}/{kind}.png")
    says(f"resume {run}")
    assert export(run, "safetensors", tmp_path / "x.safetensors")["largest_difference"] == 0
    assert load_backbone(tmp_path / "x.safetensors")(torch.rand(2, BANDS, SIDE, SIDE)).shape[0] == 2
    with pytest.raises(
        UserError, match="data 'digits': its images have 3 channels, but the network takes 5"
    ):
        hexa.evaluate("knn", run, "digits")
    with pytest.raises(UserError, match="mean must be 5 numbers, one per channel"):
        load_backbone(run, mean="0.1,0.2")
    assert load_backbone(run, mean="0.5").mean == (0.5,) * 5


@pytest.mark.parametrize("channels", [1, 5])
def test_inflated_start_channels(channels: int, tmp_path: Path) -> None:
    """A start of three channels is inflated as timm does."""
    weights = save_backbone(
        random_backbone(NetworkConfig(name="resnet18"), 32, seed=3), tmp_path / "x.safetensors"
    )
    given = {
        "network.channels": channels,
        "network.mean": "auto",
        "network.std": [0.2] * channels,
        "start.weights": str(weights),
    }
    experiment = begin_from_weights(override(recipes.get("digits-moco-v2"), given), given)
    assert experiment.network.channels == channels
    assert experiment.network.mean == ()
    assert experiment.network.std == (0.2,) * channels
    network = start.begun(experiment.network, experiment.start)
    before = load_backbone(weights).network.state_dict()
    after = network.state_dict()
    assert torch.equal(
        after["conv1.weight"], timm.models.adapt_input_conv(channels, before["conv1.weight"])
    )
    assert all(torch.equal(after[name], before[name]) for name in before if name != "conv1.weight")
    if channels == 1:  # grey gives what RGB of three equal channels gave
        grey = torch.rand(2, 1, 32, 32)
        torch.testing.assert_close(
            network.eval()(grey),
            load_backbone(weights).network(grey.expand(-1, 3, -1, -1)),
            atol=1e-4,
            rtol=1e-4,
        )
    without = {name: value for name, value in given.items() if name != "network.mean"}
    with pytest.raises(UserError, match=r"network.mean: 3 numbers for \d channels"):
        begin_from_weights(override(recipes.get("digits-moco-v2"), given), without)
    four = NetworkConfig(name="resnet18", channels=4, mean=(0.5,) * 4, std=(0.5,) * 4)
    save_backbone(random_backbone(four, 32), weights)
    with pytest.raises(UserError, match=r"of another shape are conv1\.weight"):
        start.begun(experiment.network, StartConfig(weights=str(weights)))
