"""Configurations of views, with the settings of published methods by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from hexa.config import Config, field_error, nearest
from hexa.runtime.parsing import read_resource

Range = tuple[float, float]


def _within(low: float, high: float) -> Any:
    def check(value: Range) -> Range:
        if not low <= value[0] <= value[1] <= high:
            raise ValueError(f"must be two increasing numbers between {low:g} and {high:g}")
        return value

    return pydantic.AfterValidator(check)


#: Range of shares of an image's area.
Scale = Annotated[Range, _within(1e-6, 1.0)]
#: Range of ratios, such as of sides or lengths.
Ratio = Annotated[Range, _within(0.01, 100)]
#: Smallest side of a view in pixels.
LEAST_SIZE = 4
#: Largest side of a view in pixels.
MOST_SIZE = 4096
#: Maximum number of views.
MOST_VIEWS = 256
#: Fields that only affect RGB images.
COLOURED = ("stain", "saturation", "hue", "grayscale_probability", "randaugment_ops")
_COLOURS = ("jitter", "grayscale", "blur", "solarize")

#: {name: fields of `ViewsConfig`} of published methods.
RECIPES: dict[str, dict[str, Any]] = read_resource("hexa.data.views", "recipes.yaml")


@dataclass(frozen=True)
class Group:
    """Views of one size from one distribution: `Crops` with every field set."""

    count: int
    size: int
    scale: Range
    blur_probability: float
    solarize_probability: float


class Crops(Config):
    """A further group of views; fields that are none have the value of the first group."""

    count: int = pydantic.Field(gt=0, le=MOST_VIEWS)
    """Number of views of an image in this group."""
    size: int | None = pydantic.Field(default=None, ge=LEAST_SIZE, le=MOST_SIZE)
    """Side of a view in pixels."""
    scale: Scale | None = None
    """Range of the share of the image's area that a crop covers."""
    blur_probability: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Probability of a Gaussian blur."""
    solarize_probability: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Probability of solarisation, which inverts values of ½ and more."""

    def sized(self, share: float) -> Crops:
        """Return the group with its size multiplied by `share`."""
        return self.model_copy(
            update={"size": self.size and max(LEAST_SIZE, round(self.size * share))}
        )


