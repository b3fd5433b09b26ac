"""Networks of timm from the command line at sizes that they were not made for, with random weights; and a ViT of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from hexa.cli import main
from hexa.data import open_source
from hexa.nn.backbones import NetworkConfig
from hexa.weights.export import export
from hexa.weights.preparation import of_timm
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone, save_backbone
from tests.conftest import Says

pytestmark = pytest.mark.slow

QUICK = ["--training.device", "cpu", "--training.precision", "fp32", "--training.report", "false"]
QUICK += ["--max_steps", "2"]
SHALLOW = {"depth": 2}
#: (timm's name, options, size): the smallest of each family, shallow where that is large.
NETWORKS: list[tuple[str, dict[str, Any], int]] = [
    ("vit_small_patch14_dinov2", SHALLOW, 56),
    ("vit_small_patch16_dinov3", SHALLOW, 64),
    ("eva02_tiny_patch14_224", {}, 56),
    ("eva02_base_patch14_448", SHALLOW | {"embed_dim": 96, "num_heads": 2}, 56),
    ("vit_base_patch32_siglip_256", SHALLOW | {"embed_dim": 192}, 64),
    ("convnext_atto", {}, 64),
    ("convnextv2_nano.fcmae_ft_in22k_in1k", {}, 64),
    ("swin_tiny_patch4_window7_224.ms_in22k", {"embed_dim": 24}, 96),
]


def blocks(folder: Path, images: int) -> Path:
    """Images of 80 pixels in four class folders: noise around a colour."""
    draw = np.random.default_rng(images)
    for number in range(images):
        label = number % 4
        colour = np.array([60 * (label % 2), 60 * (label // 2), 0])
        pixels = np.clip(draw.normal(100, 40, (80, 80, 3)) + colour, 0, 255).astype("uint8")
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")
    return folder


def stored(folder: Path, name: str, options: dict[str, Any]) -> str:
    """A file of random weights as others write it, or ours where the network has options."""
    plain = name.partition(".")[0]
    if options:
        config = NetworkConfig(name=plain, options=options)
        made = random_backbone(config, of_timm(plain).size)
        return str(save_backbone(made, folder / "weights.safetensors"))
    torch.save(timm.create_model(plain).state_dict(), folder / "weights.pth")
    return f"{folder / 'weights.pth'}#{name}"


def through_timm(line: str, backbone: Backbone) -> None:
    """The line that is printed loads the network of `backbone` without hexa."""
    names: dict[str, Any] = {}
    exec(line, names)
    size = backbone.image_size
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        expected = backbone(images)
        found = names["network"].eval()(backbone.normalize(images))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def used_everywhere(weights: str, size: int, folder: Path, says: Says) -> None:
    """Every command with a backbone at this size, on images of `folder`."""
    data = folder / "images"
    few = folder / "few"
    source = ["--data", data]
    says(f"embed {weights}", *source, "--size", size, "--out", folder / "x.npz")
    with np.load(folder / "x.npz") as file:
        assert np.isfinite(file["features"]).all()
        assert file["features"].std(0).max() > 0
    says(f"compare {weights} pixels:8", *source, "--size", size, "--out", folder / "compared")
    assert f'"size": {size}' in (folder / "compared" / "compare.json").read_text()
    planned = ["adapt", weights, "--data", str(data), "--labelled", str(few), "--plan"]
    assert main(planned) in (0, 2)  # 2: not enough time
    for command in ("adapt", "harden"):
        out = folder / command
        at = ["--labelled", few, "--views.size", size, "--out", out, "--time", "30s"]
        says(command, weights, *source, *at, *QUICK)
        record = json.loads((out / "adapt.json").read_text())
        result = load_backbone(out / "backbone.safetensors")
        assert result.image_size == size
        through_timm(str(export(result, "timm", out / "result.safetensors")["load"]), result)
        winner = load_backbone(out / "winner.safetensors")
        through_timm(record["winner"]["load"], winner)
        assert winner.image_size in (size, load_backbone(weights).image_size)
    exported = folder / "x.safetensors"
    said = says(f"export {weights} --to timm --size {size} --out {exported}").out
    assert str(size) in said
    assert load_backbone(exported).image_size == size
    says(f"export {folder / 'adapt'} --to onnx --out {folder / 'x.onnx'}")


@pytest.mark.parametrize(("name", "options", "size"), NETWORKS, ids=[one[0] for one in NETWORKS])
def test_timm_small_sizes(
    name: str, options: dict[str, Any], size: int, tmp_path: Path, says: Says
) -> None:
    blocks(tmp_path / "images", 64)
    blocks(tmp_path / "few", 16)
    used_everywhere(stored(tmp_path, name, options), size, tmp_path, says)


def test_own_transformer(real_data: Any, tmp_path: Path, says: Says) -> None:
    """DINO on CIFAR-10 for a few steps, then everything at another size."""
    source = f"parquet:{real_data('cifar10/train.parquet').parent}"
    run = tmp_path / "run"
    short = ["--max_steps", "30", "--batch-size", "64", "--monitor.knn_every", "0"]
    says(
        *("pretrain", "cifar10-dino-vit+small", "--data", source, "--out", run, *short),
        *("--training.report", "false"),
    )
    images = open_source(source, "test")
    for number in range(80):
        picture = images.decode(number).permute(1, 2, 0).numpy()
        folder = tmp_path / ("images" if number < 64 else "few") / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")
    used_everywhere(str(run), 48, tmp_path, says)
