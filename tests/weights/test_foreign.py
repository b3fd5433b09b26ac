"""Files in published layouts give the features of the network that wrote them; everything else is refused by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from hexa.config import UserError
from hexa.nn.backbones import NetworkConfig, outline, use_small_stem
from hexa.nn.normalize import IMAGENET_MEAN
from hexa.weights import files
from hexa.weights.fitting import filled
from hexa.weights.foreign import foreign_state
from hexa.weights.parts import normaliser
from hexa.weights.pretrained import Backbone, load_backbone
from tests.refusals import one_line
from tests.weights.test_layouts import assert_same, features_of, resnet18, stirred
from tests.weights.vits import ViT

State = dict[str, Any]


def under(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def head(prefix: str) -> State:
    """A projection head with batch norms."""
    names = ("0.weight", "1.running_mean", "3.bias", "last_layer.weight_g")
    return {f"{prefix}.{name}": torch.ones(3) for name in names}


def saved(content: Any, folder: Path, name: str = "x.pth") -> Path:
    torch.save(content, folder / name)
    return folder / name


def assert_features(backbone: Backbone, expected: nn.Module, images: Tensor | None = None) -> None:
    """The features of a reference for normalised images, to 1e-5 of the largest."""
    side = backbone.image_size
    images = torch.rand(2, 3, side, side) if images is None else images
    with torch.no_grad():
        wanted = expected.eval()(backbone.normalize(images))
        found = backbone(images)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.fixture
def vit() -> ViT:
    """timm's test_vit at 32 pixels."""
    torch.manual_seed(0)
    return ViT()


@pytest.fixture
def other() -> State:
    torch.manual_seed(1)
    return ViT().state_dict()


# -- the rows of the page ----------------------------------------------------------------------------------------------


def dino(own: State, other: State) -> State:
    """Training checkpoint of DINO: student under DDP, teacher, optimizer, arguments."""
    return {
        "student": under("module.backbone.", other) | head("module.head.mlp"),
        "teacher": under("backbone.", own) | head("head.mlp"),
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
        "epoch": 3,
        "args": argparse.Namespace(arch="vit_small"),
        "dino_loss": {"center": torch.ones(1, 3)},
    }


