"""Vision transformers at image sizes other than their native one."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import timm
from torch import nn

from hexa.config import UserError, reason
from hexa.nn import backbones
from hexa.nn.backbones import NetworkConfig


class Sized(NamedTuple):
    """A network for a given image size, its configuration, and the width of its features."""

    network: nn.Module
    config: NetworkConfig
    num_features: int


def patch_side(network: nn.Module) -> int:
    """Return the side of a transformer's patches in pixels, which divides its image sizes; 1 for
    other networks."""
    ratio = getattr(getattr(network, "patch_embed", None), "feat_ratio", None)
    return int(ratio()) if callable(ratio) else 1


def rounded(network: nn.Module, size: float) -> int:
    """Return the multiple of the network's patch side that is nearest to `size`."""
    side = patch_side(network)
    return side * max(1, round(size / side))


def is_fixed(config: NetworkConfig) -> bool:
    """True if timm builds the network for one image size."""
    published = timm.models.get_pretrained_cfg(config.name)
    return published is not None and published.fixed_input_size


def at_size(network: nn.Module, config: NetworkConfig, size: int) -> Sized:
    """Return the network for images of `size` pixels: unchanged if it accepts them, otherwise
    `resampled`.

    Raises UserError if the size is not a multiple of the patch side, or if timm cannot resample the
    network.
    """
    try:
        width = backbones.num_features_at(network, size, config.channels)
    except UserError:
        side = patch_side(network)
        if size % side:
            problem = f"{config.name} has patches of {side} px"
            raise UserError(f"size {size}: {problem}; give {_multiples(size, side)}") from None
        if hasattr(network, "set_input_size"):
            return resampled(network, config, size)
        if is_fixed(config):
            problem = "does not accept images of this size, and timm cannot resample its positions"
            raise UserError(f"size {size}: {config.name} {problem}; use its native size") from None
        raise
    return Sized(network, config, width)


def resampled(network: nn.Module, config: NetworkConfig, size: int) -> Sized:
    """Return a copy of the network whose position embeddings timm has resampled for images of
    `size` pixels.

    It equals the network that `timm.create_model(NAME, img_size=size)` builds. Raises UserError if
    timm cannot do it.
    """
    config = config.model_copy(update={"options": {**config.options, "img_size": size}})
    made = copy.deepcopy(network)
    try:
        built = backbones.outline(config)
        # timm would scale trained windows of a Swin transformer with the image
        stages: Any = getattr(built, "layers", ())
        windows = {"window_size": [stage.blocks[0].window_size for stage in stages]}
        made.set_input_size(img_size=(size, size), **(windows if stages else {}))  # type: ignore[operator]
        if _shapes(made) != _shapes(built):
            raise ValueError("the shapes of its tensors do not match a network of this size")
        width = backbones.num_features_at(made, size, config.channels)
    except (UserError, RuntimeError, AssertionError, ValueError, TypeError) as error:
        unit = int(network.feature_info[-1]["reduction"])  # type: ignore[index]
        remedy = _multiples(size, unit) if size % unit else "another size"
        raise UserError(
            f"size {size}: timm cannot resample {config.name} to this size ({reason(error)}); "
            f"use {remedy}"
        ) from None
    return Sized(made, config, width)


def network_at(config: NetworkConfig, size: int) -> NetworkConfig:
    """Return the configuration of the network that `at_size` returns. Raises UserError."""
    return at_size(backbones.outline(config), config, size).config


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def _multiples(size: int, unit: int) -> str:
    """Return the two multiples of `unit` nearest to `size`."""
    below = unit * (size // unit)
    return f"{below} or {below + unit}" if below else str(unit)
