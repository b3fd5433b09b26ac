"""Trained backbones: loaded from any supported source as networks of pixels -> features, and saved
to files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from hexa.config import UserError, nearest
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig
from hexa.nn.normalize import Normalize, mean_of
from hexa.runtime import paths
from hexa.runtime.files import write_whole
from hexa.runtime.packages import resume_command
from hexa.runtime.random import Stream, global_draws
from hexa.weights import files
from hexa.weights.files import State, Unreadable, Weights
from hexa.weights.fitting import filled, outlined
from hexa.weights.metadata import (
    KEY,
    content_hash,
    described,
    metadata_of,
    of_config,
    of_metadata,
)
from hexa.weights.preparation import Given, Preparation, current_name, of_timm

WEIGHTS = "backbone.safetensors"

#: Lower bound of pixels in [0, 1], even if a resampling filter overshoots.
_DARKEST = -1.0
#: Upper bound of pixels in [0, 1], even if a resampling filter overshoots.
_BRIGHTEST = 2.0


class Backbone(nn.Module):
    """A trained network with everything needed to use it.

    forward: images in [0, 1], [B, C, S, S] -> features [B, num_features]; normalises internally.
    `network`: the plain torchvision or timm network with the main batch-norms, for normalised
    images.
    preparation: of the images; mean and std of each channel (for pixels in [0, 1]) and image_size
    (side in pixels) are attributes too.
    info: recipe, encoder, branch, step …
    deviations: {name: [before, after]} of preparation values that the user set.
    The state_dict is that of `network` with plain key names.
    """

    def __init__(
        self,
        network: nn.Module,
        preparation: Preparation,
        network_config: NetworkConfig,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        mean = mean_of(preparation.mean, network_config.channels)
        std = preparation.std
        self.network = network
        self.preparation = preparation
        self.mean = preparation.mean
        self.std = preparation.std
        self.image_size = preparation.size
        self.normalize = Normalize(mean, std)
        self._seen = False
        self.deviations: dict[str, list[Any]] = {}
        self.network_config = network_config.model_copy(update={"mean": mean, "std": std})
        self.info: dict[str, Any] = dict(info or {})
        pixels = network_config.name == "pixels"
        self.num_features = (
            3 * preparation.size**2 if pixels else backbones.num_features(network, len(mean))
        )
        self.register_state_dict_post_hook(_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_inner_names)  # type: ignore[no-untyped-call]

    def forward(self, images: Tensor) -> Tensor:
        normalized = self.normalize(images)
        self._check_range(images)
        return cast(Tensor, self.network(normalized))

    def _check_range(self, images: Tensor) -> None:
        """Raise UserError for pixels far outside of [0, 1]. Checks one image; on devices other than
        the CPU only once.

        On these devices the check synchronises. Compiling and exporting skip it.
        """
        tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        known = self._seen and images.device.type != "cpu"
        if known or tracing or type(images) is not Tensor or not images.numel():
            return
        self._seen = True
        low, high = (float(end) for end in torch.aminmax(images[0].detach()))
        if low < _DARKEST or high > _BRIGHTEST:
            raise UserError(
                f"the first image has values from {low:.4g} to {high:.4g}; "
                "give pixels in [0, 1], such as images / 255, which the backbone normalises"
            )

    def prepared(self, **given: Unpack[Given]) -> Backbone:
        """Return the same network with another preparation of images; `deviations` has {name:
        [before, after]}.

        A vision transformer for a fixed size is copied and its position embeddings are resampled.
        Raises UserError for impossible values, and for sizes that the network does not support.
        """
        preparation, deviations = self.preparation.changed(given)
        network = self.network
        config = self.network_config
        width = None
        if "size" in deviations and config.name != "pixels":
            from hexa.nn.image_size import at_size

            network, config, width = at_size(network, config, preparation.size)
        other = Backbone(network, preparation, config, self.info)
        other.deviations = self.deviations | deviations
        other.num_features = width or other.num_features
        return other.to(self.normalize.scale.device).train(self.training)

    def said(self) -> str | None:
        """Return sentences about the choice of weights and the preparation of images, for
        results."""
        parts = [self.info.get("note"), self.preparation.said()]
        return "; ".join(filter(None, parts)) or None

    def content_hash(self) -> str:
        """Return the first 16 hexadecimal digits of the SHA-256 of names and values of the
        network's state."""
        return content_hash(self.network.state_dict())


def _plain_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}network.")]:
        state[prefix + name.removeprefix(f"{prefix}network.")] = state.pop(name)


def _inner_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}network.{name.removeprefix(prefix)}"] = state.pop(name)


