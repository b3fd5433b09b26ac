"""An exported graph gives, through onnxruntime alone, the features of pixels that the backbone gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hexa.config import UserError
from hexa.nn import onnx_file
from hexa.nn.backbones import NetworkConfig
from hexa.nn.export import export
from hexa.nn.pretrained import load_backbone
from tests.nn.test_export import trained

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8), mean=(0.1, 0.5, 0.9), std=(0.2, 0.3, 0.4))
VIT = NetworkConfig(name="vit_tiny_patch16_224", options={"img_size": 32, "patch_size": 8})


@pytest.mark.parametrize(
    ("config", "size"),
    [(SMALL, 16), (NetworkConfig(name="resnet18", small_stem=True), 32), (VIT, 32)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_pixels_go_in_and_features_come_out(tmp_path: Path, config: NetworkConfig, size: int) -> None:
    import onnxruntime

    backbone = trained(config, size)
    report = export(backbone, "onnx", tmp_path / "out.onnx")
    assert report["largest_difference"] < 1e-5
    assert report["bytes"] == (tmp_path / "out.onnx").stat().st_size, "one file"
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    assert said["input"] == f"images: float32 [batch, 3, {size}, {size}], RGB, pixels in 0 ... 1; normalised inside"
    assert NetworkConfig.model_validate_json(said["network"]) == config
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (config.mean, config.std))
    for count in (1, 3):
        images = torch.rand(count, 3, size, size)
        (found,) = session.run(["features"], {"images": images.numpy()})
        with torch.no_grad():
            expected = backbone.network((images - mean) / std).numpy()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_the_line_that_is_printed_reads_the_file(tmp_path: Path) -> None:
    report = export(trained(SMALL, 16), "onnx", tmp_path / "out.onnx")
    names: dict[str, object] = {}
    exec(report["load"], names)
    assert names["session"].get_inputs()[0].name == "images"  # type: ignore[attr-defined]


def test_a_network_of_anybodys_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())\n"
    )
    report = export(f"python:{tmp_path / 'mine.py'}:make", "onnx", tmp_path / "out.onnx")
    assert report["largest_difference"] < 1e-5


def test_a_graph_with_other_features_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = onnx_file.features
    monkeypatch.setattr(onnx_file, "features", lambda path, images: found(path, images) + 0.01)
    with pytest.raises(UserError, match="features differ by"):
        export(trained(SMALL, 16), "onnx", tmp_path / "new" / "out.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_without_the_packages_it_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"--to onnx needs the package {package}; install it: .*\[onnx\]"):
        export("random:resnet18", "onnx", tmp_path / "out.onnx")


def test_the_names_of_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.onnx"):
        export(trained(SMALL, 16), "onnx", tmp_path / "out.pth")
    with pytest.raises(UserError, match=r"\.onnx"):
        export(trained(SMALL, 16), "timm", tmp_path / "out.onnx")
    assert export(trained(SMALL, 16), "safetensors", tmp_path / "out.safetensors")["target"] == "safetensors"
    assert load_backbone(tmp_path / "out.safetensors").image_size == 16
