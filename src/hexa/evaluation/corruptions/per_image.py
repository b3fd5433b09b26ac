"""Random draws of corruptions, for each image by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from hexa.runtime.random import Stream


class PerImage:
    """Numbers for each image of a batch from a generator of its own: they do not depend on the batch."""

    def __init__(
        self,
        streams: Sequence[Stream],
        device: torch.device | str = "cpu",
    ) -> None:
        self._generators = [stream.generator() for stream in streams]
        self.device = torch.device(device)

    def _drawn(self, draw: Callable[[Generator], Tensor]) -> Tensor:
        drawn = [draw(generator) for generator in self._generators]
        return torch.stack(drawn).to(self.device)

    def uniform(
        self,
        *shape: int,
        low: float = 0.0,
        high: float = 1.0,
    ) -> Tensor:
        """[B, *shape] in [low, high)."""
        drawn = self._drawn(lambda generator: torch.rand(shape, generator=generator))
        return drawn * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        """[B, *shape]."""
        return self._drawn(lambda generator: torch.randn(shape, generator=generator))

    def integers(
        self,
        low: int,
        high: int,
        *shape: int,
    ) -> Tensor:
        """int64 [B, *shape] in low … high − 1."""
        return self._drawn(lambda generator: torch.randint(low, high, shape, generator=generator))

    def poisson(self, rates: Tensor) -> Tensor:
        """[B, …], of these rates."""
        own = iter(rates.cpu())
        return self._drawn(lambda generator: torch.poisson(next(own), generator))
