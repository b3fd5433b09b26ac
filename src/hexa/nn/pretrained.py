"""Trained backbones: from whatever holds one to a network of pixels -> features, and back to a file."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import timm
import torch
import yaml
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import Normalize
from hexa.runtime.random import Stream

State = dict[str, Tensor]
WEIGHTS = "backbone.safetensors"

#: Where the query encoder's backbone sits in other layouts, longest first; what is beside it there is no backbone.
PREFIXES = ("module.encoder_q.", "encoder_q.", "query.backbone.", "module.backbone.", "backbone.", "module.")
#: A classifier or projection head, in any of them.
HEADS = ("fc.", "head.", "classifier.", "projection_head.", "prototypes.")


class Backbone(nn.Module):
    """A trained network with everything needed to use it.

    forward: images in [0, 1], [B, 3, S, S] -> features [B, num_features]; it normalises inside. `network` is the plain
    torchvision or timm network with the main batch-norms, of normalised images.
    mean, std: of each channel. image_size: pixels it was trained at. info: recipe, encoder, branch, step …
    """

    def __init__(
        self,
        network: nn.Module,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        image_size: int,
        network_config: NetworkConfig,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.normalize = Normalize(mean, std)
        self.mean, self.std, self.image_size = mean, std, image_size
        self.network_config = network_config
        self.info: dict[str, Any] = dict(info or {})
        self.num_features = 3 * image_size**2 if network_config.name == "pixels" else backbones.num_features(network)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(self.normalize(images))
        return features

    def content_hash(self) -> str:
        """SHA-256 over names and values of the network's state, the first 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def save_backbone(backbone: Backbone, path: Path | str) -> Path:
    """Write a safetensors file with plain key names; its metadata says how to rebuild the network. At once or not."""
    path = Path(path)
    metadata = {
        "format": "hexa backbone 1",
        "network": backbone.network_config.model_dump_json(),
        "mean": json.dumps(backbone.mean),
        "std": json.dumps(backbone.std),
        "image_size": str(backbone.image_size),
        "info": json.dumps(backbone.info),
    }
    state = {name: value.detach().cpu().contiguous() for name, value in backbone.network.state_dict().items()}
    temporary = path.with_name(path.name + ".tmp")
    safetensors.torch.save_file(state, temporary, metadata)
    os.replace(temporary, path)
    return path


def load_backbone(spec: str | Path | Backbone, seed: int = 0) -> Backbone:
    """The backbone that `spec` names, in eval mode.

    A run folder (its backbone.safetensors, or its newest checkpoint while it trains) · a .safetensors file · a
    checkpoint (.pth, .pth.tar, .pt: MoCo, torchvision or timm names) · timm:NAME · random:NAME, the network of a run
    folder, of timm, or small-resnet-W-W-W, with weights drawn from `seed` · pixels:SIZE.
    Only tensors are read from files, never code. Raises UserError in one line.
    """
    if isinstance(spec, Backbone):
        return spec
    text = str(spec)
    kind, _, name = text.partition(":")
    if kind == "random":
        return _random(name, seed).eval()
    if kind == "pixels":
        return _pixels(name)
    if kind == "timm":
        return _timm(name).eval()
    path = Path(text)
    if path.is_dir():
        return _of_run(path).eval()
    if not path.is_file():
        raise UserError(f"{text}: no such run, file or network; give a run folder, a file, timm:NAME or random:NAME")
    loaded = _of_safetensors(path) if path.suffix == ".safetensors" else _of_state(_tensors_of(path), text)
    return loaded.eval()


# -- by name ----------------------------------------------------------------------------------------------------------


