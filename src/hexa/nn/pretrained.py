"""Trained backbones: from whatever holds one to a network of pixels -> features, and back to a file."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import safetensors
import safetensors.torch
import timm
import torch
import yaml
from torch import Tensor, nn

from hexa.config import UserError, nearest, reason
from hexa.nn import arrays, backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.external import external
from hexa.nn.layouts import find_backbone, foreign_state, load_strictly
from hexa.nn.normalize import Normalize
from hexa.nn.preparation import CROP, Given, Preparation, of_timm
from hexa.runtime.files import write_whole
from hexa.runtime.random import Stream, global_draws

State = dict[str, Tensor]
WEIGHTS = "backbone.safetensors"
#: Where in a checkpoint the tensors lie, at any depth; the longest way is VISSL's.
_INSIDE = ("state_dict", "classy_state_dict", "base_model", "model", "trunk", "method", "state")
#: What torch's files begin with: a zip archive, or, from before torch 1.6, a pickle.
_CHECKPOINTS = (b"PK", b"\x80")


class Backbone(nn.Module):
    """A trained network with everything needed to use it.

    forward: images in [0, 1], [B, 3, S, S] -> features [B, num_features]; it normalises inside. `network` is the plain
    torchvision or timm network with the main batch-norms, of normalised images.
    mean, std: of each channel. image_size: pixels it was trained at. crop, interpolation: of the images it is evaluated
    on, and origins: where these five come from (`Preparation`). info: recipe, encoder, branch, step …
    Its state_dict is that of `network`, under the plain key names, and loads into the plain network.
    """

    def __init__(
        self,
        network: nn.Module,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        image_size: int,
        network_config: NetworkConfig,
        info: Mapping[str, Any] | None = None,
        crop: float = CROP,
        interpolation: str = "bilinear",
        origins: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.normalize = Normalize(mean, std)
        self.mean, self.std, self.image_size = mean, std, image_size
        self.crop, self.interpolation, self.origins = crop, interpolation, dict(origins or {})
        self.deviations: dict[str, list[Any]] = {}
        self.network_config = network_config
        self.info: dict[str, Any] = dict(info or {})
        self.num_features = 3 * image_size**2 if network_config.name == "pixels" else backbones.num_features(network)
        self.register_state_dict_post_hook(_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_inner_names)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(self.normalize(images))
        return features

    @classmethod
    def of(
        cls, network: nn.Module, preparation: Preparation, config: NetworkConfig, info: Mapping[str, Any]
    ) -> Backbone:
        """The backbone that this network is if images are prepared so."""
        given = preparation
        config = config.model_copy(update={"mean": given.mean, "std": given.std})
        how = (given.crop, given.interpolation, given.origins)
        return cls(network, given.mean, given.std, given.size, config, info, *how)

    @property
    def preparation(self) -> Preparation:
        """How images are prepared for it."""
        return Preparation(self.mean, self.std, self.image_size, self.crop, self.interpolation, self.origins)

    def prepared(self, **given: Unpack[Given]) -> Backbone:
        """The same network, its images prepared as a user says; `deviations` holds {name: [before, after]}.

        Raises UserError for values that can't be, and for a size that the network can't take.
        """
        preparation, deviations = self.preparation.changed(given)
        made = Backbone.of(self.network, preparation, self.network_config, self.info)
        made.deviations = self.deviations | deviations
        if "size" in deviations and self.network_config.name != "pixels":
            made.num_features = backbones.num_features_at(made.network, made.image_size)
        return made.train(self.training)

    def content_hash(self) -> str:
        """SHA-256 over names and values of the network's state, the first 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def _plain_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}network.")]:
        state[prefix + name.removeprefix(f"{prefix}network.")] = state.pop(name)


def _inner_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}network.{name.removeprefix(prefix)}"] = state.pop(name)


def save_backbone(backbone: Backbone, path: Path | str) -> Path:
    """Write a safetensors file with plain key names; its metadata says how to rebuild the network. At once or not."""
    path = Path(path)
    state = {name: value.detach().cpu().contiguous() for name, value in backbone.network.state_dict().items()}
    # not save_file, whose files only their owner can read
    return write_whole(path, lambda file: file.write(_ordered(safetensors.torch.save(state, metadata_of(backbone)))))