def dinov2_training(own: State, other: State) -> State:
    """Blocks in chunks of three."""

    def chunked(state: State) -> State:
        found = {}
        for name, value in state.items():
            words = name.split(".")
            if words[0] == "blocks":
                words[1:2] = [str(int(words[1]) // 3), words[1]]
            found[".".join(words)] = value
        return found

    both = under("teacher.backbone.", chunked(own)) | under("student.backbone.", chunked(other))
    heads = head("teacher.dino_head") | head("student.dino_head") | head("student.ibot_head")
    return {"model": both | heads | {"dino_loss.center": torch.ones(1, 3)}, "iteration": 7}


def mae(own: State, other: State) -> State:
    decoder = {
        "mask_token": torch.ones(1, 1, 8),
        "decoder_pos_embed": torch.ones(1, 5, 8),
        "decoder_embed.weight": torch.ones(8, 64),
        "decoder_blocks.0.attn.qkv.weight": torch.ones(24, 8),
        "decoder_norm.weight": torch.ones(8),
        "decoder_pred.weight": torch.ones(9, 8),
    }
    return {"model": own | decoder, "optimizer": {}, "args": argparse.Namespace(), "epoch": 1}


def moco_v3(own: State, other: State) -> State:
    state = under("module.base_encoder.", own) | under("module.momentum_encoder.", other)
    state |= head("module.base_encoder.head") | head("module.momentum_encoder.head")
    return {"state_dict": state | head("module.predictor"), "arch": "vit_small", "epoch": 1}


def averaged(own: State, other: State) -> State:
    """timm's train.py with --model-ema."""
    classifier = {"head.weight": torch.ones(10, 64), "head.bias": torch.ones(10)}
    return {
        "epoch": 1,
        "arch": "test_vit",
        "state_dict": other | classifier,
        "optimizer": {},
        "args": argparse.Namespace(model="test_vit"),
        "state_dict_ema": own | classifier,
        "metric": 70.0,
    }


def lightning(own: State, other: State) -> State:
    return {
        "state_dict": under("model.backbone.", own)
        | under("online_classifier.", {"weight": torch.ones(3, 64)})
        | under("criterion.", {"center": torch.ones(3)}),
        "pytorch-lightning_version": "2.5",
        "callbacks": {},
    }


def chain(own: State, other: State) -> State:
    return under("module._orig_mod.model.backbone.", own)


def wrapped_blocks(own: State, other: State) -> State:
    """Rename single blocks like torch.compile, FSDP and activation checkpointing."""
    wrappers = {
        "blocks.1.": "_orig_mod.",
        "blocks.2.": "_fsdp_wrapped_module._checkpoint_wrapped_module.",
    }
    for block, wrapper in wrappers.items():
        own = {name.replace(block, block + wrapper): value for name, value in own.items()}
    return under("module.", own)


@pytest.mark.parametrize(
    ("layout", "note"),
    [
        (dino, "'teacher.backbone', not of 'student.module.backbone'"),
        (dinov2_training, "'model.teacher.backbone', not of 'model.student.backbone'"),
        (mae, None),
        (moco_v3, None),
        (averaged, "'state_dict_ema', not of 'state_dict'"),
        (lightning, None),
        (chain, None),
        (wrapped_blocks, None),
        (lambda own, other: own, None),
    ],
)
def test_foreign_vision_transformers(
    tmp_path: Path, vit: ViT, other: State, layout: Callable[..., State], note: str | None
) -> None:
    path = saved(layout(vit.state_dict(), other), tmp_path)
    backbone = load_backbone(f"{path}#test_vit")
    assert backbone.image_size == 32
    assert_features(backbone, vit)
    assert note in backbone.info.get("note", "") if note else "note" not in backbone.info


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (averaged, "raw"),
        (dino, "student"),
        (dino, "student.module.backbone"),
        (dinov2_training, "model.student.backbone"),
        (moco_v3, "momentum_encoder"),
    ],
)
def test_named_checkpoint_part(
    tmp_path: Path, vit: ViT, other: State, layout: Callable[..., State], part: str
) -> None:
    path = saved(layout(other, vit.state_dict()), tmp_path)
    backbone = load_backbone(f"{path}#test_vit:{part}")
    assert_features(backbone, vit)
    assert "note" not in backbone.info


def test_part_of_recognised_network(tmp_path: Path) -> None:
    """Averaged and raw weights are prepared alike, since the note does not name the network."""
    one, two = (timm.create_model("resnet18", num_classes=0) for _ in range(2))
    path = saved({"state_dict": one.state_dict(), "state_dict_ema": two.state_dict()}, tmp_path)
    averaged = load_backbone(path)
    assert averaged.info["note"].endswith(f"for the others give {path}#:raw")
    raw = load_backbone(f"{path}#:raw")
    assert raw.preparation == averaged.preparation
    assert torch.equal(raw.network.conv1.weight, one.conv1.weight)  # type: ignore[arg-type, union-attr]


def loaded_as(path: Path, config: NetworkConfig) -> Backbone:
    """Like FILE#NETWORK, for a network that is smaller than those with a name."""
    found, preparation = foreign_state(files.read(path), described=config)
    network = filled(found.config, found.state, str(path), "")
    return Backbone(network, preparation, found.config).eval()


TINY = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 3.0}


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("gated", [False, True])
def test_dinov2_state(tmp_path: Path, registers: int, gated: bool) -> None:
    vit = ViT(
        depth=2, patch=14, side=42, mask_token=True, registers=registers, scale=True, gated=gated
    )
    size = "giant" if gated else "small"
    reg = "_reg4" if registers else ""
    options = TINY | {"mlp_ratio": 6.0 if gated else 3.0}
    config = NetworkConfig(name=f"vit_{size}_patch14{reg}_dinov2", options=options)
    for content in (vit.state_dict(), {"teacher": under("backbone.", vit.state_dict())}):
        backbone = loaded_as(saved(content, tmp_path), config)
        assert backbone.image_size == 42
        assert_features(backbone, vit)