def _random(name: str, seed: int) -> Backbone:
    """The network of a run, of timm, or small-resnet-W-W-W, with weights drawn from the seed."""
    size = 224
    if (Path(name) / "config.yaml").is_file():
        fields = yaml.safe_load((Path(name) / "config.yaml").read_text())
        config, size = NetworkConfig.model_validate(fields["network"]), int(fields["views"]["size"])
    elif name.startswith("small-resnet-") and all(width.isdigit() for width in name.split("-")[2:]):
        config, size = NetworkConfig(name="small-resnet", widths=tuple(map(int, name.split("-")[2:]))), 32
    elif name in timm.list_models():
        config = NetworkConfig(name=name)
    else:
        remedy = nearest(name, timm.list_models()).split(":")[0]
        raise UserError(f"random:{name}: neither a run folder, a timm network nor small-resnet-16-32-64; {remedy}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Stream(seed).child("random backbone").integer())
        network = backbones.build(config)
    return Backbone(network, config.mean, config.std, size, config, {"encoder": "random", "seed": seed})


def _pixels(size: str) -> Backbone:
    """The pixels themselves as features: what every backbone should beat."""
    if not size.isdigit() or int(size) < 1:
        raise UserError(f"pixels:{size}: give the side in pixels, such as pixels:16")
    config = NetworkConfig(name="pixels", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return Backbone(nn.Flatten(), config.mean, config.std, int(size), config, {"encoder": "pixels"})


def _timm(name: str) -> Backbone:
    if name not in timm.list_models() and name not in timm.list_pretrained():
        raise UserError(f"timm:{name}: timm has no such model; {nearest(name, timm.list_models()).split(':')[0]}")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"timm:{name}: its weights are neither stored here nor could be fetched ({reason})") from None
    given = timm.data.resolve_model_data_config(network)
    mean, std = (cast(tuple[float, float, float], tuple(given[key])) for key in ("mean", "std"))
    config = NetworkConfig(name=name.split(".")[0], mean=mean, std=std)
    return Backbone(network, mean, std, int(given["input_size"][-1]), config, {"encoder": f"timm:{name}"})


# -- of files ---------------------------------------------------------------------------------------------------------


def _of_run(folder: Path) -> Backbone:
    if (folder / WEIGHTS).is_file():
        return _of_safetensors(folder / WEIGHTS)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: neither {WEIGHTS} nor config.yaml is in it; give the folder of a run")
    fields = yaml.safe_load((folder / "config.yaml").read_text())
    for path in sorted((folder / "checkpoints").glob("step-*.pt"), reverse=True):
        try:
            state = _tensors_of(path)
        except UserError:
            continue
        config = NetworkConfig.model_validate(fields["network"])
        network = backbones.build(config)
        kept = {n.removeprefix("query.backbone."): v for n, v in state.items() if n.startswith("query.backbone.")}
        _load(network, kept or state, str(path))
        info = {"recipe": fields["recipe"], "encoder": "query", "branch": "main", "checkpoint": path.name}
        return Backbone(network, config.mean, config.std, int(fields["views"]["size"]), config, info)
    raise UserError(f"{folder}: the run has no backbone yet; go on with `hexa resume {folder}`")


def _of_safetensors(path: Path) -> Backbone:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None
    if "network" not in metadata:
        return _of_state(state, str(path))
    config = NetworkConfig.model_validate_json(metadata["network"])
    network = backbones.build(config)
    _load(network, state, str(path))
    mean, std = (cast(tuple[float, float, float], tuple(json.loads(metadata[key]))) for key in ("mean", "std"))
    return Backbone(network, mean, std, int(metadata["image_size"]), config, json.loads(metadata["info"]))


def _tensors_of(path: Path) -> State:
    """All tensors of a checkpoint, by dotted name. Reads tensors only: a file that wants to run code is refused."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0][:160]
        raise UserError(f"{path}: refused, since reading it would run code or it is no checkpoint ({reason})") from None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a whole checkpoint ({' '.join(str(error).split())[:160]})") from None
    for key in ("state_dict", "model", "method", "state"):
        while isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
    state = {str(n): v for n, v in data.items() if isinstance(v, Tensor)} if isinstance(data, Mapping) else {}
    if not state:
        raise UserError(f"{path}: holds no tensors by name; give a checkpoint with a state_dict")
    return state


def _of_state(state: State, where: str) -> Backbone:
    """The backbone of a state dict in somebody's layout, recognised by its key names."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in state)), "")
    kept = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    kept = {n: v for n, v in kept.items() if not n.startswith(HEADS)}
    config = _recognise(kept, where)
    network = backbones.build(config)
    _load(network, kept, where)
    size = 32 if config.small_stem else 224
    return Backbone(network, config.mean, config.std, size, config, {"encoder": prefix.rstrip(".") or "state dict"})


def _recognise(state: State, where: str) -> NetworkConfig:
    """Which ResNet has these tensors: by the number of blocks a stage, and the kind of block."""
    stem = state.get("conv1.weight")
    if stem is None:
        raise UserError(
            f"{where}: no ResNet by its key names ({', '.join(list(state)[:4])} …); give safetensors of ours"
        )
    depths = tuple(len({n.split(".")[1] for n in state if n.startswith(f"layer{i}.")}) for i in range(1, 5))
    bottleneck = "layer1.0.conv3.weight" in state
    names: dict[tuple[tuple[int, ...], bool], str] = {
        ((2, 2, 2, 2), False): "resnet18",
        ((3, 4, 6, 3), False): "resnet34",
        ((3, 4, 6, 3), True): "resnet50",
        ((3, 4, 23, 3), True): "resnet101",
        ((3, 8, 36, 3), True): "resnet152",
    }
    if (depths, bottleneck) not in names:
        raise UserError(f"{where}: a ResNet of {depths} blocks a stage is none that is known; give safetensors of ours")
    return NetworkConfig(name=names[depths, bottleneck], small_stem=stem.shape[-1] == 3)


def _load(network: nn.Module, state: State, where: str) -> None:
    """Strictly, but for further batch-norm sets; unmatched keys are listed."""
    own = network.state_dict()
    absent = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    further = [n for n in state if n not in own and n.rsplit(".", 2)[0] + "." + n.rsplit(".", 1)[-1] not in own]
    wrong = [name for name in own if name in state and state[name].shape != own[name].shape]
    for what, found in (("lacks", absent), ("has unknown", further), ("has misshapen", wrong)):
        if found:
            listed = ", ".join(found[:8]) + (f" … ({len(found)} in all)" if len(found) > 8 else "")
            raise UserError(f"{where}: {what} {listed}; it is not the state of this network")
    network.load_state_dict({name: state[name] for name in own if name in state}, strict=False)


def describe(backbone: Backbone) -> dict[str, Any]:
    """What a result says of its backbone: hash, network, encoder, branch, step."""
    return {
        "hash": backbone.content_hash(),
        "network": backbone.network_config.name,
        "num_features": backbone.num_features,
        "image_size": backbone.image_size,
        **{"encoder": "query", "branch": "main", **backbone.info},
    }


def same_state(first: nn.Module, second: nn.Module) -> bool:
    """Whether two networks hold the same tensors under the same names."""
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())
