"""How images come to the size of a backbone, and what a result says of it."""

from __future__ import annotations

from typing import Any

from hexa.data import Source
from hexa.data.decode import DecodeError
from hexa.data.views import EvaluationTransform
from hexa.nn.pretrained import Backbone

#: Images of a source that are looked at where it does not say that all have one size.
_LOOKED_AT = 100


def transform_of(backbone: Backbone) -> EvaluationTransform:
    """What evaluation does to images for this backbone."""
    return EvaluationTransform(backbone.image_size, backbone.crop, backbone.interpolation)


def describe(transform: EvaluationTransform, *sources: Source) -> dict[str, Any]:
    """What was done to the images of these sources, for a result.

    resize: "whole", or "shorter side to N, centre S", or the share of each in percent; where the images may differ in
    size it is told from `looked_at` images, evenly spread.
    """
    cropped = f"shorter side to {transform.short}, centre {transform.size}"
    looked_at, whole = 0, 0.0
    for source in sources:
        if source.uniform_size is not None:
            share = float(transform.takes_whole(*source.uniform_size))
        else:
            some = _whole(transform, source)
            looked_at += len(some)
            share = sum(some) / max(1, len(some))
        whole += share * len(source) / sum(map(len, sources))
    whole = round(100 * whole, 1)
    shares = {"whole": whole, cropped: round(100 - whole, 1)}
    return {
        "size": transform.size,
        "resize": {100.0: "whole", 0.0: cropped}.get(whole, shares),
        "interpolation": f"{transform.interpolation}, antialiased",
        **({"looked_at": looked_at} if looked_at else {}),
    }


def _whole(transform: EvaluationTransform, source: Source) -> list[bool]:
    found = []
    for number in range(min(len(source), _LOOKED_AT)):
        try:
            height, width = source.decode(number * len(source) // min(len(source), _LOOKED_AT)).shape[1:]
        except DecodeError:
            continue
        found.append(transform.takes_whole(height, width))
    return found
