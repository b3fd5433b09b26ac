"""Folders that transformers, timm and OpenCLIP write give the features of the library that wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import _hub as timms_hub
from torch import Tensor, nn

from hexa.config import UserError
from hexa.nn.normalize import IMAGENET_MEAN
from hexa.weights import folders
from hexa.weights.export import export
from hexa.weights.pretrained import load_backbone
from tests.refusals import one_line
from tests.torture.harness import forked
from tests.weights.test_foreign import assert_features, saved
from tests.weights.test_layouts import stirred

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


class Reference(nn.Module):
    """Features [B, D] that a function computes from images."""

    def __init__(self, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images)


def pooled(model: Any) -> nn.Module:
    """The features of a model of transformers: CLIP's own, the class token, or pooled maps."""

    def features(images: Tensor) -> Tensor:
        made = model.eval()(images)
        if "CLIP" in type(model).__name__:
            return made.pooler_output
        hidden = made.last_hidden_state
        return hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))

    return Reference(features)


def shaken(model: Any) -> Any:
    """Give every parameter random values, since many are 0 or 1 initially."""
    torch.manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return stirred(model)


def make(kind: str) -> Any:
    """A tiny model of transformers with random weights."""
    hub = pytest.importorskip("transformers")
    gated = "gated" in kind
    if "dinov2" in kind:
        registers = "registers" in kind
        name = "Dinov2WithRegisters" if registers else "Dinov2"
        config = getattr(hub, f"{name}Config")(**TINY, use_swiglu_ffn=gated)
        return shaken(getattr(hub, f"{name}Model")(config))
    if "dinov3" in kind:
        act = "silu" if gated else "gelu"
        fields = TINY | {"intermediate_size": 64, "num_register_tokens": 3, "hidden_act": act}
        return shaken(hub.DINOv3ViTModel(hub.DINOv3ViTConfig(**fields, use_gated_mlp=gated)))
    if kind == "vit":
        return shaken(hub.ViTModel(hub.ViTConfig(**TINY, intermediate_size=64)))
    if kind == "clip":
        config = hub.CLIPVisionConfig(**TINY, intermediate_size=64)
        return shaken(hub.CLIPVisionModel(config))
    sizes = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    return stirred(hub.ResNetModel(hub.ResNetConfig(**sizes)))


KINDS = ("dinov2", "dinov2 gated", "dinov2 registers", "dinov2 registers gated")
KINDS = (*KINDS, "dinov3", "dinov3 gated", "vit", "clip", "resnet")


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_folders(tmp_path: Path, kind: str) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    processor = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "size": {"shortest_edge": 40},
        "crop_size": {"height": 32, "width": 32},
        "resample": 3,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    backbone = load_backbone(tmp_path)
    how = backbone.preparation
    assert how.mean == (0.1, 0.2, 0.3)
    assert how.std == (0.4, 0.5, 0.6)
    assert how.size == 32
    assert how.crop == 0.8
    assert how.interpolation == "bicubic"
    expected = pooled(model)
    assert_features(backbone, expected)
    assert_features(load_backbone(tmp_path / "model.safetensors"), expected)
    # as a state that was saved in memory, whose names differ since transformers 5
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_features(load_backbone(tmp_path), expected)


def test_transformers_masked_autoencoder(tmp_path: Path) -> None:
    """The model of transformers shuffles patches, so its features are compared with a ViT of the
    same weights."""
    hub = pytest.importorskip("transformers")
    decoder = {
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 1,
        "decoder_intermediate_size": 16,
    }
    config = hub.ViTMAEConfig(
        **TINY, intermediate_size=64, **decoder, decoder_num_attention_heads=2
    )
    model = shaken(hub.ViTMAEForPreTraining(config))
    model.save_pretrained(tmp_path)
    plain = hub.ViTModel(hub.ViTConfig(**TINY, intermediate_size=64), add_pooling_layer=False)
    plain.load_state_dict(model.vit.state_dict(), strict=True)
    assert_features(load_backbone(tmp_path), pooled(plain))


def test_transformers_clip_towers(tmp_path: Path) -> None:
    hub = pytest.importorskip("transformers")
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    config = hub.CLIPConfig(
        vision_config=TINY | {"intermediate_size": 64}, text_config=text | {"intermediate_size": 8}
    )
    model = shaken(hub.CLIPModel(config))
    model.save_pretrained(tmp_path)
    assert_features(load_backbone(tmp_path), pooled(model.vision_model))
    path = tmp_path / "processor_config.json"
    path.write_text('{"image_processor": [1]}')
    assert load_backbone(tmp_path).mean == IMAGENET_MEAN
    inside = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    path.write_text(json.dumps({"image_processor": inside}))
    assert load_backbone(tmp_path).mean == pytest.approx(inside["image_mean"])
    # a config may leave out the values of CLIP
    whole = folders._of_transformers(hub.CLIPVisionConfig().to_dict(), tmp_path)
    assert folders._of_transformers({"model_type": "clip_vision_model"}, tmp_path) == whole


