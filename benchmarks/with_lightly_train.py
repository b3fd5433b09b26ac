"""What `lightly-train` makes of the same weights and images, for benchmarks/from_weights.py.

    python benchmarks/with_lightly_train.py IMAGES OUT.pth SIZE SCALE FLIP EPOCHS SEED RATE

RATE is that of SGD for a batch of 256, or "default". Runs in an environment of its own, with lightly-train and the two
packages of benchmarks/networks.py. Its settings are its defaults but for what every arm shares: the normalisation of
the start, the size, the crops, mirroring, one core without workers, fp32. Prints the seconds of one core that training
took.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import lightly_train
import networks
import torch
from torch import Tensor, nn


class Wrapped(nn.Module):
    """The network as lightly-train wants a model it does not know."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=networks.weights()
        )
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = (
                    0.1  # its own 1 % a step would not have arrived at the new images by the end
                )

    def feature_dim(self) -> int:
        """Channels of the maps."""
        return 1280

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        """Maps [B, 1280, h, w]."""
        return {"features": self.network.extract_features(x)}

    def forward_pool(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """Their mean [B, 1280, 1, 1]."""
        return {"pooled_features": x["features"].mean((2, 3), keepdim=True)}

    def get_model(self) -> nn.Module:
        """What is exported."""
        return self.network

    def make_model_trainable(self) -> None:
        """All of it trains already."""

    def architecture_info(self) -> dict[str, Any]:
        """What optimizers are chosen by."""
        return {"model_type": "convolutional", "norm_type": "batchnorm"}


def main() -> None:
    """Train, and write the weights in the layout they came in."""
    images, out, size, scale, flip, epochs, seed, rate = sys.argv[1:]
    model = Wrapped()
    begun = time.process_time()
    lightly_train.pretrain(
        out=out + ".run",
        data=images,
        model=model,
        method="simclr",
        epochs=int(epochs),
        batch_size=128,
        num_workers=0,
        accelerator="cpu",
        devices=1,
        precision="32-true",
        seed=int(seed),
        overwrite=True,
        **({} if rate == "default" else {"optim": "sgd", "optim_args": {"lr": float(rate)}}),
        transform_args={
            "image_size": (int(size), int(size)),
            "random_resize": {"min_scale": float(scale), "max_scale": 1.0},
            "random_flip": {"horizontal_prob": float(flip), "vertical_prob": 0.0},
            "normalize": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
        },
    )
    seconds = time.process_time() - begun
    torch.save(model.network.state_dict(), out)
    print(f"cpu_seconds {seconds:.1f}")


if __name__ == "__main__":
    main()