class ViewsConfig(Config):
    """Settings of the views of an image. The defaults are those of MoCo-v2 (F20).

    `recipe`, a name in RECIPES, sets the fields that are not given, and is stored as `based_on`. If `based_on` is given
    too, as in a stored configuration, `recipe` replaces the fields that still have the values of `based_on`; the size is
    replaced only if the new recipe has one.
    """

    based_on: str = "moco-v2"
    """Name of the recipe of the other fields."""
    size: int = pydantic.Field(default=224, ge=LEAST_SIZE, le=MOST_SIZE)
    """Side of a view in pixels."""
    test_scale: float = pydantic.Field(default=1.0, ge=0.25, le=4)
    """Image size in evaluation and export, divided by `size`. Random crops enlarge objects, so that views of ¾ of the
    evaluation size show objects at a similar size, at half the cost (FixRes, NeurIPS 2019)."""
    num_views: int = pydantic.Field(default=2, gt=0, le=MOST_VIEWS)
    """Number of views of an image, drawn independently from one distribution."""
    scale: Scale = (0.2, 1.0)
    """Range of the share of the image's area that a crop covers."""
    magnification: Ratio | None = None
    """Range of view pixels per image pixel, for images with a fixed physical scale; replaces `scale`. The side of a crop
    is size / magnification pixels, or the whole image if that is smaller."""
    extra_crops: tuple[Crops, ...] = ()
    """Further groups of views (multi-crop); fields that a group does not set have the values of the first group."""
    ratio: Ratio = (3 / 4, 4 / 3)
    """Range of width / height of a crop."""
    flip_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Probability of mirroring a view horizontally."""
    vertical_flip_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Probability of mirroring a view vertically."""
    quarter_turn_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Probability of a rotation by 90, 180 or 270 degrees; at 0.75, all four directions are equally likely."""
    stain: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Strength s of stain jitter for histology. In every view, before other colour operations, the amounts of
    haematoxylin, eosin and DAB change by factors in [1 − s, 1 + s] and by shifts in [−s, s] of optical density."""
    jitter_probability: float = pydantic.Field(default=0.8, ge=0, le=1)
    """Probability of colour jitter."""
    brightness: float = pydantic.Field(default=0.4, ge=0, le=10)
    """Strength b of the brightness jitter: the factor is uniform in [max(0, 1 − b), 1 + b]."""
    contrast: float = pydantic.Field(default=0.4, ge=0, le=10)
    """Strength c of the contrast jitter: the factor is uniform in [max(0, 1 − c), 1 + c]."""
    saturation: float = pydantic.Field(default=0.4, ge=0, le=10)
    """Strength s of the saturation jitter: the factor is uniform in [max(0, 1 − s), 1 + s]."""
    hue: float = pydantic.Field(default=0.1, ge=0, le=0.5)
    """Strength h of the hue jitter: the shift is uniform in [−h, h] turns."""
    grayscale_probability: float = pydantic.Field(default=0.2, ge=0, le=1)
    """Probability of conversion to grey."""
    blur_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Probability of a Gaussian blur."""
    blur_sigma: Ratio = (0.1, 2.0)
    """Range of the standard deviation of the blur, in view pixels; the kernel radius is 3 times the maximum."""
    solarize_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Probability of solarisation, which inverts values of ½ and more."""
    randaugment_ops: int = pydantic.Field(default=0, ge=0, le=100)
    """Number of RandAugment operations, each drawn from fifteen and applied with probability ½."""
    randaugment_magnitude: float = pydantic.Field(default=10.0, ge=0, le=10)
    """Mean magnitude of RandAugment, `m` of timm."""
    randaugment_magnitude_std: float = pydantic.Field(default=0.5, ge=0, le=100)
    """Standard deviation of RandAugment magnitudes, which are clipped to [0, 10]."""
    order: tuple[str, ...] = _COLOURS
    """Order of the colour operations, which follow crop and flip; randaugment may be omitted if randaugment_ops is 0."""

    @property
    def test_size(self) -> int:
        """Side in pixels of the images in evaluation and export."""
        return round(self.test_scale * self.size)

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups in the order of the views: the first group, then extra_crops."""
        own = (self.size, self.scale, self.blur_probability, self.solarize_probability)
        first = Group(self.num_views, *own)
        others = [group.model_dump(exclude_none=True) for group in self.extra_crops]
        return (first, *(replace(first, **fields) for fields in others))

    @property
    def total_views(self) -> int:
        """Number of views of an image, over all groups."""
        return sum(group.count for group in self.groups)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _recipe(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "recipe" not in value:
            return value
        fields = {name: entry for name, entry in value.items() if name != "recipe"}
        name = value["recipe"]
        if name not in RECIPES:
            raise field_error("recipe", f"unknown recipe '{name}'; {nearest(str(name), RECIPES)}")
        before = RECIPES.get(fields.get("based_on", ""))
        if before is not None:
            usual = {key: field.default for key, field in cls.model_fields.items()} | before
            kept = {"size"} - RECIPES[
                name
            ].keys()  # a recipe without a size leaves the size unchanged
            fields = {
                key: entry
                for key, entry in fields.items()
                if key in kept or _plain(entry) != _plain(usual.get(key))
            }
        return {**RECIPES[name], **fields, "based_on": name}

    @pydantic.model_validator(mode="after")
    def _valid(self) -> ViewsConfig:
        if sorted(self.order) not in (sorted(_COLOURS), sorted((*_COLOURS, "randaugment"))):
            known = ", ".join(_COLOURS)
            raise field_error(
                "order", f"must name each of {known} once, and optionally randaugment"
            )
        if self.randaugment_ops and "randaugment" not in self.order:
            raise field_error(
                "order",
                "must contain randaugment for randaugment_ops, for example "
                f"[{', '.join(RECIPES['infomin']['order'])}]",
            )
        if not LEAST_SIZE <= self.test_size <= MOST_SIZE:
            raise field_error(
                "test_scale", f"gives {self.test_size} pixels, not {LEAST_SIZE} to {MOST_SIZE}"
            )
        return self


def _plain(value: Any) -> Any:
    """Return a value in the form of YAML: lists for tuples, mappings without fields that are none for configurations."""
    if isinstance(value, Config):
        return _plain(value.model_dump())
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if entry is not None}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
