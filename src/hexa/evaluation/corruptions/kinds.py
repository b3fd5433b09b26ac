"""The fifteen corruptions of ImageNet-C and CIFAR-10-C, five severities each, batched.

Source: Hendrycks and Dietterich 2019, arXiv 1903.12261, and the code that made the published sets. Each corruption is
the function of its name in the module of its group: it takes float images [B, 3, S, S] in [0, 1], numbers that are
drawn for each image by itself, and its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hexa.evaluation.corruptions import blurs, digital, noise, weather
from hexa.evaluation.corruptions.per_image import PerImage
from hexa.runtime.parsing import read_resource
from hexa.runtime.random import Stream

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
_MODULES = {"noise": noise, "blur": blurs, "weather": weather, "digital": digital}
_MAKE = {kind: getattr(_MODULES[group], kind) for group, kinds in GROUPS.items() for kind in kinds}
KINDS = tuple(_MAKE)
NUM_SEVERITIES = 5
#: Up to this side the parameters are those for 32 pixels (CIFAR-10-C), above it those for 224 (ImageNet-C).
_SMALL = 64
#: Places of the parameters that are lengths.
_LENGTHS = {
    "defocus_blur": (0,),
    "glass_blur": (0, 1),
    "motion_blur": (0, 1),
    "snow": (4, 5),
    "elastic_transform": (0, 1, 2),
}
#: {kind: {side: parameters of each severity}}
_SEVERITIES: dict[str, dict[int, list[list[float]]]] = read_resource(
    "hexa.evaluation.corruptions", "severities.yaml"
)


def corrupt(kind: str, images: Tensor, severity: int, streams: Sequence[Stream]) -> Tensor:
    """The images [B, 3, S, S] in [0, 1] with a corruption of severity 1 … 5, rounded down to 8 bits as published.

    Parameters are the published ones for images of 32 or of 224 pixels; lengths in pixels follow the side of others,
    but are not shortened below those for 32, where they would come to less than a pixel. streams: of each image.
    """
    height = images.shape[2]
    side = 32 if height <= _SMALL else 224
    scale = max(1.0, height / 32) if side == 32 else height / 224
    parameters = list(_SEVERITIES[kind][side][severity - 1])
    for place in _LENGTHS.get(kind, ()):
        parameters[place] *= scale
    draws = PerImage([stream.child(kind, severity) for stream in streams], images.device)
    made = _MAKE[kind](images.contiguous(), draws, *parameters)
    # what is a grey level but for rounding stays one
    return (made.clamp(0, 1) * 255 + 1e-3).floor().div_(255)  # type: ignore[no-any-return]
