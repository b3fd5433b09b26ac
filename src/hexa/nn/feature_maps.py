"""The last feature maps of a network, before pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError, reason
from hexa.nn.backbones import tried


def last_maps(
    network: nn.Module, name: str, size: tuple[int, int], channels: int = 3
) -> Callable[[Tensor], Tensor]:
    """Return a function from normalised images [B, channels, H, W] to the last maps [B, C, h, w].

    Maps come from the network's `forward_features`. Tokens of a transformer are arranged on the
    grid of its patches, without prefix tokens. If a network lacks `forward_features`, the maps are
    the last module output with the proportions of the image.
    size: (H, W) of the images.
    Raises UserError if the network has no such maps for images of this size.
    """
    # `hexa.weights.external.External` averages the maps
    network = getattr(network, "wrapped", network)
    own: Any = getattr(network, "forward_features", None)

    def maps(images: Tensor) -> Tensor:
        return _laid_out(own(images), network, images) if own else _last_output(network, images)

    try:
        with tried(network) as device:
            blank = maps(torch.zeros(1, channels, *size, device=device))
        if blank.ndim != 4:
            raise ValueError(f"gave {tuple(blank.shape)}")
    except Exception as error:  # networks raise all sorts of exceptions on unsuitable images
        raise UserError(
            f"{name}: has no feature maps [B, C, h, w] for images of {size[0]} × {size[1]} "
            f"({reason(error)}); give a convolutional network or a vision transformer"
        ) from None
    return maps


def _laid_out(output: Tensor, network: nn.Module, images: Tensor) -> Tensor:
    """Convert tokens [B, prefix + h·w, C] and maps [B, h, w, C] to maps [B, C, h, w]."""
    if output.ndim == 4:
        channels_last = getattr(network, "output_fmt", "NCHW") == "NHWC"
        return output.permute(0, 3, 1, 2) if channels_last else output
    height, width = network.patch_embed.dynamic_feat_size(images.shape[2:])  # type: ignore[union-attr, operator]
    further = output.shape[1] - height * width
    if further != getattr(network, "num_prefix_tokens", further):
        raise ValueError(f"{output.shape[1]} tokens for {height} × {width} patches")
    return output[:, further:].transpose(1, 2).reshape(len(output), -1, height, width)


def _last_output(network: nn.Module, images: Tensor) -> Tensor:
    """Return the last module output that is a map with the proportions of the images and more than
    one position."""
    high, wide = images.shape[2:]
    found: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            height, width = output.shape[2:]
            if width > 1 and height * wide == width * high:
                found[:] = [output]

    handles = [module.register_forward_hook(keep) for module in network.modules()]
    try:
        network(images)
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise ValueError("no module gives a map")
    return found[0]