@pytest.mark.parametrize("biases", [True, False])
def test_dinov3_state(tmp_path: Path, biases: bool) -> None:
    """The larger published networks have biases that are all 0; timm builds a network without
    them."""
    vit = ViT(depth=2, side=48, mask_token=True, registers=4, scale=True, rotary=True)
    if not biases:
        for block in vit.blocks:
            block.attn.qkv.bias.data.zero_()
    path = saved(vit.state_dict(), tmp_path)
    config = NetworkConfig(name="vit_small_patch16_dinov3", options=TINY)
    backbone = loaded_as(path, config)
    assert backbone.network_config.name.endswith("_qkvb") == biases
    assert_features(backbone, vit, torch.rand(2, 3, 48, 48))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_small_patch14_dinov2", {"patch": 14, "side": 28, "scale": True, "mask_token": True}),
        (
            "vit_small_patch14_reg4_dinov2",
            {"patch": 14, "side": 28, "scale": True, "mask_token": True, "registers": 4},
        ),
        (
            "vit_small_patch16_dinov3",
            {"side": 256, "scale": True, "mask_token": True, "registers": 4, "rotary": True},
        ),
        ("vit_small_patch16_224", {"side": 224}),
    ],
)
def test_released_network_names(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    vit = ViT(384, 12, 6, ratio=4, **options)
    path = saved(vit.state_dict(), tmp_path)
    assert_features(load_backbone(f"{path}#{name}"), vit)
    with pytest.raises(UserError) as caught:  # the network that an error suggests fits
        load_backbone(path)
    assert str(caught.value).endswith(f"it fits {name}: give {path}#{name}")


def test_torchvision_vision_transformers(tmp_path: Path) -> None:
    model = torchvision.models.VisionTransformer(32, 16, 6, 2, 64, 192)
    stirred(model)
    path = saved(model.state_dict(), tmp_path)
    model.heads = nn.Identity()
    assert_features(load_backbone(f"{path}#test_vit"), model)


def robust(state: State, mean: Tensor, std: Tensor) -> State:
    """MadryLab's robustness stores the network twice, and its normalisation."""
    stored = {"new_mean": mean[0], "new_std": std[0]}
    found = under("module.model.", state) | under("module.attacker.model.", state)
    found |= under("module.normalizer.", stored) | under("module.attacker.normalize.", stored)
    return {"model": found, "epoch": 1}


def robustbench(state: State, mean: Tensor, std: Tensor) -> State:
    return under("model.", state) | {"normalize.mean": mean, "normalize.std": std}


def with_mu(state: State, mean: Tensor, std: Tensor) -> State:
    return state | {"mu": mean, "sigma": std}


def by_channel(*values: float) -> Tensor:
    return torch.tensor(values).view(1, 3, 1, 1)


@pytest.mark.parametrize("layout", [robust, robustbench, with_mu])
def test_robust_network_normalisation(tmp_path: Path, layout: Callable[..., State]) -> None:
    """Robust networks include their normalisation."""
    mean = (0.1, 0.2, 0.3)
    std = (0.4, 0.5, 0.6)
    state = layout(resnet18().state_dict(), by_channel(*mean), by_channel(*std))
    path = saved(state, tmp_path)
    backbone = load_backbone(path)
    assert backbone.mean == pytest.approx(mean)
    assert backbone.std == pytest.approx(std)
    assert backbone.preparation.origins["mean"] == "the file's own normalisation"
    images = torch.rand(2, 3, 40, 40)
    assert_same(backbone(images).detach(), features_of(resnet18(), images, std, mean))


def test_normalisation_of_bytes(tmp_path: Path) -> None:
    """A mean for pixels from 0 to 255, or a single mu, is not taken for one from 0 to 1."""
    given = (by_channel(124, 116, 104), by_channel(58, 57, 57))
    state = robustbench(resnet18().state_dict(), *given)
    assert load_backbone(saved(state, tmp_path)).mean == IMAGENET_MEAN
    single = {"head.mu": torch.zeros(1), "head.sigma": torch.ones(1)}
    state = resnet18().state_dict() | single
    assert normaliser(files.Weights("", state)) is None


def cifar_stem(padding: int) -> nn.Module:
    network = use_small_stem(torchvision.models.resnet18(), padding=padding)
    network.fc = nn.Identity()
    return stirred(network)


def test_solo_learn_stem_padding(tmp_path: Path) -> None:
    """solo-learn's checkpoints have a classifier and a projector next to the backbone."""
    network = cifar_stem(2)
    state = under("backbone.", network.state_dict()) | {"classifier.weight": torch.ones(10, 512)}
    state |= {"classifier.bias": torch.ones(10), "projector.0.weight": torch.ones(3, 512)}
    path = saved({"state_dict": state}, tmp_path)
    backbone = load_backbone(path)
    assert "padded by 2, as solo-learn's" in backbone.info["note"]
    assert_features(backbone, network)
    other = cifar_stem(1)
    other.load_state_dict(network.state_dict())
    assert_features(load_backbone(f"{path}#resnet18:padding1"), other)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_incomplete_teacher(tmp_path: Path, vit: ViT, other: State) -> None:
    """An incomplete teacher is not replaced by its student."""
    own = {k: v for k, v in vit.state_dict().items() if not k.startswith("blocks.3.")}
    said = r"not the state of test_vit: it lacks blocks\.3\.norm1\.weight.* function .* python:FILE"
    with one_line(said):
        load_backbone(f"{saved(dino(own, other), tmp_path)}#test_vit")


@pytest.mark.parametrize(
    "name", ["adapter.weight", "blocks.0.adapter.weight", "blocks.6.norm1.weight"]
)
def test_unknown_tensors(tmp_path: Path, vit: ViT, name: str) -> None:
    """An unknown tensor is refused by name."""
    state = vit.state_dict() | {name: torch.ones(3)}
    for content in (state, {"model": under("module.", state)}):
        with one_line(rf"unknown (keys|tensors)[^;]* {name}"):
            load_backbone(f"{saved(content, tmp_path)}#test_vit")


def test_network_suggestion(tmp_path: Path) -> None:
    """Another network is refused and the right one suggested."""
    path = saved(resnet18().state_dict(), tmp_path)
    with one_line(r"resnet34: .*#resnet18$"):
        load_backbone(f"{path}#resnet34")


def test_patch_size_mismatch(tmp_path: Path) -> None:
    """timm would resample the patches without an error."""
    vit = ViT(384, 12, 6, patch=32, side=64, ratio=4)
    path = saved(vit.state_dict(), tmp_path)
    with one_line(
        r"of another shape are patch_embed\.proj\.weight .*; it fits vit_small_patch32_224: "
    ):
        load_backbone(f"{path}#vit_small_patch16_224")
    assert_features(load_backbone(f"{path}#vit_small_patch32_224"), vit)
    config = NetworkConfig(name="swin_tiny_patch4_window7_224", options={"embed_dim": 12})
    options = {"embed_dim": 12, "window_size": 4, "img_size": 128, "num_classes": 0}
    other = timm.create_model(config.name, **options)
    with one_line("relative_position_bias_table"):
        loaded_as(saved(other.state_dict(), tmp_path), config)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"state_dict": {}},
        {"epoch": 1},
        [],
    ],
)
def test_empty_weight_files(tmp_path: Path, content: Any) -> None:
    with one_line("has no named tensors"):
        load_backbone(f"{saved(content, tmp_path)}#test_vit")


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["davit_tiny", "crossvit_tiny_240", "naflexvit_base_patch16_gap"])
def test_timm_names(name: str) -> None:
    """Names that other software uses for other things may be timm's own: blocks of blocks, a norm
    of the pooled features."""
    own = outline(NetworkConfig(name=name)).state_dict()
    zero = torch.zeros(1)
    empty = {f"module.{key}": zero.expand(value.shape) for key, value in own.items()}
    match, _ = foreign_state(files.Weights("x.pth", empty), name)
    assert not match.problem
    assert match.state.keys() == own.keys()
