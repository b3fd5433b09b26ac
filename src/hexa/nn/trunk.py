"""The part of an encoder that does not learn: its maps of a view never change, so they are computed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from contextlib import suppress

import torch
from torch import Tensor, nn

from hexa.core import MAIN, Batch, Method
from hexa.core.example import Autocast
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder


class Maps(Batch):
    """A batch with maps of its crops, of any values, in their place."""

    def check_values(self) -> None:
        """Accept any values: maps are not pixels in [0, 1]."""

    def repeated(self, times: int) -> Maps:
        """Every image that number of times, to time a step of many."""
        crops = tuple(crop.repeat(times, 1, 1, 1) for crop in self.crops)
        return Maps(crops, self.index.repeat(times), self.stream, self.step, self.known)


class Trunk:
    """Normalisation and the modules of a backbone before the first that learns, run one after another.

    From then on the encoder takes their maps instead of pixels; `backbone` alone still takes pixels.
    """

    def __init__(
        self, encoder: Encoder, modules: Collection[nn.Module], autocast: Autocast
    ) -> None:
        self.encoder, self.modules, self.autocast = encoder, modules, autocast

    @classmethod
    def of(
        cls,
        method: Method,
        learns: Callable[[nn.Parameter], bool],
        pixels: Tensor,
        autocast: Autocast,
    ) -> Trunk | None:
        """The trunk of the encoder of a method that `embeds_plainly`; None if it has none, or there is a twin.

        learns: whether a parameter ever does. pixels: [B, C, S, S], for which what is above the trunk has to make the
        features of the whole backbone of the trunk's maps: not so where a network is no sequence of its modules.
        """
        encoder, *others = (module for module in method.modules() if isinstance(module, Encoder))
        if others:
            return None
        parts = (
            part if isinstance(part, nn.Sequential) else [part]
            for part in encoder.backbone.children()
        )
        units = itertools.chain.from_iterable(parts)
        modules = list(
            itertools.takewhile(lambda unit: not any(map(learns, unit.parameters())), units)
        )
        if not any(list(module.parameters()) for module in modules):
            return None
        trunk = cls(encoder, modules, autocast)
        # a network that is not a sequence may refuse the maps
        with (
            suppress(RuntimeError, TypeError, ValueError),
            torch.no_grad(),
            autocast(),
            use_branch(encoder),
        ):
            maps = trunk._maps(pixels)
            if maps.ndim == 4 and torch.equal(trunk._above(maps), encoder.features(pixels)):
                encoder.features = trunk._above  # type: ignore[assignment, method-assign]
                return trunk
        return None

    def remove(self) -> None:
        """Let the encoder take pixels again."""
        del self.encoder.features

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Maps:
        """The maps of its crops."""
        with self.autocast(), use_branch(self.encoder, MAIN, len(batch)):
            return Maps(
                tuple(map(self._maps, batch.crops)),
                batch.index,
                batch.stream,
                batch.step,
                batch.known,
            )

    def _maps(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.encoder.normalize(pixels)
        for module in self.modules:
            maps = module(maps)
        return maps

    def _above(self, maps: Tensor) -> Tensor:
        for module in (
            self.modules
        ):  # while these pass on what they are given, the backbone computes the rest
            module.forward = lambda maps: maps
        try:
            features: Tensor = self.encoder.backbone(maps)
        finally:
            for module in self.modules:
                del module.forward
        return features
