"""Feature maps of a network: its last ones, or its modules split where the resolution halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hexa.config import UserError, reason
from hexa.nn.backbones import tried

#: Sides of the image whose maps are examined; not a square, so that nothing else is mistaken for a map.
_PROBE = (128, 192)


class NetworkPart(NamedTuple):
    """Consecutive modules of a network that end before the resolution decreases again: maps [B, C, H, W] -> maps.

    stride: pixels of the image per pixel of the output maps. channels: of the output maps.
    """

    module: nn.Sequential
    stride: int
    channels: int


def parts(network: nn.Module, name: str) -> list[NetworkPart]:
    """The network's modules as a chain that computes its last maps, split wherever the resolution decreases.

    Any ResNet is conv1 … (stride 2), maxpool and layer1 (4), layer2 (8), layer3 (16), layer4 (32); what follows the
    last maps (pooling, classifier) is left out. The chain is recorded while one image passes, so it works for any
    network that calls its modules one after the other; that it computes the network's maps is checked. Raises UserError
    for others, such as a ViT or a forward that does more than call its modules.
    """
    right = False
    # networks raise all sorts of exceptions on unsuitable images
    with suppress(Exception), tried(network) as device:
        maps = image = torch.rand(1, 3, *_PROBE, generator=torch.Generator().manual_seed(0)).to(
            device
        )
        chain = _chain(network, image)
        for call in chain:
            maps = call.module(maps)
        right = bool(chain) and torch.allclose(maps, chain[-1].output, rtol=1e-4, atol=1e-5)
    cut = list(_cut(chain)) if right else []
    strides = [part.stride for part in cut]
    if len(cut) < 2 or strides != sorted(set(strides)):
        suitable = (
            "that calls its modules one after the other, such as a ResNet of timm or torchvision"
        )
        raise UserError(
            f"{name}: has no feature maps of several resolutions; give a convolutional network {suitable}"
        )
    return cut


def last_maps(
    network: nn.Module, name: str, size: tuple[int, int], channels: int = 3
) -> Callable[[Tensor], Tensor]:
    """A function from normalised images [B, channels, H, W] to the last maps [B, C, h, w].

    Maps come from the network's `forward_features`; a transformer's tokens are laid out on the grid of its patches,
    without prefix tokens. A network without that function is split into `parts`. size: (H, W) of the images.
    Raises UserError for a network that has no maps of images of this size.
    """
    network = getattr(
        network, "wrapped", network
    )  # `hexa.weights.external.External` averages the maps
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
        why = "" if isinstance(error, UserError) else f" ({reason(error)})"
        problem = f"has no feature maps [B, C, h, w] for images of {size[0]} × {size[1]}{why}"
        raise UserError(
            f"{name}: {problem}; give a convolutional network or a vision transformer"
        ) from None
    return maps


def _laid_out(output: Tensor, network: nn.Module, images: Tensor) -> Tensor:
    """Convert tokens [B, prefix + h·w, C] and maps [B, h, w, C] to maps [B, C, h, w]."""
    if output.ndim == 4:
        return (
            output.permute(0, 3, 1, 2)
            if getattr(network, "output_fmt", "NCHW") == "NHWC"
            else output
        )
    height, width = network.patch_embed.dynamic_feat_size(images.shape[2:])  # type: ignore[union-attr, operator]
    further = output.shape[1] - height * width
    if further != getattr(network, "num_prefix_tokens", further):
        raise ValueError(f"{output.shape[1]} tokens for {height} × {width} patches")
    return output[:, further:].transpose(1, 2).reshape(len(output), -1, height, width)


@dataclass
class _Call:
    """A call of a module, its output, and the calls inside it."""

    module: nn.Module
    output: Any = None
    inner: list[_Call] = field(default_factory=list)

    @property
    def width(self) -> int:
        """The width of the maps in its output; 0 if the output is something else."""
        value, (height, width) = self.output, _PROBE
        is_map = (
            isinstance(value, Tensor)
            and value.ndim == 4
            and value.shape[2] * width == value.shape[3] * height
        )
        return int(value.shape[3]) if is_map else 0


def _chain(network: nn.Module, image: Tensor) -> list[_Call]:
    """The calls that compute the last maps, in order; of nested ones the outermost that at most halve the maps."""
    width = int(image.shape[3])

    def opened(call: _Call) -> Iterator[_Call]:
        nonlocal width
        if call.inner and not (call.width and width <= 2 * call.width):
            for inner in call.inner:
                yield from opened(inner)
        else:
            width = call.width or width
            yield call

    calls = list(opened(_watch(network, image)))
    while calls and not calls[-1].width:
        calls.pop()
    return calls


def _watch(network: nn.Module, image: Tensor) -> _Call:
    """All calls of modules in one pass, as a tree."""
    top = _Call(network)
    path = [top]

    def enter(module: nn.Module, _: Any) -> None:
        call = _Call(module)
        path[-1].inner.append(call)
        path.append(call)

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        # the next module may work in place
        path.pop().output = output.clone() if isinstance(output, Tensor) else output

    handles = [m.register_forward_pre_hook(enter) for m in network.modules()]
    handles += [m.register_forward_hook(leave) for m in network.modules()]
    try:
        network(image)
    finally:
        for handle in handles:
            handle.remove()
    return top


def _cut(chain: list[_Call]) -> Iterator[NetworkPart]:
    """Join consecutive calls whose maps have one size."""
    run: list[nn.Module] = []
    for call, following in zip(chain, [*chain[1:], None], strict=True):
        run.append(call.module)
        if following is None or following.width not in (0, call.width):
            yield NetworkPart(
                nn.Sequential(*run), _PROBE[1] // call.width, int(call.output.shape[1])
            )
            run = []
