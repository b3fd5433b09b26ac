"""Export of a backbone for other software, verified by loading the file and comparing features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Unpack, cast

import safetensors.torch
import timm.data
import torch
import torchvision
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.console import Progress, silent
from hexa.runtime.files import by_plain_name, write_whole
from hexa.runtime.random import Stream
from hexa.weights import onnx_file
from hexa.weights.preparation import Given
from hexa.weights.pretrained import Backbone, load_backbone, serialized

#: Largest allowed difference of features, relative to the largest feature.
TOLERANCE = 1e-5
#: The same for onnxruntime, which fuses operations and changes the order of additions.
ONNX_TOLERANCE = 1e-4
#: Targets of an export, and the suffix of the file.
TARGETS = {
    "timm": ".safetensors",
    "torchvision": ".safetensors",
    "safetensors": ".safetensors",
    "onnx": ".onnx",
}


def export(
    run: str | Path | Backbone,
    to: str,
    out: Path | str,
    *,
    progress: Progress = silent,
    **given: Unpack[Given],
) -> dict[str, Any]:
    """Write the backbone for `to`, load the file strictly into the plain network, and compare
    features.

    timm: the state of timm.create_model(NAME, num_classes=0) · torchvision: the state of
    torchvision.models.NAME with fc = Identity · safetensors: hexa's own file · onnx: a graph from
    pixels in [0, 1] to features (`onnx_file.write`), compared with onnxruntime. The metadata of a
    .safetensors file describes how to rebuild the network and how to normalise. A network with the
    small-image stem is loaded into the plain one with that stem; small-resnet and networks with
    two streams support only safetensors and onnx.
    given: mean, std, size, crop or interpolation instead of the backbone's own.
    progress: receives the stages.
    Raises UserError; then an existing file is unchanged, and no new one is left.

    Returns target, network, tensors, largest_difference of features, bytes, and load: a line of
    Python that reads the file.
    """
    out = Path(out)
    _check_names(to, out)
    progress("reading the weights", 0, 0)
    backbone = load_backbone(run, **given)
    config = backbone.network_config
    if config.name == "pixels" or (config.name == "python" and to != "onnx"):
        raise UserError(
            f"{run}: not a network that hexa can build; export a run or a file of weights"
        )
    network = _plain(config, to)  # raises before anything is written
    report: dict[str, Any] = {"target": to, "network": config.name}

    def written(file: BinaryIO) -> None:
        """Write the file, load it back and compare features."""
        temporary = Path(file.name)
        allowed = TOLERANCE
        progress(f"writing the network for {to}", 0, 0)
        if network is None:
            allowed = ONNX_TOLERANCE
            report["tensors"] = onnx_file.write(backbone, temporary)
            progress("computing features with onnxruntime", 0, 0)
            difference = largest_difference(backbone, partial(onnx_file.features, temporary))
        else:
            file.write(serialized(backbone))
            file.flush()
            # load into a new network: only the content of the file is compared
            network.load_state_dict(_read(temporary), strict=True)
            report["tensors"] = len(network.state_dict())
            whole = nn.Sequential(backbone.normalize, network.cpu().eval())
            difference = largest_difference(backbone, whole)
        if not difference <= allowed:
            raise UserError(
                f"--to {to}: features differ by {difference:g} after loading back; no file was "
                "written"
            )
        report["largest_difference"] = difference

    write_whole(out, written)
    if "note" in backbone.info:
        report["note"] = backbone.info["note"]
    if backbone.preparation.crop < 1 and to != "onnx":
        size = backbone.image_size
        report["crop"] = (
            f"hexa takes square images of at most {size} px whole; others do with --crop 1"
        )
    return report | {"bytes": out.stat().st_size, "load": how_to_load(backbone, to, out)}


def _check_names(to: str, out: Path) -> None:
    """Raise UserError for an unknown target, a wrong suffix of the file, or missing packages."""
    if to not in TARGETS:
        raise UserError(f"--to {to}: unknown target; {nearest(to, TARGETS)}")
    if out.suffix != TARGETS[to]:
        raise UserError(f"{out}: the name of a file for {to} must end in {TARGETS[to]}")
    if to == "onnx":
        onnx_file.check_packages()


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the file, read by the safetensors library."""
    with by_plain_name(path) as name:
        return safetensors.torch.load_file(name)


def _created(config: NetworkConfig, more: str = "") -> str:
    """Return the call that builds a timm network, as text."""
    return f"timm.create_model({config.name!r}, num_classes=0{_options(config)}{more})"