def _ordered(content: bytes) -> bytes:
    """A safetensors file whose metadata stand in order, so that equal backbones give equal files.

    safetensors writes them in another order each time. A file begins with the length of its header, eight bytes, and
    the header, JSON padded by spaces to a multiple of eight; places of tensors count from its end.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    return len(written).to_bytes(8, "little") + written + content[end:]


def metadata_of(backbone: Backbone) -> dict[str, str]:
    """What a safetensors file says of its network: how to rebuild it, and how to feed it."""
    return {
        "format": "hexa backbone 1",
        "network": backbone.network_config.model_dump_json(),
        "mean": json.dumps(backbone.mean),
        "std": json.dumps(backbone.std),
        "image_size": str(backbone.image_size),
        "crop": json.dumps(backbone.crop),
        "interpolation": backbone.interpolation,
        "origins": json.dumps(backbone.preparation.origins),
        "info": json.dumps(backbone.info),
    }


def load_backbone(spec: str | Path | Backbone, seed: int = 0, **given: Unpack[Given]) -> Backbone:
    """The backbone that `spec` names, in eval mode.

    A run folder (its backbone.safetensors, or its newest good checkpoint while it trains) · a .safetensors file · a
    checkpoint (.pth, .pth.tar, .pt: MoCo, torchvision or timm names; FILE#NETWORK names a timm network that the names
    don't tell) · timm:NAME · random:NAME, the network of a run folder, of timm, or small-resnet-W-W-W, with weights
    drawn from `seed` · pixels:SIZE · python:MODULE:CALLABLE, a function that returns a network (`external.External`).
    Only tensors are read from files, never code: but `python:` runs the code it names. Raises UserError in one line.

    given: mean, std, size, crop or interpolation of the images instead of the backbone's own (`Preparation`).
    """
    found = spec if isinstance(spec, Backbone) else _loaded(str(spec), seed).eval()
    return found if all(value is None for value in given.values()) else found.prepared(**given)


def _loaded(text: str, seed: int) -> Backbone:
    kind, _, name = text.partition(":")
    if kind == "random":
        return _random(name, seed)
    if kind == "pixels":
        return _pixels(name)
    if kind == "timm":
        return _timm(name)
    if kind == "python":
        return _external(text)
    path = Path(text)
    if path.is_dir():
        return _of_run(path)
    network = None
    if not path.exists() and "#" in path.name:
        file, _, network = text.rpartition("#")
        path = Path(file)
    if not path.is_file():
        raise UserError(
            f"{text}: no such run, file or network (a recipe is none before it trains); give a run folder, a "
            "file, timm:NAME or random:NAME"
        )
    if path.suffix == ".safetensors":
        return _of_safetensors(path, network)
    state = _tensors_of(path)
    run = path.absolute().parent.parent
    if path.absolute().parent.name == "checkpoints" and (run / "config.yaml").is_file():
        return _of_checkpoint(path, state, run)
    return _of_state(state, str(path), network)


# -- by name ----------------------------------------------------------------------------------------------------------


def _random(name: str, seed: int) -> Backbone:
    """The network of a run, of timm, or small-resnet-W-W-W, with weights drawn from the seed."""
    size = 224
    if (Path(name) / "config.yaml").is_file():
        config, size, _ = _config_of(Path(name))
    elif name.startswith("small-resnet-") and all(width.isdigit() for width in name.split("-")[2:]):
        config, size = NetworkConfig(name="small-resnet", widths=tuple(map(int, name.split("-")[2:]))), 32
    elif name in timm.list_models():  # fed as timm:NAME is, to be compared with it
        return Backbone.of(_drawn(NetworkConfig(name=name), seed), of_timm(name), NetworkConfig(name=name), _from(seed))
    else:
        remedy = nearest(name, timm.list_models())
        raise UserError(f"random:{name}: neither a run folder, a timm network nor small-resnet-16-32-64; {remedy}")
    return random_backbone(config, size, seed)


def random_backbone(config: NetworkConfig, image_size: int, seed: int = 0) -> Backbone:
    """The network of `config` as it is before training, weights drawn from the seed."""
    return Backbone(_drawn(config, seed), config.mean, config.std, image_size, config, _from(seed))


def _drawn(config: NetworkConfig, seed: int) -> nn.Module:
    with global_draws(Stream(seed).child("random backbone")):
        return backbones.build(config).eval()


def _from(seed: int) -> dict[str, Any]:
    return {"encoder": "random", "seed": seed}


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
        raise UserError(
            f"timm:{name}: its weights are neither stored here nor could be fetched ({reason(error)}); "
            f"give a file of them, FILE#{name.split('.')[0]}, or random:{name.split('.')[0]} for the bare network"
        ) from None
    config = NetworkConfig(name=name.split(".")[0])
    return Backbone.of(network, of_timm(name), config, {"encoder": f"timm:{name}"})


def _external(spec: str) -> Backbone:
    network = external(spec)
    return Backbone.of(network, network.preparation, NetworkConfig(name="python"), {"encoder": spec})


# -- of files ---------------------------------------------------------------------------------------------------------


def _of_run(folder: Path) -> Backbone:
    if (folder / WEIGHTS).is_file():
        return _of_safetensors(folder / WEIGHTS)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: neither {WEIGHTS} nor config.yaml is in it; give the folder of a run")
    for path in sorted((folder / "checkpoints").glob("step-*.pt"), reverse=True):
        try:
            state = _tensors_of(path)
        except UserError:
            continue  # cut short or damaged: the one before it is kept for this
        return _of_checkpoint(path, state, folder)
    raise UserError(f"{folder}: the run has no good checkpoint yet; go on with `hexa resume {folder}`")


def _of_checkpoint(path: Path, state: State, folder: Path) -> Backbone:
    """The backbone inside the state of a method; the run's config.yaml knows the network."""
    config, size, recipe = _config_of(folder)
    network = backbones.build(config)
    found, encoder = find_backbone(state, network, str(path))
    load_strictly(network, found, str(path))
    step = path.stem.removeprefix("step-")
    info: dict[str, Any] = {"recipe": recipe, "encoder": encoder, "branch": "main", "checkpoint": path.name}
    info |= {"step": int(step)} if step.isdigit() else {}
    return Backbone(network, config.mean, config.std, size, config, info)


def _config_of(folder: Path) -> tuple[NetworkConfig, int, str]:
    """Network, image size and recipe of a run."""
    path = folder / "config.yaml"
    try:
        fields = yaml.safe_load(path.read_text())
        return NetworkConfig.model_validate(fields["network"]), int(fields["views"]["size"]), str(fields["recipe"])
    except (yaml.YAMLError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not the config.yaml of a run ({reason(error)})") from None


def _of_safetensors(path: Path, name: str | None = None) -> Backbone:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None
    if "network" not in metadata:
        return _of_state(state, str(path), name)
    try:
        config = NetworkConfig.model_validate_json(metadata["network"])
        preparation = Preparation(
            json.loads(metadata["mean"]),
            json.loads(metadata["std"]),
            int(metadata["image_size"]),
            json.loads(metadata.get("crop", str(CROP))),
            metadata.get("interpolation", "bilinear"),
            dict(json.loads(metadata.get("origins", "{}"))),
        )
        info = dict(json.loads(metadata["info"]))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path}: its metadata does not say how to build the network ({reason(error)})") from None
    network = nn.Flatten() if config.name == "pixels" else backbones.build(config)
    load_strictly(network, state, str(path))
    return Backbone.of(network, preparation, config, info)


def _tensors_of(path: Path) -> State:
    """All tensors of a checkpoint, by dotted name. Reads tensors only: a file that wants to run code is refused."""
    try:
        with path.open("rb") as file:
            begin = file.read(40)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None
    # the page of an error, a pointer to where the file lies …
    if path.suffix != ".pkl" and not begin.startswith(_CHECKPOINTS):
        raise UserError(f"{path}: not a checkpoint: it begins with {begin!r}")
    try:
        data = arrays.read(path) if path.suffix == ".pkl" else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # what torch advises, to load it all the same, is not what we would have anybody do
        named = re.search(r"GLOBAL ([\w.]+)|it names ([\w.]+)", str(error))
        what = f" (it names {named[1] or named[2]})" if named else ""
        raise UserError(
            f"{path}: refused: it holds more than tensors and numbers, and reading that would run code{what}; "
            "if you trust it, save its state_dict alone (see docs/faq.md)"
        ) from None
    except Exception as error:  # torch's reader raises whatever the damaged bytes lead it to
        first = re.split(r"(?<=[.:]) ", reason(error))[0].rstrip(".:")
        said = first if len(first) > 10 else "of no format that torch writes"
        raise UserError(f"{path}: not a whole checkpoint ({said})") from None
    while isinstance(data, Mapping) and (inner := next((k for k in _INSIDE if isinstance(data.get(k), Mapping)), None)):
        data = data[inner]
    state = {str(n): v for n, v in data.items() if isinstance(v, Tensor)} if isinstance(data, Mapping) else {}
    if not state:
        raise UserError(f"{path}: holds no tensors by name; give a checkpoint with a state_dict")
    return state


def _of_state(state: State, where: str, name: str | None = None) -> Backbone:
    """The backbone of a state dict in somebody's layout."""
    config, preparation, kept, prefix = foreign_state(state, where, name)
    network = backbones.build(config)
    load_strictly(network, kept, where)
    return Backbone.of(network, preparation, config, {"encoder": prefix.rstrip(".") or "state dict"})


def describe(backbone: Backbone) -> dict[str, Any]:
    """What a result says of its backbone: hash, network, encoder, branch, step; how images are prepared for it."""
    preparation = backbone.preparation
    return {
        "hash": backbone.content_hash(),
        "network": backbone.network_config.name,
        "num_features": backbone.num_features,
        "image_size": backbone.image_size,
        "preparation": {**preparation.values(), "from": dict(preparation.origins)},
        **{"encoder": "encoder", "branch": "main", **backbone.info},
    }