def test_weight_shards(tmp_path: Path) -> None:
    model = make("vit")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_features(load_backbone(tmp_path), pooled(model))
    first = min(tmp_path.glob("model-*.safetensors"))
    first.unlink()
    with one_line(rf"lacks {first.name}, which model\.safetensors\.index\.json lists"):
        load_backbone(tmp_path)


def test_index_outside_folder(tmp_path: Path) -> None:
    """An index cannot refer to files elsewhere."""
    folder = tmp_path / "model"
    make("vit").save_pretrained(folder)
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = {"weight_map": {"layernorm.bias": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with one_line("has no weight_map of files in this folder"):
        load_backbone(folder)


def test_folder_code_refusal(tmp_path: Path) -> None:
    """No code of a folder is run."""
    make("vit").save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["auto_map"] = {"AutoModel": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    assert load_backbone(tmp_path).num_features == 32


@pytest.mark.parametrize("safe", [True, False])
def test_timm_folders(tmp_path: Path, safe: bool) -> None:
    options = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3, "global_pool": "avg"}
    torch.manual_seed(0)
    network = stirred(timm.create_model("vit_small_patch16_224", num_classes=5, **options))
    network.pretrained_cfg["mean"] = (0.1, 0.2, 0.3)
    timms_hub.save_for_hf(
        network, str(tmp_path / "model"), model_args=options, safe_serialization=safe
    )
    theirs = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True, num_classes=0)
    for spec in (tmp_path / "model", f"local-dir:{tmp_path / 'model'}"):
        backbone = load_backbone(spec)
        assert backbone.image_size == 64
        assert_features(backbone, theirs)
    report = export(tmp_path / "model", "timm", tmp_path / "out.safetensors")
    names: dict[str, Any] = {}
    exec(report["load"], names)
    assert_features(backbone, names["network"])


@pytest.mark.parametrize("quick", [True, False])
def test_openclip_folders(tmp_path: Path, quick: bool) -> None:
    open_clip = pytest.importorskip("open_clip")
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    vision = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2, "head_width": 32}
    model = shaken(open_clip.model.CLIP(16, vision, text, quick_gelu=quick))
    fields = {
        "model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text, "quick_gelu": quick},
        "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(fields))
    saved(model.state_dict(), tmp_path, "open_clip_pytorch_model.bin")
    model.visual.proj = None
    backbone = load_backbone(tmp_path)
    assert backbone.mean == (0.1, 0.2, 0.3)
    assert_features(backbone, model.visual)


VIT = {"model_type": "vit", **TINY, "intermediate_size": 64}
OPEN_CLIP = {"width": 64, "layers": 2, "head_width": 32}
TIMM = {"input_size": [3, 160, 160], "mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        (
            "config.json",
            VIT | {"hidden_size": 0},
        ),
        ("config.json", VIT | {"num_attention_heads": 0}),
        (
            "config.json",
            {"architecture": "test_vit", "pretrained_cfg": TIMM | {"input_size": []}},
        ),
        ("config.json", {"architecture": "test_vit", "model_args": {"num_heads": 0}}),
        (
            "open_clip_config.json",
            {"model_cfg": {"vision_cfg": [1]}},
        ),
        ("open_clip_config.json", {"model_cfg": {"vision_cfg": OPEN_CLIP | {"head_width": 0.5}}}),
        (
            "open_clip_config.json",
            {"model_cfg": {"vision_cfg": OPEN_CLIP}, "preprocess_cfg": [1]},
        ),
    ],
)
def test_absurd_fields(tmp_path: Path, file: str, fields: dict[str, Any]) -> None:
    """Fields that describe no network are one line that names the folder."""
    saved({"patch_embed.proj.weight": torch.ones(32, 3, 8, 8)}, tmp_path, "pytorch_model.bin")
    (tmp_path / file).write_text(json.dumps(fields))
    with one_line(f"^{tmp_path}"):
        load_backbone(tmp_path)


def test_absurd_width(tmp_path: Path) -> None:
    """A text as a factor is not repeated."""
    saved({"patch_embed.proj.weight": torch.ones(32, 3, 8, 8)}, tmp_path, "pytorch_model.bin")
    fields = VIT | {"intermediate_size": None, "hidden_size": 10**9, "mlp_ratio": "x"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = forked(lambda: load_backbone(tmp_path))
    assert isinstance(found.raised, UserError)
    assert found.megabytes < 100
