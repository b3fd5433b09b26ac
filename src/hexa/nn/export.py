"""Exports a backbone for other software, after loading the file back and comparing features (DESIGN §3.4, law 8)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Unpack, cast

import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import arrays, backbones, onnx_file
from hexa.nn.backbones import NetworkConfig
from hexa.nn.layouts import of_detectron2, to_detectron2
from hexa.nn.preparation import Given
from hexa.nn.pretrained import Backbone, load_backbone, serialized
from hexa.runtime.files import by_plain_name, write_whole
from hexa.runtime.random import Stream

#: Largest allowed difference of features, relative to the largest feature.
TOLERANCE = 1e-5
#: The same for onnxruntime, which fuses operations and adds in another order.
ONNX_TOLERANCE = 1e-4
#: A batch-norm's count of batches.
_COUNTER = "num_batches_tracked"


def export(run: str | Path | Backbone, to: str, out: Path | str, **given: Unpack[Given]) -> dict[str, Any]:
    """Write the backbone for `to`, load the file strictly into the plain network, and compare features.

    timm: the state of timm.create_model(NAME, num_classes=0) · torchvision: of torchvision.models.NAME with fc =
    Identity · safetensors: our own file · detectron2: a .pkl of arrays with its names, for its ResNets with the stride
    in the 3×3 convolutions · onnx: a graph from pixels in [0, 1] to features (`onnx_file.write`), compared with
    onnxruntime. A file named .safetensors has metadata on how to rebuild the network and how to normalise; any other
    name gives torch's own format, for plain networks only. A network with the small-image stem is loaded into the plain
    one with that stem; small-resnet into our own class; two streams fit safetensors and onnx alone. given: mean, std,
    size, crop or interpolation instead of the backbone's own, for files with metadata. Raises UserError; then an
    existing file is unchanged, and no new one left.

    Returns target, network (how to build it), tensors, largest_difference of features, bytes, and load: a line of
    Python that reads the file.
    """
    if to not in (*TARGETS, "onnx"):
        raise UserError(f"--to {to}: unknown target; {nearest(to, (*TARGETS, 'onnx'))}")
    out = Path(out)
    if out.is_dir():
        raise UserError(f"{out}: is a folder; give the name of a file")
    if to == "safetensors" and out.suffix != ".safetensors":
        raise UserError(f"{out}: the name of a safetensors file must end in .safetensors")
    for target, suffix in (("detectron2", ".pkl"), ("onnx", ".onnx")):
        if to == target and out.suffix != suffix:
            raise UserError(f"{out}: the name of a file for {target} must end in {suffix}")
        if to != target and out.suffix == suffix:
            raise UserError(f"{out}: a name that ends in {suffix} is for --to {target}; give another one")
    if to == "onnx":
        onnx_file.check_packages()
    backbone = load_backbone(run, **given)
    config = backbone.network_config
    if config.name == "pixels" or (config.name == "python" and to != "onnx"):
        raise UserError(f"{run}: not a network that hexa can build; export a run or a file of weights")
    if config.streams != "one" and to not in ("safetensors", "onnx"):
        raise UserError(f"--to {to}: no other library has networks of two streams; export --to safetensors or onnx")
    if config.channels != 3 and to in ("torchvision", "detectron2"):
        raise UserError(
            f"--to {to}: its networks take 3 channels, this one {config.channels}; export --to timm or onnx"
        )
    if config.name == "small-resnet" and out.suffix not in (".safetensors", ".onnx"):
        raise UserError(
            f"--to {to}: no other library has small-resnet, so the file must describe it: name it .safetensors"
        )
    network = None if to == "onnx" else TARGETS[to](config)  # raises before anything is written
    missing = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
    tensors, difference = 0, 0.0

    def written(file: BinaryIO) -> None:
        """Write the file, load it back and compare features."""
        nonlocal tensors, difference
        temporary, allowed = Path(file.name), TOLERANCE
        if network is None:
            tensors, allowed = onnx_file.write(backbone, temporary), ONNX_TOLERANCE
            difference = largest_difference(backbone, partial(onnx_file.features, temporary))
        else:
            _write(backbone, file, out.suffix)
            # into a new network, so that nothing in memory is compared with itself
            _load(network, temporary, out.suffix)
            tensors = len(network.state_dict())
            difference = largest_difference(backbone, nn.Sequential(backbone.normalize, network.cpu().eval()))
        if not difference <= allowed:
            raise UserError(f"--to {to}: features differ by {difference:g} after loading back; nothing was written")

    try:
        write_whole(out, written)
    except BaseException:
        for folder in missing:
            folder.rmdir()
        raise
    return {
        "target": to,
        "network": describe_network(config),
        "tensors": tensors,
        "largest_difference": difference,
        "bytes": out.stat().st_size,
        "load": how_to_load(config, to, out),
    }


def describe_network(config: NetworkConfig) -> str:
    """How to build the network of the exported weights."""
    if config.streams != "one":
        each = describe_network(config.model_copy(update={"streams": "one"}))
        return f"two streams, of L and of a and b, each {each} of 1 or 2 channels"
    if config.name == "small-resnet":
        channels = f", channels={config.channels}" if config.channels != 3 else ""
        return f"hexa.nn.backbones.SmallResNet({config.widths}, stem_stride={config.stem_stride}{channels})"
    options = _options(config)
    name = f"timm.create_model('{config.name}', num_classes=0{options})" if options else config.name
    return name + (" with a 3×3 stem of stride 1 and no max-pool" if config.small_stem else "")


def _options(config: NetworkConfig) -> str:
    """Further arguments of timm.create_model, as text."""
    given = config.options | ({} if config.channels == 3 else {"in_chans": config.channels})
    return "".join(f", {name}={value!r}" for name, value in given.items())


def how_to_load(config: NetworkConfig, to: str, out: Path) -> str:
    """A line of Python that loads an exported file in its target library."""
    file = repr(str(out))
    if to == "onnx":
        return f"import onnxruntime; session = onnxruntime.InferenceSession({file})"
    if to == "detectron2":
        return f"cfg.MODEL.WEIGHTS = {file}"
    if to == "safetensors" or config.name == "small-resnet":
        return f"import hexa; network = hexa.load_backbone({file}).network"
    options = _options(config)
    if to == "timm" and not config.small_stem:
        return (
            f"import timm; network = timm.create_model({config.name!r}, num_classes=0{options}, checkpoint_path={file})"
        )
    if to == "timm":
        steps = ["import timm, torch", f"network = timm.create_model({config.name!r}, num_classes=0{options})"]
    else:
        steps = ["import torch, torchvision", f"network = torchvision.models.{config.name}()"]
        steps.append("network.fc = torch.nn.Identity()")
    if config.small_stem:
        steps.append("network.maxpool = torch.nn.Identity()")
        size = f"{config.channels}, network.conv1.out_channels, 3, padding=1, bias=False"
        steps.append(f"network.conv1 = torch.nn.Conv2d({size})")
    if out.suffix == ".safetensors":
        steps[0] += ", safetensors.torch"
        read = f"safetensors.torch.load_file({file})"
    else:
        read = f"torch.load({file}, weights_only=True)"
    return "; ".join([*steps, f"network.load_state_dict({read})"])


@torch.no_grad()
def largest_difference(backbone: Backbone, other: Callable[[Tensor], Tensor]) -> float:
    """max |f(x) − g(x)| over features of random images, relative to the largest feature; fp32, CPU, eval mode.

    other: pixels in [0, 1] -> features.
    """
    generator = Stream(0).child("export").generator()
    size = backbone.image_size
    images = torch.rand(4, len(backbone.mean), size, size, generator=generator)
    expected = backbone.cpu().eval()(images)
    features = other(images)
    if features.shape != expected.shape:
        return float("inf")
    return float((features - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def _write(backbone: Backbone, file: BinaryIO, suffix: str) -> None:
    state = {name: value.detach().cpu().contiguous() for name, value in backbone.network.state_dict().items()}
    if suffix == ".safetensors":
        file.write(serialized(backbone))
    elif suffix == ".pkl":
        named = {to_detectron2(name): value.numpy() for name, value in state.items() if not name.endswith(_COUNTER)}
        # by its own matching, names need not be complete
        pickle.dump({"model": named, "__author__": "hexa", "matching_heuristics": True}, file)
    else:
        torch.save(state, file)
    file.flush()


def _read(path: Path, suffix: str) -> dict[str, Tensor]:
    """The file as others read it: torch.load or safetensors' own load_file (.pkl: by our own reader)."""
    if suffix == ".pkl":
        return {of_detectron2(name): value for name, value in arrays.tensors(arrays.read(path)["model"]).items()}
    if suffix == ".safetensors":
        with by_plain_name(path) as name:
            return safetensors.torch.load_file(name)
    return cast(dict[str, Tensor], torch.load(path, weights_only=True))


