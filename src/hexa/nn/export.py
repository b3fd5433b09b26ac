"""A trained backbone for other software, loaded back and compared before success is claimed (DESIGN §3.4, law 8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import timm
import torch
import torchvision
from torch import nn

from hexa.config import UserError, nearest
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.pretrained import Backbone, load_backbone, save_backbone
from hexa.runtime.random import Stream


def export(run: str | Path | Backbone, to: str, out: Path | str) -> dict[str, Any]:
    """Write the backbone for `to`, load the file into the plain network strictly, and compare features.

    timm: a state dict for timm.create_model(NAME, num_classes=0) · torchvision: for torchvision.models.NAME with fc =
    Identity · safetensors: our own file. Networks with a small-image stem are compared in the plain network with that
    stem; those of ours that others lack say so. Raises UserError; nothing is left behind then.
    Returns what was checked: target, keys, the largest difference of features on random images.
    """
    if to not in TARGETS:
        raise UserError(f"--to {to}: {nearest(to, TARGETS)}")
    backbone = load_backbone(run)
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out}: a folder; give the name of a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp{out.suffix}")
    try:
        reloaded = TARGETS[to](backbone, temporary)
        difference = largest_difference(backbone, reloaded)
        if not difference <= 1e-5:
            raise UserError(f"--to {to}: features differ by {difference:g} after loading back; nothing was written")
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "target": to,
        "network": describe_network(backbone.network_config),
        "tensors": len(backbone.network.state_dict()),
        "largest_difference": difference,
        "bytes": out.stat().st_size,
    }


def describe_network(config: NetworkConfig) -> str:
    """How to build the network the exported weights belong to."""
    if config.name == "small-resnet":
        return f"hexa.nn.backbones.SmallResNet({config.widths}, stem_stride={config.stem_stride})"
    return config.name + (" with a 3×3 stem of stride 1 and no max-pool" if config.small_stem else "")


@torch.no_grad()
def largest_difference(backbone: Backbone, network: nn.Module) -> float:
    """max |f(x) − g(x)| over features of random images, relative to the largest feature; fp32, CPU, eval mode."""
    generator = Stream(0).child("export").generator()
    images = torch.rand(4, 3, backbone.image_size, backbone.image_size, generator=generator)
    expected = backbone.cpu().eval()(images)
    found = network.cpu().eval()(backbone.normalize(images))
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def _to_timm(backbone: Backbone, path: Path) -> nn.Module:
    config = backbone.network_config
    return _state_dict(backbone, path, lambda: backbones.build(config) if _is_ours(config, "timm") else _timm(config))


def _to_torchvision(backbone: Backbone, path: Path) -> nn.Module:
    config = backbone.network_config
    if _is_ours(config, "torchvision"):
        return _state_dict(backbone, path, lambda: backbones.build(config))
    if config.name not in torchvision.models.list_models():
        raise UserError(f"--to torchvision: it has no network '{config.name}'; export --to timm or safetensors")

    def build() -> nn.Module:
        network = cast(nn.Module, torchvision.models.get_model(config.name, weights=None))
        if not hasattr(network, "fc"):
            raise UserError(f"--to torchvision: the names of '{config.name}' differ there; export --to timm")
        network.fc = nn.Identity()
        return backbones.use_small_stem(network, config.name) if config.small_stem else network

    return _state_dict(backbone, path, build)


def _to_safetensors(backbone: Backbone, path: Path) -> nn.Module:
    save_backbone(backbone, path)
    return load_backbone(path).network


def _state_dict(backbone: Backbone, path: Path, build: Callable[[], nn.Module]) -> nn.Module:
    """Write the plain state dict, and read it strictly into a network built anew."""
    network = build()
    state = {name: value.detach().cpu().contiguous() for name, value in backbone.network.state_dict().items()}
    torch.save(state, path)
    network.load_state_dict(torch.load(path, weights_only=True), strict=True)
    return network


def _timm(config: NetworkConfig) -> nn.Module:
    network = cast(nn.Module, timm.create_model(config.name, num_classes=0))
    return backbones.use_small_stem(network, config.name) if config.small_stem else network


def _is_ours(config: NetworkConfig, target: str) -> bool:
    if config.name == "pixels":
        raise UserError(f"--to {target}: pixels are no network")
    return config.name == "small-resnet"


TARGETS: dict[str, Callable[[Backbone, Path], nn.Module]] = {
    "timm": _to_timm,
    "torchvision": _to_torchvision,
    "safetensors": _to_safetensors,
}
