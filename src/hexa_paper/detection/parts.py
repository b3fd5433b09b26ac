"""A network taken apart: its modules, split where the resolution of its feature maps halves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hexa.config import UserError
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
        problem = "has no feature maps of several resolutions"
        remedy = "give a convolutional network that calls its modules one after the other, such as a ResNet"
        raise UserError(f"{name}: {problem}; {remedy}")
    return cut


@dataclass
class _Call:
    """A call of a module, its output, and the calls inside it."""

    module: nn.Module
    output: Any = None
    inner: list[_Call] = field(default_factory=list)

    @property
    def width(self) -> int:
        """The width of the maps in its output; 0 if the output is something else."""
        if not isinstance(self.output, Tensor) or self.output.ndim != 4:
            return 0
        height, width = self.output.shape[2:]
        return int(width) if height * _PROBE[1] == width * _PROBE[0] else 0


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
