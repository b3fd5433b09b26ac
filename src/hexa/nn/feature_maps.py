"""A network taken apart where its resolution halves: what needs its maps, and not its features, starts here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hexa.config import UserError, reason
from hexa.nn.backbones import tried
from hexa.nn.external import External

_PROBE = (128, 192)
"""Pixels of the image whose maps are looked at; not a square, so that nothing else is taken for a map."""


@dataclass(frozen=True)
class Part:
    """A run of a network's modules that ends before the resolution falls again: maps [B, C, H, W] -> maps.

    stride: pixels of the image for each pixel of the maps it gives. channels: of those maps.
    """

    module: nn.Sequential
    stride: int
    channels: int


def parts(network: nn.Module, name: str) -> list[Part]:
    """The network's own modules as a chain that gives its last maps, cut wherever the resolution falls.

    A ResNet is conv1 … (stride 2), maxpool and layer1 (4), layer2 (8), layer3 (16), layer4 (32), whosever it is; what
    follows the last maps (pooling, classifier) is left out. The chain is found by watching one image pass, so it is for
    any network whose modules act one after the other; that it gives the network's maps is checked.
    Raises UserError for others, such as a ViT, or a forward that does more than call its modules.
    """
    chain: list[_Call] = []
    try:
        with tried(network) as device:
            maps = image = torch.rand(1, 3, *_PROBE, generator=torch.Generator().manual_seed(0)).to(device)
            chain = _chain(network, image)
            for call in chain:
                maps = call.module(maps)
        right = bool(chain) and torch.allclose(maps, chain[-1].output, rtol=1e-4, atol=1e-5)
    except Exception:  # networks raise anything at images they are not made for
        right = False
    cut = list(_cut(chain)) if right else []
    strides = [part.stride for part in cut]
    if len(cut) < 2 or strides != sorted(set(strides)):
        raise UserError(
            f"{name}: it does not give feature maps of several resolutions; a convolutional network is needed whose "
            "modules follow one another, such as a ResNet of timm or torchvision"
        )
    return cut


def last_maps(
    network: nn.Module, name: str, size: tuple[int, int], channels: int = 3
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of normalised images [B, channels, H, W] to the last maps [B, C, h, w], and those of a blank image.

    Maps are what the network's own `forward_features` gives; a transformer's tokens lie on the grid of its patches,
    further tokens in front of them left out. A network without that function is taken apart (`parts`).
    size: (H, W) of the blank image. Raises UserError for a network that has no maps of images of this size.
    """
    network = network.network if isinstance(network, External) else network
    try:
        own: Any = getattr(network, "forward_features", None)
        forward = own or nn.Sequential(*(part.module for part in parts(network, name)))

        def maps(images: Tensor) -> Tensor:
            return _laid_out(forward(images), network, images)

        with tried(network) as device:
            blank = maps(torch.zeros(1, channels, *size, device=device))
        if blank.ndim != 4:
            raise ValueError(f"gave {tuple(blank.shape)}")
    except Exception as error:  # see parts
        said = f"gives no feature maps [B, C, h, w] of images of {size[0]} × {size[1]} ({reason(error)})"
        raise UserError(f"{name}: {said}; a convolutional network or a vision transformer is needed") from None
    return maps, blank


def stride(network: nn.Module, name: str, num_features: int, channels: int = 3) -> int:
    """Pixels of the image for each pixel of the network's last maps, for a network that takes images of any aspect.

    Raises UserError for one that does not, or has no maps.
    """
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", 64)
    side = patch if isinstance(patch, int) else max(patch)
    unit = side * math.ceil(64 / side)
    try:
        with tried(network) as device:
            blank = last_maps(network, name, (2 * unit, 3 * unit), channels)[1]
            features = network(torch.zeros(1, channels, 2 * unit, 3 * unit, device=device))
        if features.shape != (1, num_features):
            raise ValueError(f"{features.shape[1]} features instead of {num_features}")
    except Exception as error:  # see parts
        raise UserError(f"{name}: takes images of one aspect only ({reason(error)}); leave out aspect keep") from None
    return max(1, 3 * unit // blank.shape[3])


def _laid_out(output: Tensor, network: nn.Module, images: Tensor) -> Tensor:
    """Tokens [B, further + h·w, C] and maps [B, h, w, C] as maps [B, C, h, w]."""
    if output.ndim == 4:
        return output.permute(0, 3, 1, 2) if getattr(network, "output_fmt", "NCHW") == "NHWC" else output
    height, width = network.patch_embed.dynamic_feat_size(images.shape[2:])  # type: ignore[union-attr, operator]
    further = output.shape[1] - height * width
    if further != getattr(network, "num_prefix_tokens", further):
        raise ValueError(f"{output.shape[1]} tokens for {height} × {width} patches")
    return output[:, further:].transpose(1, 2).reshape(len(output), -1, height, width)


@dataclass
class _Call:
    """A module that was called, what it gave, and the calls inside it."""

    module: nn.Module
    output: Any = None
    inner: list[_Call] = field(default_factory=list)

    @property
    def width(self) -> int:
        """The width of the maps it gave; 0 if it gave something else."""
        value, (height, width) = self.output, _PROBE
        is_map = isinstance(value, Tensor) and value.ndim == 4 and value.shape[2] * width == value.shape[3] * height
        return int(value.shape[3]) if is_map else 0


def _chain(network: nn.Module, image: Tensor) -> list[_Call]:
    """The calls that make the last maps, in their order; of nested ones the outermost that at most halve the maps."""
    whole = _watch(network, image)
    width = int(image.shape[3])

    def opened(call: _Call) -> Iterator[_Call]:
        nonlocal width
        if call.inner and not (call.width and width <= 2 * call.width):
            for inner in call.inner:
                yield from opened(inner)
        else:
            width = call.width or width
            yield call

    calls = list(opened(whole))
    while calls and not calls[-1].width:
        calls.pop()
    return calls


def _watch(network: nn.Module, image: Tensor) -> _Call:
    """Every call of a module in one pass, as a tree."""
    top = _Call(network)
    path = [top]

    def enter(module: nn.Module, _: Any) -> None:
        call = _Call(module)
        path[-1].inner.append(call)
        path.append(call)

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        # a module that follows may work in place
        path.pop().output = output.clone() if isinstance(output, Tensor) else output

    handles = [m.register_forward_pre_hook(enter) for m in network.modules()]
    handles += [m.register_forward_hook(leave) for m in network.modules()]
    try:
        network(image)
    finally:
        for handle in handles:
            handle.remove()
    return top


def _cut(chain: list[_Call]) -> Iterator[Part]:
    """Consecutive calls whose maps are of one size, joined."""
    run: list[nn.Module] = []
    for call, following in zip(chain, [*chain[1:], None], strict=True):
        run.append(call.module)
        if following is None or following.width not in (0, call.width):
            yield Part(nn.Sequential(*run), _PROBE[1] // call.width, int(call.output.shape[1]))
            run = []
