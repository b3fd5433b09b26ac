"""Views: which crops and colours a training step sees, drawn for the whole batch and made in batches on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from hexa.config import Config, ConfigError, nearest
from hexa.ops import geometry, photometric
from hexa.runtime.random import Stream

Range = tuple[float, float]

# REFERENCE §2.2 (v1, v2), §2.6 (cifar); crop-flip is what supervised probes train on (§7.1)
RECIPES: dict[str, dict[str, Any]] = {
    "moco-v2": {},
    "moco-v1": {
        "hue": 0.4,
        "jitter_probability": 1.0,
        "blur_probability": 0.0,
        "order": ("grayscale", "jitter", "blur", "solarize"),
    },
    "moco-cifar": {"scale": (0.08, 1.0), "blur_probability": 0.0},
    "crop-flip": {
        "num_views": 1,
        "scale": (0.08, 1.0),
        "jitter_probability": 0.0,
        "grayscale_probability": 0.0,
        "blur_probability": 0.0,
    },
}


class ViewsConfig(Config):
    """How views are made from an image. The defaults are MoCo-v2's (REFERENCE §2.2).

    `recipe` may be given instead of the fields: moco-v2, moco-v1, moco-cifar or crop-flip fills in those that are
    absent, and is kept as `based_on`. Where `based_on` is there too (a stored configuration), the fields that still
    hold its values change along.
    """

    based_on: str = "moco-v2"
    """The recipe the other fields started from."""
    size: int = pydantic.Field(default=224, gt=0)
    """Pixels of a view's side."""
    num_views: int = pydantic.Field(default=2, gt=0)
    """Independent draws from the same pipeline for every image."""
    scale: Range = (0.2, 1.0)
    """Share of the image's area that a crop covers."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width over height of a crop."""
    flip_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """How often a view is mirrored."""
    jitter_probability: float = pydantic.Field(default=0.8, ge=0, le=1)
    """How often colours are jittered."""
    brightness: float = pydantic.Field(default=0.4, ge=0)
    """Factors are uniform in [max(0, 1 − b), 1 + b]."""
    contrast: float = pydantic.Field(default=0.4, ge=0)
    """As for brightness."""
    saturation: float = pydantic.Field(default=0.4, ge=0)
    """As for brightness."""
    hue: float = pydantic.Field(default=0.1, ge=0, le=0.5)
    """Shifts are uniform in [−h, h] turns."""
    grayscale_probability: float = pydantic.Field(default=0.2, ge=0, le=1)
    """How often colours are dropped."""
    blur_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """How often a view is blurred."""
    blur_sigma: Range = (0.1, 2.0)
    """Standard deviation in pixels of the view; the kernel reaches 3 σ of the largest."""
    solarize_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """How often values from ½ upwards are inverted."""
    order: tuple[str, ...] = ("jitter", "grayscale", "blur", "solarize")
    """The order of the colour operations. The crop comes first; the flip commutes with all of them and is part of the
    crop.
    """

    @property
    def recipe(self) -> str:
        """The recipe the fields started from."""
        return self.based_on

    @pydantic.model_validator(mode="before")
    @classmethod
    def _recipe(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "recipe" not in value:
            return value
        fields = {name: entry for name, entry in value.items() if name != "recipe"}
        name = value["recipe"]
        if name not in RECIPES:
            raise ConfigError([("recipe", f"unknown recipe '{name}'; {nearest(str(name), RECIPES)}")])
        if fields.get("based_on") in RECIPES:
            before = {**_defaults(cls), **RECIPES[fields["based_on"]]}
            fields = {
                key: entry for key, entry in fields.items() if key == "size" or not _equal(entry, before.get(key))
            }
        return {**RECIPES[name], **fields, "based_on": name}

    @pydantic.model_validator(mode="after")
    def _valid(self) -> ViewsConfig:
        for name, low, high in (("scale", 0.0, 1.0), ("ratio", 0.0, math.inf), ("blur_sigma", 0.0, math.inf)):
            first, last = getattr(self, name)
            if not low < first <= last <= high:
                raise ConfigError(
                    [(name, f"two increasing numbers above 0{' and at most 1' if high == 1 else ''} are needed")]
                )
        if sorted(self.order) != ["blur", "grayscale", "jitter", "solarize"]:
            raise ConfigError([("order", "name each of jitter, grayscale, blur, solarize once")])
        return self


def _defaults(config: type[Config]) -> dict[str, Any]:
    return {name: field.default for name, field in config.model_fields.items()}


def _equal(left: Any, right: Any) -> bool:
    """Equality in which a list read from YAML equals the tuple it was."""
    return (list(left) if isinstance(left, tuple) else left) == (list(right) if isinstance(right, tuple) else right)


# Columns of the uniform numbers that decide one view of one image.
_BOX = slice(0, geometry.UNIFORMS_PER_BOX)
_FLIP, _JITTER, _GRAYSCALE, _BLUR, _SOLARIZE, _SIGMA, _ORDER, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(
    _BOX.stop, _BOX.stop + 11
)
_COLUMNS = _BOX.stop + 11
# Floats worked on at a time: on a CPU what stays in cache is up to twice as fast, on a GPU memory is the only bound.
_CHUNK = {"cpu": 2**19, "cuda": 2**27}


class Views:
    """Makes the views of a batch, all parameters being functions of (stream, row of the image in the global batch).

    >>> crops = Views(ViewsConfig(size=32))(images, stream)      # images uint8 [B, 3, H, W] -> 2 × float [B, 3, 32,
    32] in [0, 1]
    """

    def __init__(self, config: ViewsConfig) -> None:
        self.config = config

    def __call__(self, images: Tensor, stream: Stream, rows: slice | None = None) -> tuple[Tensor, ...]:
        """The `num_views` views of `images` [B, 3, H, W] (uint8, or float in [0, 1]), on their device: float32 [B, 3,
        S, S] each.

        rows: where these images stand in the global batch (default: they are all of it), so that every process makes
        the views that one process would have made.
        """
        numbers = self.draw(stream, rows or slice(0, len(images)))  # [V, B, P]
        views, batch = self.config.num_views, len(images)
        height, width = images.shape[2:]
        boxes, flip = self.boxes(numbers.view(views * batch, _COLUMNS), height, width)
        packed = photometric.to_device(torch.stack((*boxes, flip.long())), images.device)  # [5, V·B]
        source = torch.arange(batch, device=images.device).repeat(views)
        size, out = self.config.size, []
        flat = numbers.view(views * batch, _COLUMNS)
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        for part in _chunks(views * batch, 3 * max(height * width, size * size), images.device):
            now = packed[:, part]
            cut = geometry.crop_resize(
                images.index_select(0, source[part]), geometry.Boxes(*now[:4]), size, now[4].bool()
            )
            out.append(self.recolor(cut.mul_(scale).contiguous(), flat[part]))
        return tuple(torch.cat(out).view(views, batch, 3, size, size).unbind())

    def finish(self, crops: Sequence[Tensor], stream: Stream, rows: slice | None = None) -> tuple[Tensor, ...]:
        """The colour half alone, for crops that a worker cut with `boxes`: V tensors [B, 3, S, S], uint8 or float in
        [0, 1].
        """
        numbers = self.draw(stream, rows or slice(0, len(crops[0])))
        return tuple(
            torch.cat(
                [
                    self.recolor(_unit(crop[part]), number[part])
                    for part in _chunks(len(crop), 3 * self.config.size**2, crop.device)
                ]
            )
            for crop, number in zip(crops, numbers, strict=True)
        )

    def draw(self, stream: Stream, rows: slice) -> Tensor:
        """The numbers in [0, 1) that decide everything about the views of these rows of the global batch: [V, rows, P].

        A row's numbers depend on the stream and on its place, not on the size of the batch.
        """
        shape = (rows.stop, self.config.num_views, _COLUMNS)
        numbers = torch.rand(shape, generator=stream.child("views").generator())
        return numbers[rows.start or 0 :].transpose(0, 1).contiguous()

    def boxes(self, numbers: Tensor, height: Tensor | int, width: Tensor | int) -> tuple[geometry.Boxes, Tensor]:
        """The crop boxes and flips [n] that `numbers` [n, P] decide for images of these heights and widths, on the
        CPU.
        """
        boxes = geometry.random_boxes(numbers[:, _BOX], height, width, self.config.scale, self.config.ratio)
        return boxes, numbers[:, _FLIP] < self.config.flip_probability

    def recolor(self, crops: Tensor, numbers: Tensor) -> Tensor:
        """Colour operations on crops [n, 3, S, S] in [0, 1], as `numbers` [n, P] decide, each on those it applies to.
        May overwrite.
        """
        for name in self.config.order:
            crops = getattr(self, f"_{name}")(crops, numbers)
        return crops

    def _jitter(self, crops: Tensor, numbers: Tensor) -> Tensor:
        config = self.config
        index = _chosen(numbers, _JITTER, config.jitter_probability)
        if not len(index) or not (config.brightness or config.contrast or config.saturation or config.hue):
            return crops
        chosen = numbers[index]

        def factor(column: int, strength: float) -> Tensor:
            low = max(0.0, 1 - strength)
            return low + (1 + strength - low) * chosen[:, column]

        jitter = photometric.Jitter(
            factor(_BRIGHTNESS, config.brightness),
            factor(_CONTRAST, config.contrast),
            factor(_SATURATION, config.saturation),
            config.hue * (2 * chosen[:, _HUE] - 1),
            (chosen[:, _ORDER] * len(photometric.ORDERS)).long(),
        )
        return _apply(crops, index, lambda some: photometric.color_jitter(some, jitter))

    def _grayscale(self, crops: Tensor, numbers: Tensor) -> Tensor:
        return _apply(crops, _chosen(numbers, _GRAYSCALE, self.config.grayscale_probability), photometric.grayscale)

    def _blur(self, crops: Tensor, numbers: Tensor) -> Tensor:
        index = _chosen(numbers, _BLUR, self.config.blur_probability)
        low, high = self.config.blur_sigma
        radius = photometric.blur_radius(high, self.config.size)
        if not len(index) or radius == 0:
            return crops
        sigma = photometric.to_device(low + (high - low) * numbers[index, _SIGMA], crops.device)
        return _apply(crops, index, lambda some: photometric.gaussian_blur(some, sigma, radius))

    def _solarize(self, crops: Tensor, numbers: Tensor) -> Tensor:
        return _apply(crops, _chosen(numbers, _SOLARIZE, self.config.solarize_probability), photometric.solarize)


def _chosen(numbers: Tensor, column: int, probability: float) -> Tensor:
    return (numbers[:, column] < probability).nonzero()[:, 0]


def _apply(crops: Tensor, index: Tensor, operation: Any) -> Tensor:
    """Apply an operation to some of the crops, in place unless it is all of them."""
    if len(index) == 0:
        return crops
    if len(index) == len(crops):
        return operation(crops).contiguous()  # type: ignore[no-any-return]
    index = photometric.to_device(index, crops.device)
    return crops.index_copy_(0, index, operation(crops.index_select(0, index)))


def _unit(crops: Tensor) -> Tensor:
    """A float copy in [0, 1]."""
    return crops.float().div_(255) if crops.dtype == torch.uint8 else crops.float().clone()


def _chunks(rows: int, floats_per_row: int, device: torch.device) -> list[slice]:
    step = max(1, _CHUNK.get(device.type, _CHUNK["cuda"]) // floats_per_row)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class EvaluationTransform:
    """The one view of an image that evaluation sees: uint8 [..., 3, H, W] to uint8 [..., 3, S, S] (REFERENCE §7.1,
    §10.15).

    Squares no larger than S are taken whole, as they are when they have S pixels (CIFAR at 32, STL-10 at 96) and else
    enlarged. Of all others the shorter side is resized to 256/224 · S and the centre S × S is cut. Bilinear,
    antialiased.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, images: Tensor) -> Tensor:
        single = images.ndim == 3
        batch = images[None] if single else images
        height, width = batch.shape[2:]
        if height == width <= self.size:
            out = _resize(batch, self.size, self.size)
        else:
            short = round(self.size * 256 / 224)
            resized_h = short if height <= width else int(short * height / width)
            resized_w = short if width <= height else int(short * width / height)
            top, left = round((resized_h - self.size) / 2), round((resized_w - self.size) / 2)
            out = _resize(batch, resized_h, resized_w)[:, :, top : top + self.size, left : left + self.size]
        return out[0] if single else out


def _resize(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[2:] == (height, width):
        return images
    floats = functional.interpolate(images.float(), (height, width), mode="bilinear", antialias=True)
    return floats.round_().clamp_(0, 255).to(torch.uint8)


def evaluation_transform(size: int) -> EvaluationTransform:
    """The transform of evaluation images for a network that takes `size` × `size` pixels."""
    return EvaluationTransform(size)
