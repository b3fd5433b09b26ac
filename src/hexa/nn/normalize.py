"""Per-channel normalisation as the first layer, so that pixels are in [0, 1] everywhere outside the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Normalize(nn.Module):
    """x = (u − mean_c) / std_c for pixels u in [0, 1], [B, 3, S, S]; not saved in checkpoints (REFERENCE §0)."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        scale = 1 / torch.tensor(std, dtype=torch.float64)
        shift = -torch.tensor(mean, dtype=torch.float64) * scale
        self.register_buffer("scale", scale.float().view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", shift.float().view(1, -1, 1, 1), persistent=False)
        self.scale: Tensor
        self.shift: Tensor

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.addcmul(self.shift.to(pixels.dtype), pixels, self.scale.to(pixels.dtype))