def _load(network: nn.Module, path: Path, suffix: str) -> None:
    """Load strictly, except for the counts of batches, which Detectron2 does not store."""
    counts = {name: value for name, value in network.state_dict().items() if name.endswith(_COUNTER)}
    network.load_state_dict((counts if suffix == ".pkl" else {}) | _read(path, suffix), strict=True)


def _plain_timm(config: NetworkConfig) -> nn.Module:
    return backbones.build(config) if config.name == "small-resnet" else backbones.plain_timm(config)


def _plain_torchvision(config: NetworkConfig) -> nn.Module:
    if config.name == "small-resnet":
        return backbones.build(config)
    if config.options or config.name not in torchvision.models.list_models():
        raise UserError(f"--to torchvision: it has no network '{config.name}'; export --to timm or safetensors")
    network = cast(nn.Module, torchvision.models.get_model(config.name, weights=None))
    if not isinstance(network, torchvision.models.ResNet):
        raise UserError(f"--to torchvision: its '{config.name}' has other tensor names; export --to timm")
    network.fc = nn.Identity()
    return backbones.use_small_stem(network, config.name) if config.small_stem else network


def _plain_resnet(config: NetworkConfig) -> nn.Module:
    network = _plain_torchvision(config) if config.name.startswith("res") and not config.small_stem else None
    if network is None:
        raise UserError(f"--to detectron2: it has no network '{describe_network(config)}', only ResNets and ResNeXts")
    return network


TARGETS: dict[str, Callable[[NetworkConfig], nn.Module]] = {
    "timm": _plain_timm,
    "torchvision": _plain_torchvision,
    "safetensors": backbones.build,
    "detectron2": _plain_resnet,
}
"""Builds the network that a file for each target must load into."""
