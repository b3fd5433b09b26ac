"""The frozen part of an encoder: its maps of a view never change, so they are computed once and
cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from hexa.core import MAIN, Batch, Method
from hexa.core.example import Autocast
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder


class Maps(Batch):
    """A batch that holds maps or tokens of its crops instead of pixels; values may be of any
    size."""

    ranks = (3, 4)

    def check_values(self) -> None:
        """Accept any values: maps are not pixels in [0, 1]."""

    def repeated(self, times: int) -> Maps:
        """Return a batch with every image repeated, to time a large step with few images."""
        crops = tuple(torch.cat([crop] * times) for crop in self.crops)
        return Maps(crops, self.index.repeat(times), self.stream, self.step, self.known)


class _Reached(Exception):
    """Stops a pass before the first module that learns; carries the input of that module."""

    def __init__(self, maps: Tensor) -> None:
        super().__init__()
        self.maps = maps


class Trunk:
    """Normalisation and the part of a backbone before the first module that learns: pixels -> maps.

    While a trunk is in use, the encoder accepts its maps [B, C, h, w], or tokens [B, N, D], instead
    of pixels. `backbone` alone still accepts pixels.
    rest: the modules that process the maps, up to the network's `forward_head`.
    """

    def __init__(self, encoder: Encoder, rest: Sequence[nn.Module], autocast: Autocast) -> None:
        self.encoder = encoder
        self.rest = rest
        self.autocast = autocast

    @classmethod
    def of(
        cls,
        method: Method,
        learns: Callable[[nn.Parameter], bool],
        pixels: Tensor,
        autocast: Autocast,
    ) -> Trunk | None:
        """Return the trunk of a method that `embeds_plainly`; None if it has no frozen part or has
        a momentum twin.

        learns: returns whether a parameter learns at any time.
        pixels: [B, C, S, S]. Features computed from the trunk's maps of these pixels must equal
        those of the whole backbone. This excludes networks with connections around a module.
        """
        encoder, *others = (module for module in method.modules() if isinstance(module, Encoder))
        backbone = encoder.backbone
        if others or any(map(learns, backbone.parameters(recurse=False))):
            return None
        units: list[nn.Module] = []
        for part in backbone.children():
            units.extend(part if isinstance(part, nn.Sequential | nn.ModuleList) else [part])
        learning = [any(map(learns, unit.parameters())) for unit in units]
        first = learning.index(True) if True in learning else 0
        if not any(list(unit.parameters()) for unit in units[:first]):
            return None
        with torch.no_grad(), autocast(), use_branch(encoder):
            features = encoder.features(pixels)
            # the last modules, such as a pooling layer, may belong to `forward_head`
            for end in range(first + 1, len(units) + 1):
                trunk = cls(encoder, units[first:end], autocast)
                # modules raise all sorts of exceptions on maps of a wrong shape
                with suppress(Exception):
                    if torch.equal(trunk.features(trunk.maps(pixels)), features):
                        encoder.features = trunk.features  # type: ignore[assignment, method-assign]
                        return trunk
        return None

    def remove(self) -> None:
        """Let the encoder accept pixels again."""
        del self.encoder.features

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Maps:
        """Return the maps of a batch's crops."""
        with self.autocast(), use_branch(self.encoder, MAIN, len(batch)):
            maps = tuple(map(self.maps, batch.crops))
        return Maps(maps, batch.index, batch.stream, batch.step, batch.known)

    def maps(self, pixels: Tensor) -> Tensor:
        """Return the input of the first module that learns. Raises RuntimeError if that module is
        not called."""

        def end(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            raise _Reached(inputs[0])

        handle = self.rest[0].register_forward_pre_hook(end)
        try:
            self.encoder.backbone(self.encoder.normalize(pixels))
        except _Reached as found:
            return found.maps
        finally:
            handle.remove()
        raise RuntimeError(f"{type(self.rest[0]).__name__} is not called")

    def features(self, maps: Tensor) -> Tensor:
        """Return the features [B, F] of maps."""
        for module in self.rest:
            maps = module(maps)
        features: Tensor = self.encoder.backbone.forward_head(maps)  # type: ignore[operator]
        return features
