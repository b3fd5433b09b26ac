"""Exported files load strictly into the plain network and give the same features; failed exports
leave nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import timm.data
import torch
import torchvision
from torch import Tensor, nn
from torchvision.transforms.v2 import functional

from hexa.config import UserError
from hexa.core import Branch
from hexa.nn.backbones import NetworkConfig, build, use_small_stem
from hexa.nn.branch_norm import use_branch
from hexa.testing.cases import train
from hexa.weights import export as exporting, onnx_file
from hexa.weights.export import export
from hexa.weights.preparation import of_timm
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone
from tests.laws.cases import Case
from tests.refusals import one_line
from tests.weights.test_layouts import assert_same, stirred
from tests.weights.test_pretrained import run_folder

SMALL = NetworkConfig(
    name="small-resnet",
    widths=(4, 8),
    mean=(0.1, 0.5, 0.9),
    std=(0.2, 0.3, 0.4),
)
RESNET = NetworkConfig(name="resnet18")
STEM = NetworkConfig(name="resnet18", small_stem=True)
GREY = NetworkConfig(name="resnet18", channels=1, mean=(0.5,), std=(0.5,))
VIT = NetworkConfig(
    name="vit_tiny_patch16_224", options={"img_size": 32, "patch_size": 8, "depth": 2}
)


def trained(config: NetworkConfig, size: int = 32) -> Backbone:
    """Statistics and affine parameters as after training, so that an incomplete export changes the
    features."""
    backbone = random_backbone(config, size)
    stirred(backbone.network)
    return backbone


def by_hand(backbone: Backbone, images: Tensor) -> Tensor:
    normalised: Tensor = functional.normalize(images, backbone.mean, backbone.std)
    return normalised


@pytest.mark.parametrize(
    ("target", "config"),
    [("timm", STEM), ("timm", RESNET), ("torchvision", STEM)],
    ids=["timm's stem", "timm", "torchvision"],
)
def test_printed_load_line(tmp_path: Path, target: str, config: NetworkConfig) -> None:
    """The printed line is run as a user would; the network is the library's own, and the state fits
    strictly."""
    backbone = trained(config)
    out = tmp_path / "new" / "out.safetensors"
    report = export(backbone, target, out)
    assert report["largest_difference"] < 1e-5
    assert report["bytes"] == out.stat().st_size
    found = [path.name for path in out.parent.iterdir()]
    assert found == [out.name]
    assert "hexa" not in report["load"].replace(str(tmp_path), "")
    names: dict[str, Any] = {}
    exec(report["load"], names)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert_same(names["network"].eval()(by_hand(backbone, images)), backbone(images))


@pytest.mark.parametrize(
    ("target", "config", "said"),
    [
        ("timm", SMALL, "no other library has small-resnet"),
        ("torchvision", VIT, "only torchvision's plain ResNets, not vit_tiny_patch16_224"),
        ("torchvision", GREY, "its networks take 3 channels, this one 1"),
    ],
)
def test_unsupported_target(tmp_path: Path, target: str, config: NetworkConfig, said: str) -> None:
    """No file is written that the target cannot load."""
    out = tmp_path / "out.safetensors"
    with one_line(f"--to {target}: .*{said}.*; export --to"):
        export(trained(config), target, out)
    assert not out.exists()


@pytest.mark.parametrize("config", [SMALL, VIT], ids=["small", "vit"])
def test_onnx_graph(tmp_path: Path, config: NetworkConfig) -> None:
    """The graph maps pixels to features."""
    runtime = pytest.importorskip("onnxruntime")
    backbone = trained(config)
    report = export(backbone, "onnx", tmp_path / "out.onnx")
    assert report["largest_difference"] < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    assert report["load"].endswith("# input: images [N, 3, 32, 32], float32 in [0, 1], RGB")
    names: dict[str, Any] = {}
    exec(report["load"], names)
    assert isinstance(names["session"], runtime.InferenceSession)
    said = names["session"].get_modelmeta().custom_metadata_map
    assert said["input"] == "images [N, 3, 32, 32], float32 in [0, 1], RGB"
    assert NetworkConfig.model_validate(json.loads(said["hexa"])["network"]) == config
    (wanted,) = names["session"].get_inputs()
    assert wanted.name == "images"
    assert wanted.type == "tensor(float)"
    assert wanted.shape[1:] == [3, 32, 32]
    assert isinstance(wanted.shape[0], str)  # any number of images
    for count in (1, 3):
        images = torch.rand(count, 3, 32, 32)
        (found,) = names["session"].run(["features"], {"images": images.numpy()})
        assert found.dtype == np.float32
        with torch.no_grad():
            assert_same(torch.from_numpy(found), backbone.network(by_hand(backbone, images)))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_small_patch14_reg4_dinov2", 56),
        ("vit_small_patch16_dinov3", 48),
        ("beit_base_patch16_224", 48),
    ],
)
def test_exported_transformer_size(tmp_path: Path, name: str, size: int) -> None:
    """A transformer at another size is loaded by timm and as a graph."""
    pytest.importorskip("onnxruntime")
    config = NetworkConfig(name=name, options={"depth": 1, "embed_dim": 24, "num_heads": 2})
    backbone = random_backbone(config, of_timm(name).size)
    here = backbone.prepared(size=size)
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        expected = here(images)
    names: dict[str, Any] = {}
    exec(export(backbone, "timm", tmp_path / "out.safetensors", size=size)["load"], names)
    with torch.no_grad():
        assert_same(names["network"].eval()(by_hand(backbone, images)), expected)
    found = timm.data.resolve_model_data_config(names["network"])["input_size"]
    assert found == (3, size, size)
    again = load_backbone(tmp_path / "out.safetensors")
    assert again.image_size == size
    assert again.network_config == here.network_config
    assert export(again, "onnx", tmp_path / "out.onnx")["largest_difference"] < 1e-5
    with torch.no_grad():
        assert_same(onnx_file.features(tmp_path / "out.onnx", images), expected)


@pytest.mark.parametrize("damage", ["value", "key", "graph"])
def test_failed_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """A file with wrong features is not kept."""
    reading = exporting._read
    features = onnx_file.features

    def damaged(*given: Any) -> dict[str, Tensor]:
        state = reading(*given)
        state["more" if damage == "key" else "layer1.0.bn1.running_mean"] = torch.full((4,), 0.1)
        return state

    monkeypatch.setattr(exporting, "_read", damaged)
    monkeypatch.setattr(onnx_file, "features", lambda path, images: features(path, images) + 0.01)
    out = tmp_path / ("out.onnx" if damage == "graph" else "out.safetensors")
    out.write_text("what was there")
    with pytest.raises((UserError, RuntimeError), match=r"features differ|Unexpected key"):
        export(trained(SMALL, 16), "onnx" if damage == "graph" else "safetensors", out)
    assert out.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [out]


def test_export_law(tmp_path: Path) -> None:
    """From MoCo trained on adversarial and mixed queries with two batch-norm sets, the main set is
    exported."""
    case = Case("moco", {}, {"adversarial": {}, "cutmix": {}})
    method = train(case.made(), steps=1, method=case.build(network=build(STEM))).float().eval()
    run = run_folder(tmp_path / "run", STEM, 12)
    out = tmp_path / "out.safetensors"
    torch.save({"method": method.state_dict()}, run / "checkpoints" / "step-00000002.pt")
    assert not torch.equal(method.backbone.bn1.running_mean, method.backbone.bn1.aux.running_mean)

    export(run, "torchvision", out)
    plain = use_small_stem(torchvision.models.resnet18())
    plain.fc = nn.Identity()
    plain.load_state_dict(safetensors.torch.load_file(out), strict=True)
    normalised = by_hand(load_backbone(out), torch.rand(5, 3, 12, 12))
    with torch.no_grad(), use_branch(method.query):
        found = plain.eval()(normalised)
        torch.testing.assert_close(found, method.backbone(normalised), rtol=1e-5, atol=1e-5)
    with torch.no_grad(), use_branch(method.query, Branch("aux")):
        assert not torch.allclose(plain(normalised), method.backbone(normalised), rtol=1e-3)
