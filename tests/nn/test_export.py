"""What is exported loads strictly into the plain network and gives the same features; what can't be leaves nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
import yaml
from torch import nn

from hexa.config import UserError
from hexa.nn import export as exporting
from hexa.nn.backbones import NetworkConfig, SmallResNet, build, use_small_stem
from hexa.nn.branch_norm import use_branch
from hexa.nn.export import export
from hexa.nn.pretrained import Backbone, load_backbone, random_backbone
from hexa.testing.cases import train
from tests.laws.cases import Case

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8))


def trained(config: NetworkConfig, size: int) -> Backbone:
    """Statistics and affine parameters as after training, so that exporting too little would change the features."""
    backbone = random_backbone(config, size)
    for name, value in backbone.network.state_dict().items():
        if name.endswith(("running_mean", "running_var", "bn1.weight", "bn2.bias")):
            value.add_(torch.rand(value.shape, generator=torch.Generator().manual_seed(len(name))))
    return backbone


def read(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def expected(backbone: Backbone, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised by hand, and the features."""
    mean, std = (torch.tensor(value).view(1, 3, 1, 1) for value in (backbone.mean, backbone.std))
    return (images - mean) / std, backbone(images)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("target", ["timm", "torchvision"])
def test_a_stock_network_loads_the_file_strictly(tmp_path: Path, target: str, suffix: str) -> None:
    backbone = trained(NetworkConfig(name="resnet18"), 32)
    out = tmp_path / "new" / f"out{suffix}"
    report = export(backbone, target, out)
    assert report["largest_difference"] < 1e-5
    assert report["bytes"] == out.stat().st_size
    if target == "timm":
        network = timm.create_model("resnet18", num_classes=0)
    else:
        network = torchvision.models.resnet18()
        network.fc = nn.Identity()
    network.load_state_dict(read(out), strict=True)
    normalised, features = expected(backbone, torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        difference = (network.eval()(normalised) - features).abs().max()
    assert difference <= 1e-4 * features.abs().max()
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_the_small_stem_goes_into_the_plain_network_with_that_stem(tmp_path: Path) -> None:
    backbone = trained(NetworkConfig(name="resnet18", small_stem=True), 32)
    report = export(backbone, "torchvision", tmp_path / "out.pth")
    assert "3×3" in report["network"]
    network = torchvision.models.resnet18()
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool, network.fc = nn.Identity(), nn.Identity()
    network.load_state_dict(read(tmp_path / "out.pth"), strict=True)
    normalised, features = expected(backbone, torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        difference = (network.eval()(normalised) - features).abs().max()
    assert difference <= 1e-4 * features.abs().max()


@pytest.mark.parametrize("target", ["timm", "torchvision", "safetensors"])
def test_a_network_of_ours_says_how_to_rebuild_it(tmp_path: Path, target: str) -> None:
    backbone = trained(SMALL, 16)
    out = tmp_path / "out.safetensors"
    report = export(backbone, target, out)
    assert "SmallResNet((4, 8)" in report["network"]
    with safetensors.safe_open(out, framework="pt") as file:
        assert NetworkConfig.model_validate_json(file.metadata()["network"]) == SMALL
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(load_backbone(out)(images), backbone(images))


@pytest.mark.parametrize(
    ("config", "target", "name", "said"),
    [
        (SMALL, "timm", "out.pth", r"\.safetensors"),
        (NetworkConfig(name="resnet18"), "safetensors", "out.pth", r"\.safetensors"),
        (NetworkConfig(name="resnet18"), "tim", "out.pth", "timm"),
        (NetworkConfig(name="resnet26d"), "torchvision", "out.pth", "--to timm"),
        (NetworkConfig(name="mobilenetv3_small_100"), "torchvision", "out.pth", "--to timm"),
    ],
)
def test_what_a_target_cannot_hold_is_one_line(
    tmp_path: Path, config: NetworkConfig, target: str, name: str, said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        export(random_backbone(config, 32), target, tmp_path / "new" / name)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("target", ["timm", "torchvision"])
@pytest.mark.parametrize("small", [True, False])
def test_the_line_that_is_printed_loads_the_file(tmp_path: Path, target: str, small: bool, suffix: str) -> None:
    """As the user would type it, in a program without hexa."""
    backbone = trained(NetworkConfig(name="resnet18", small_stem=small), 32)
    line = export(backbone, target, tmp_path / f"out{suffix}")["load"]
    names: dict[str, Any] = {}
    exec(line, names)
    assert "hexa" not in line.replace(str(tmp_path), "")
    normalised, features = expected(backbone, torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        difference = (names["network"].eval()(normalised) - features).abs().max()
    assert difference <= 1e-4 * features.abs().max()


def test_the_line_for_a_network_of_ours(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(export(trained(SMALL, 16), "timm", tmp_path / "out.safetensors")["load"], names)
    assert isinstance(names["network"], SmallResNet)


def test_pixels_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pixels"):
        export("pixels:8", "timm", tmp_path / "out.pth")
    with pytest.raises(UserError, match="folder"):
        export(random_backbone(SMALL, 16), "safetensors", tmp_path)


@pytest.mark.parametrize("damage", ["value", "key"])
def test_a_file_that_does_not_give_the_features_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    reading = exporting._read

    def damaged(path: Path, suffix: str) -> dict[str, torch.Tensor]:
        state = reading(path, suffix)
        if damage == "key":
            state["more"] = torch.ones(1)
        else:
            state["layer1.0.bn1.running_mean"] += 0.1
        return state

    monkeypatch.setattr(exporting, "_read", damaged)
    out = tmp_path / "out.safetensors"
    out.write_text("what was there")
    with pytest.raises((UserError, RuntimeError), match=r"features differ|Unexpected key"):
        export(trained(SMALL, 16), "safetensors", out)
    assert out.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["resnet18", "small-resnet"])
def test_law_8_a_trained_method_and_its_export_give_the_same_features(tmp_path: Path, name: str) -> None:
    """DESIGN §3.4: of MoCo trained on adversarial and mixed queries, through two batch-norm sets, the main one."""
    config = SMALL if name == "small-resnet" else NetworkConfig(name=name, small_stem=True)
    case = Case("moco", {}, {"adversarial": {}, "cutmix": {}})
    method = train(case.made(), method=case.build(network=build(config))).float().eval()
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    fields = {"recipe": "r", "network": config.model_dump(mode="json"), "views": {"size": 12}}
    (run / "config.yaml").write_text(yaml.safe_dump(fields))
    torch.save({"method": method.state_dict()}, run / "checkpoints" / "step-00000002.pt")
    assert not torch.equal(method.backbone.bn1.running_mean, method.backbone.bn1.aux.running_mean)

    out = tmp_path / "out.safetensors"
    export(run, "torchvision", out)
    if name == "resnet18":
        plain: nn.Module = use_small_stem(torchvision.models.resnet18())
        plain.fc = nn.Identity()
    else:
        plain = SmallResNet((4, 8))
    plain.load_state_dict(read(out), strict=True)
    images = torch.rand(5, 3, 12, 12)
    normalised, _ = expected(load_backbone(out), images)
    with torch.no_grad(), use_branch(method.query, "main"):
        torch.testing.assert_close(plain.eval()(normalised), method.backbone(normalised), rtol=1e-5, atol=1e-5)
    with torch.no_grad(), use_branch(method.query, "aux"):
        assert not torch.allclose(plain(normalised), method.backbone(normalised), rtol=1e-3)


def test_detectron2_gets_arrays_under_its_names(tmp_path: Path) -> None:
    backbone = trained(NetworkConfig(name="resnet18"), 32)
    report = export(backbone, "detectron2", tmp_path / "out.pkl")
    assert report["largest_difference"] < 1e-5
    content = pickle.loads((tmp_path / "out.pkl").read_bytes())
    assert content["matching_heuristics"] is True
    assert len(content["model"]) == 100, "all but the counters, which Detectron2 has not"
    weight = content["model"]["res5.1.conv2.norm.running_var"]
    assert torch.equal(torch.from_numpy(weight), backbone.network.state_dict()["layer4.1.bn2.running_var"])
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(load_backbone(tmp_path / "out.pkl")(images), backbone(images))


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        (NetworkConfig(name="resnet18"), "out.pth", "must end in .pkl"),
        (NetworkConfig(name="resnet18", small_stem=True), "out.pkl", "only ResNets"),
        (NetworkConfig(name="vit_tiny_patch16_224"), "out.pkl", "only ResNets"),
        (SMALL, "out.pkl", "no other library has small-resnet"),
    ],
)
def test_what_detectron2_has_not_is_said(tmp_path: Path, config: NetworkConfig, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        export(random_backbone(config, 32), "detectron2", tmp_path / name)
    assert not (tmp_path / name).exists()
