"""What is drawn for each image by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hexa.runtime.random import Stream


class PerImage:
    """Numbers for each image of a batch from a generator of its own: they do not depend on the batch."""

    def __init__(self, streams: Sequence[Stream], device: torch.device | str = "cpu") -> None:
        self._generators = [stream.generator() for stream in streams]
        self.device = torch.device(device)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """[B, *shape] in [low, high)."""
        drawn = [torch.rand(shape, generator=generator) for generator in self._generators]
        return torch.stack(drawn).to(self.device) * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        """[B, *shape]."""
        return torch.stack(
            [torch.randn(shape, generator=generator) for generator in self._generators]
        ).to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 [B, *shape] in low … high − 1."""
        drawn = [
            torch.randint(low, high, shape, generator=generator) for generator in self._generators
        ]
        return torch.stack(drawn).to(self.device)

    def poisson(self, rates: Tensor) -> Tensor:
        """[B, …], of these rates."""
        pairs = zip(rates.cpu(), self._generators, strict=True)
        return torch.stack([torch.poisson(own, generator) for own, generator in pairs]).to(
            self.device
        )
