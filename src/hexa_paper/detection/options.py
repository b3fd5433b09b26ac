"""The options of the protocol `detect`."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hexa.config import Config
from hexa.evaluation.protocol import Positive
from hexa.evaluation.supervised import decayed


class DetectOptions(Config):
    """The options; the defaults are MoCo's. SGD with momentum 0.9."""

    kind: Literal["c4", "fpn"] = "c4"
    """c4: boxes from the maps before the last halving, the rest of the network is the box head; fpn: a pyramid."""
    frozen: bool = False
    """Keep the backbone frozen, its batch-norms too."""
    iterations: PositiveInt | None = 24_000
    """Steps of training; the rate is ×0.1 at the shares `decay_at` of them; none if `epochs` says how long."""
    epochs: PositiveFloat | None = None
    """The length as passes over the training images instead."""
    batch_size: PositiveInt = 16
    """Images per step."""
    learning_rate: PositiveFloat = 0.02
    """Learning rate; it is not scaled with `batch_size`."""
    warmup_iterations: NonNegativeInt = 100
    """Steps over which the rate rises from a thousandth."""
    decay_at: Positive[float] = (18_000 / 24_000, 22_000 / 24_000)
    """Shares of the iterations at which the rate is multiplied by 0.1."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of all weights but normalisations."""
    clip_norm: PositiveFloat | None = None
    """The largest norm of all gradients; the published rates are for ResNets, whose maps are smaller than others'."""
    shorter_side: Positive[int] = pydantic.Field(default=tuple(range(480, 801, 32)), min_length=1)
    """Pixels of a training image's shorter side, one of these at random."""
    test_shorter_side: PositiveInt = 800
    """Pixels of a test image's shorter side."""
    longest_side: PositiveInt = 1333
    """Largest side of an image in pixels."""
    anchor_sizes: Positive[float] = pydantic.Field(default=(32, 64, 128, 256, 512), min_length=1)
    """Sizes of anchors in pixels, each at three ratios; small images need smaller ones."""
    regions: PositiveInt = 512
    """Regions of a training image that the box head learns from."""
    test_proposals: PositiveInt = 1000
    """Regions of a test image that the box head sees."""
    precise_bn: NonNegativeInt = 200
    """Number of training batches for the final statistics of batch-norms; 0 keeps the running ones."""
    with_2012: bool = True
    """Train on VOC2012's trainval too, if it lies next to VOC2007."""
    ap: Literal["area", "eleven_point"] = "eleven_point"
    """The rule of VOC2007, as published, or that of later years."""
    save_every: PositiveInt = 500
    """Steps after which the state is saved; the same command continues from there."""

    def rate(self, iteration: int) -> float:
        """The learning rate of an iteration, 0 … iterations − 1; it rises linearly from a thousandth."""
        assert self.iterations is not None
        factor = decayed(0.1, self.decay_at, iteration, self.iterations)
        risen = min(1.0, iteration / self.warmup_iterations) if self.warmup_iterations else 1.0
        return self.learning_rate * factor * (risen + (1 - risen) / 1000)
