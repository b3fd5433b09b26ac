"""An encoder: normalisation, backbone and projection head, from pixels to an embedding."""

from __future__ import annotations

from torch import Tensor, nn

from hexa.nn.normalize import Normalize


class Encoder(nn.Module):
    """Pixels in [0, 1], [B, 3, S, S] -> projection [B, D], not normalised (z of REFERENCE §1.1)."""

    def __init__(self, backbone: nn.Module, head: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalize = normalize
        self.backbone = backbone
        self.head = head

    def forward(self, pixels: Tensor) -> Tensor:
        projection: Tensor = self.head(self.backbone(self.normalize(pixels)))
        return projection


def linear_head(width: int, dim: int) -> nn.Module:
    """One linear layer (MoCo v1, REFERENCE §2.1)."""
    return nn.Linear(width, dim)


def mlp_head(width: int, dim: int) -> nn.Module:
    """linear width -> width, ReLU, linear width -> dim; biases, no batch-norm (MoCo v2, REFERENCE §2.1)."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, dim))