def save_backbone(backbone: Backbone, path: Path | str) -> Path:
    """Write a safetensors file with plain key names atomically; its metadata describe how to
    rebuild the network."""
    # not safetensors' save_file, which creates files that only their owner can read
    return write_whole(Path(path), lambda file: file.write(serialized(backbone)))


def serialized(backbone: Backbone) -> bytes:
    """Return the content of a backbone's safetensors file."""
    state = backbone.network.state_dict()
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    return safetensors.torch.save(tensors, metadata_of(backbone))


def load_backbone(
    spec: str | Path | Backbone, seed: int = 0, branch: str = "main", **given: Unpack[Given]
) -> Backbone:
    """Return the backbone `spec`, in eval mode. Raises UserError.

    - a run folder: its backbone.safetensors, or its newest intact checkpoint during training
    - a .safetensors file, or a checkpoint (.pth, .pth.tar, .pt, .pkl) in any of `layouts.LAYOUTS`;
      FILE#NETWORK gives the timm network if the names of tensors are ambiguous, FILE#NETWORK:PART
      one of several networks in the file
    - a folder of transformers, timm or OpenCLIP with a config.json
    - timm:NAME
    - random:NAME: the network of a run folder, of timm, or small-resnet-W-W-W, with weights drawn
      from `seed`
    - pixels:SIZE
    - python:FILE.py:CALLABLE: a function that returns a network (`external.External`)

    Only tensors are read from files, never code; `python:` runs the code that it names.

    branch: batch-norm set to load; sets other than main (aux, of an adversarial run) are only in
    checkpoints.
    given: mean, std, size, crop or interpolation of the images instead of the backbone's own
    (`Preparation`).
    """
    if not isinstance(spec, str | Path | Backbone):
        given_as = type(spec).__name__
        raise UserError(f"a backbone is a name, a path or a loaded backbone, not a {given_as}")
    if isinstance(spec, Backbone) and branch not in ("main", spec.info.get("branch")):
        raise UserError(
            f"a loaded backbone has no batch-norms '{branch}'; give the folder of its run instead"
        )
    backbone = spec if isinstance(spec, Backbone) else _loaded(str(spec), seed, branch).eval()
    return (
        backbone if all(value is None for value in given.values()) else backbone.prepared(**given)
    )


def _loaded(text: str, seed: int, branch: str) -> Backbone:
    kind, _, name = text.partition(":")
    named: dict[str, Callable[[str], Backbone]] = {
        "random": partial(_random, seed=seed),
        "pixels": _pixels,
        "timm": _timm,
        "python": _external,
    }
    if kind in named:
        if branch != "main":
            raise _no_branch(text, branch)
        return named[kind](name)
    path, network = paths.weights(text)
    if path.is_dir():
        return _of_folder(path, branch, network)
    return _of_file(path, branch, network)


def _of_folder(folder: Path, branch: str, name: str | None) -> Backbone:
    """Return the backbone of a run, or of a folder of transformers, timm or OpenCLIP."""
    from hexa.weights import folders

    run = any((folder / one).exists() for one in (WEIGHTS, "config.yaml"))
    if run or not folders.is_one(folder):
        if name is not None:
            raise UserError(f"{folder}#{name}: a run describes its network; remove #{name}")
        return _of_run(folder, branch)
    if branch != "main":
        raise _no_branch(str(folder), branch)
    weights, config, preparation = folders.read(folder, named=name is not None)
    return _foreign(weights, name, config, preparation)


def _of_run(folder: Path, branch: str) -> Backbone:
    if branch == "main" and (folder / WEIGHTS).is_file():
        return _of_file(folder / WEIGHTS, within=folder)
    if not (folder / "config.yaml").is_file():
        raise UserError(
            f"{folder}: no config.yaml, so not a run that has begun; give a run, a folder with the config.json of "
            "transformers or timm, or a file of weights"
        )
    for path in sorted((folder / "checkpoints").glob("step-*.pt"), reverse=True):
        with suppress(Unreadable):  # if it is truncated or damaged, use the previous one
            return _of_file(path, branch, within=folder)
    raise UserError(
        f"{folder}: the run has no intact checkpoint yet; continue it with: {resume_command(folder)}"
    )


