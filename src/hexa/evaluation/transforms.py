"""How images come to the size of a backbone, and what a result says of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hexa.config import UserError
from hexa.data import Source
from hexa.data.sources.decode import DecodeError
from hexa.data.views.evaluation import EvaluationTransform, OwnAspect
from hexa.evaluation import protocols
from hexa.evaluation.protocol import Protocol, Task
from hexa.evaluation.request import Aspect
from hexa.evaluation.split import draw_images
from hexa.nn.feature_maps import stride
from hexa.runtime.random import Stream
from hexa.weights.preparation import GIVEN
from hexa.weights.pretrained import Backbone

#: Images of a source that are looked at where it does not say that all have one size.
_LOOKED_AT = 100


def transform_of(backbone: Backbone, aspect: Aspect = "crop") -> EvaluationTransform:
    """How evaluation prepares images for this backbone.

    aspect: crop for the centre square, keep for the whole image in its own aspect. Raises UserError for a network that
    can't take such images.
    """
    if aspect == "crop":
        return EvaluationTransform(
            backbone.image_size, backbone.preparation.crop, backbone.preparation.interpolation
        )
    if backbone.preparation.origins.get("crop") == GIVEN:
        raise UserError(
            "crop has no effect with aspect keep, which cuts nothing; leave out one of the two"
        )
    config = backbone.network_config
    pixels_for_each = stride(backbone.network, config.name, backbone.num_features, config.channels)
    return OwnAspect(backbone.image_size, pixels_for_each, backbone.preparation.interpolation)


def check(task: Task, protocol: str, chosen: Protocol, options: Any) -> None:
    """Raise UserError for options on the images that the protocol cannot honour."""
    resized = task.backbone.deviations.keys() & {"size", "crop", "interpolation"}
    if resized and chosen.resizes:
        raise UserError(
            f"{protocol} resizes images by options of its own; leave out {', '.join(sorted(resized))}"
        )
    if isinstance(task.transform, OwnAspect) and "fit" not in chosen.extracts(options):
        others = [
            name
            for name, other in protocols.every().items()
            if other is not chosen
            and any("fit" in other.extracts(preset) for preset in other.presets.values())
        ]
        remedy = f"leave out aspect keep, or use {', '.join(others)}"
        raise UserError(f"{protocol} crops or resizes the images it trains on itself; {remedy}")


def describe(transform: EvaluationTransform, *sources: Source) -> dict[str, Any]:
    """What was done to the images of these sources, for a result.

    resize: "whole", or "shorter side to N, centre S", or the share of each in percent; where the images may differ in
    size it is told from `looked_at` images, drawn at random.
    """
    interpolation = f"{transform.interpolation}, antialiased"
    if isinstance(transform, OwnAspect):
        resized = f"shorter side to {transform.size}, own aspect, multiples of {transform.stride}"
        return {"size": transform.size, "resize": resized, "interpolation": interpolation}
    cropped = f"shorter side to {transform.short}, centre {transform.size}"
    looked_at = 0
    whole = 0.0
    for source in sources:
        sizes = list(_sizes(source))
        looked_at += len(sizes) if source.uniform_size is None else 0
        share = sum(transform.takes_whole(*size) for size in sizes) / max(1, len(sizes))
        whole += share * len(source) / sum(map(len, sources))
    whole = round(100 * whole, 1)
    how = {100.0: "whole", 0.0: cropped}.get(
        whole, {"whole": whole, cropped: round(100 - whole, 1)}
    )
    told = {"size": transform.size, "resize": how, "interpolation": interpolation}
    return told | ({"looked_at": looked_at} if looked_at else {})


def all_whole(transform: EvaluationTransform, *sources: Source) -> bool:
    """True if each image that is looked at is taken whole; looking ends at the first that is not."""
    return all(transform.takes_whole(*size) for source in sources for size in _sizes(source))


def _sizes(source: Source) -> Iterator[tuple[int, int]]:
    """(height, width) of all images, or of some that are drawn and can be read."""
    if source.uniform_size is not None:
        yield source.uniform_size
        return
    for place in draw_images(len(source), _LOOKED_AT, Stream(0).child("sizes")).tolist():
        with contextlib.suppress(DecodeError):
            height, width = source.decode(place).shape[1:]
            yield height, width