def _options(config: NetworkConfig) -> str:
    """Return additional arguments of timm.create_model, as text."""
    given = config.options | ({} if config.channels == 3 else {"in_chans": config.channels})
    given.pop("stem_padding", None)
    eps = given.pop("norm_eps", None)
    texts = [f", {name}={value!r}" for name, value in given.items()]
    if eps is not None:
        texts.append(f", norm_layer=functools.partial(timm.layers.LayerNorm, eps={eps!r})")
    return "".join(texts)


def how_to_load(backbone: Backbone, to: str, out: Path) -> str:
    """Return a line of Python that loads an exported file in its target library.

    For timm, `num_classes` may be set for a new head, unless the stem or the number of channels
    differs from timm's; timm.data.resolve_model_data_config(network) then also contains the
    preparation of images.
    """
    file = repr(str(out))
    config = backbone.network_config
    if to == "onnx":
        return (
            f"import onnxruntime; session = onnxruntime.InferenceSession({file})  # input: "
            f"{onnx_file.described(backbone)}"
        )
    if to == "safetensors":
        return f"import hexa; network = hexa.load_backbone({file}).network"
    if to == "timm" and not config.small_stem and config.channels == 3:
        # num_classes=0 describes the file: otherwise timm expects a classifier in it
        overlay = f"dict(file={file}, num_classes=0{_preparation(backbone)})"
        made = _created(config, f", pretrained=True, pretrained_cfg_overlay={overlay}")
        return f"import functools, timm; network = {made}"
    made = _created(config)
    if to == "torchvision":
        made = f"torchvision.models.{config.name}(); network.fc = torch.nn.Identity()"
    if config.small_stem:
        padding = config.options.get("stem_padding", 1)
        size = f"{config.channels}, network.conv1.out_channels, 3, padding={padding}, bias=False"
        made += f"; network.maxpool = torch.nn.Identity(); network.conv1 = torch.nn.Conv2d({size})"
    return (
        f"import functools, torch, safetensors.torch, {to}; network = {made}; "
        f"network.load_state_dict(safetensors.torch.load_file({file}))"
    )


def _preparation(backbone: Backbone) -> str:
    """Return additional entries of timm's pretrained_cfg_overlay, as text: the values that differ
    from timm's.

    timm 1.0.29 would read the files of some ViTs as JAX weights (`custom_load`).
    """
    own = backbone.preparation
    given = {
        "input_size": (3, own.size, own.size),
        "crop_pct": own.crop,
        "interpolation": own.interpolation,
        "mean": own.mean,
        "std": own.std,
        "custom_load": False,
    }
    theirs = {"custom_load": False} | cast(Any, backbone.network).pretrained_cfg
    theirs |= timm.data.resolve_model_data_config(backbone.network)
    return "".join(f", {name}={value!r}" for name, value in given.items() if theirs[name] != value)


@torch.no_grad()
def largest_difference(backbone: Backbone, other: Callable[[Tensor], Tensor]) -> float:
    """Return max |f(x) − g(x)| over features of random images, relative to the largest feature;
    fp32, CPU, eval mode.

    other: pixels in [0, 1] -> features.
    """
    size = backbone.image_size
    images = torch.rand(
        4, len(backbone.mean), size, size, generator=Stream(0).child("export").generator()
    )
    expected = backbone.cpu().eval()(images)
    features = other(images)
    if features.shape != expected.shape:
        return float("inf")
    return float((features - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def is_own(config: NetworkConfig) -> bool:
    """Return True if no other library has this network."""
    return config.name == "small-resnet" or config.streams != "one"


def _plain(config: NetworkConfig, to: str) -> nn.Module | None:
    """Return the network that a file for `to` must load into; None for onnx. Raises UserError if
    there is none."""
    if to == "onnx":
        return None
    if is_own(config) and to != "safetensors":
        problem = "no other library has small-resnet, or networks of two streams"
        raise UserError(f"--to {to}: {problem}; export --to safetensors or onnx")
    if to == "torchvision" and config.channels != 3:
        problem = f"its networks take 3 channels, this one {config.channels}"
        raise UserError(f"--to {to}: {problem}; export --to timm or onnx")
    if to != "torchvision":
        return backbones.build(config)
    network: nn.Module | None = None
    if config.name in torchvision.models.list_models():
        network = torchvision.models.get_model(config.name, weights=None)
    has_options = bool(config.options.keys() - {"stem_padding"})
    if not isinstance(network, torchvision.models.ResNet) or has_options:
        problem = f"hexa exports only torchvision's plain ResNets, not {config.name}"
        raise UserError(f"--to {to}: {problem}; export --to timm or safetensors")
    network.fc = nn.Identity()
    if not config.small_stem:
        return cast(nn.Module, network)
    padding = cast(int, config.options.get("stem_padding", 1))
    return backbones.use_small_stem(network, config.name, padding)