def _of_file(
    path: Path, branch: str = "main", name: str | None = None, within: Path | None = None
) -> Backbone:
    """Return the backbone in a file: hexa's own, described by its metadata; a checkpoint of a run,
    described by its config.yaml; or one of `layouts.LAYOUTS`. within: as for `files.read`."""
    run = path.absolute().parent.parent
    of_run = path.absolute().parent.name == "checkpoints" and (run / "config.yaml").is_file()
    if branch != "main" and not of_run:
        raise _no_branch(str(path), branch)
    weights = files.read(path, within)
    if KEY in weights.metadata:
        config, preparation, info = of_metadata(weights)
        state: State = weights.state
    elif of_run:
        config, preparation, info = of_config(run / "config.yaml")
        network = outlined(config, f"{run / 'config.yaml'}")
        from hexa.weights.parts import below, find_backbone

        own = below(weights.state, "method.") or weights.state
        state, encoder = find_backbone(replace(weights, state=own), network, branch)
        info |= {"encoder": encoder, "branch": branch, "checkpoint": path.name}
        step = path.stem.removeprefix("step-")
        info |= {"step": int(step)} if step.isdecimal() else {}
    else:
        if name is None and any(path.parent.glob("*config.json")):
            from hexa.weights.folders import names_network

            if names_network(path):
                return _of_folder(path.parent, branch, None)
        return _foreign(weights, name)
    return Backbone(filled(config, state, str(path)), preparation, config, info)


def _no_branch(spec: str, branch: str) -> UserError:
    return UserError(
        f"{spec}: batch-norms '{branch}' are kept only in the checkpoints of a run; give its folder"
    )


def _foreign(
    weights: Weights,
    name: str | None,
    described: NetworkConfig | None = None,
    preparation: Preparation | None = None,
) -> Backbone:
    """Return the backbone in a file of other software."""
    from hexa.weights.foreign import foreign_state
    from hexa.weights.variants import check_periods

    found, preparation = foreign_state(weights, name, described, preparation)
    info = {"encoder": found.part.prefix.rstrip(".") or "state dict"}
    if found.notes:
        info["note"] = "; ".join(found.notes)
    network = filled(found.config, found.state, weights.where)
    check_periods(network, weights)
    return Backbone(network, preparation, found.config, info)


def _random(name: str, seed: int) -> Backbone:
    """Return the network of a run, of timm, or small-resnet-W-W-W, with weights drawn from the
    seed."""
    if (Path(name) / "config.yaml").is_file():
        config, preparation, _ = of_config(Path(name) / "config.yaml")
        return _drawn(config, preparation, seed)
    timms = current_name(name)
    if timms in timm.list_models() or timms in timm.list_pretrained():
        # the preparation of images is the same as for timm:NAME, for comparisons
        return _drawn(NetworkConfig(name=timms.partition(".")[0]), of_timm(timms), seed)
    if not re.fullmatch(r"small-resnet(-\d+)+", name, re.ASCII):
        raise UserError(
            f"random:{name}: neither a run folder, a timm network nor small-resnet-16-32-64; "
            f"{nearest(name, timm.list_models())}"
        )
    with described(f"random:{name}", "not a network"):
        widths = tuple(int(width) for width in name.split("-")[2:])
        return random_backbone(NetworkConfig(name="small-resnet", widths=widths), 32, seed)


def random_backbone(config: NetworkConfig, image_size: int, seed: int = 0) -> Backbone:
    """Return the network of `config` with weights drawn from the seed, as before training."""
    return _drawn(config, Preparation(config.mean, config.std, image_size), seed)


def _drawn(config: NetworkConfig, preparation: Preparation, seed: int) -> Backbone:
    with global_draws(Stream(seed).child("random backbone")):
        network = backbones.build(config)
    return Backbone(network.eval(), preparation, config, {"encoder": "random", "seed": seed})


def _pixels(size: str) -> Backbone:
    """Return the backbone whose features are the pixels themselves: a baseline for every
    backbone."""
    if not size.isdecimal():
        raise UserError(f"pixels:{size}: give the side in pixels, such as pixels:16")
    preparation = Preparation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), int(size))
    return Backbone(nn.Flatten(), preparation, NetworkConfig(name="pixels"), {"encoder": "pixels"})


def _timm(name: str) -> Backbone:
    from hexa.weights.timm_weights import load

    name = current_name(name)
    config = NetworkConfig(name=name.partition(".")[0])
    return Backbone(load(name), of_timm(name), config, {"encoder": f"timm:{name}"})


def _external(name: str) -> Backbone:
    from hexa.weights.external import external

    spec = f"python:{name}"
    network = external(spec)
    how = network.preparation
    config = NetworkConfig(name="python", channels=len(how.mean), mean=how.mean, std=how.std)
    return Backbone(network, how, config, {"encoder": spec})


def describe(backbone: Backbone) -> dict[str, Any]:
    """Return the description of a backbone in results: hash, network, encoder, branch, step, and
    preparation of images."""
    preparation = backbone.preparation
    return {
        "encoder": "encoder",
        "branch": "main",
        **backbone.info,  # first, so that a file cannot override the other fields
        "hash": backbone.content_hash(),
        "network": backbone.network_config.name,
        "num_features": backbone.num_features,
        "image_size": backbone.image_size,
        "preparation": {**preparation.values(), "from": dict(preparation.origins)},
    }
