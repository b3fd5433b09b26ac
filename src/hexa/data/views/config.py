"""Configurations of views, and those of published methods by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from hexa.config import Config, ConfigError, nearest
from hexa.runtime.parsing import read_resource

Range = tuple[float, float]


def _within(low: float, high: float) -> Any:
    def check(value: Range) -> Range:
        if not low <= value[0] <= value[1] <= high:
            raise ValueError(f"must be two increasing numbers between {low:g} and {high:g}")
        return value

    return pydantic.AfterValidator(check)


#: Shares of an image's area; sides, lengths and the like against each other.
Scale = Annotated[Range, _within(1e-6, 1.0)]
Ratio = Annotated[Range, _within(0.01, 100)]
#: Least side of a view in pixels.
LEAST_SIZE = 4
#: Largest side of a view in pixels.
MOST_SIZE = 4096
#: Largest number of views.
MOST_VIEWS = 256
#: Fields that only affect RGB images.
COLOURED = ("stain", "saturation", "hue", "grayscale_probability", "randaugment_ops")
_COLOURS = ("jitter", "grayscale", "blur", "solarize")

#: {name: fields of `ViewsConfig`}, those of published methods.
RECIPES: dict[str, dict[str, Any]] = read_resource("hexa.data.views", "recipes.yaml")


@dataclass(frozen=True)
class Group:
    """Views of one size drawn from one distribution: `Crops` with every field set."""

    count: int
    size: int
    scale: Range
    blur_probability: float
    solarize_probability: float


class Crops(Config):
    """A further group of views; a field that is none takes the value of the first group."""

    count: int = pydantic.Field(gt=0, le=MOST_VIEWS)
    """Independent draws for every image."""
    size: int | None = pydantic.Field(default=None, ge=LEAST_SIZE, le=MOST_SIZE)
    """Pixels of a view's side."""
    scale: Scale | None = None
    """Range of the share of the image's area that a crop covers."""
    blur_probability: float | None = pydantic.Field(default=None, ge=0, le=1)
    """How often a view is blurred."""
    solarize_probability: float | None = pydantic.Field(default=None, ge=0, le=1)
    """How often values from ½ upwards are inverted."""

    def sized(self, share: float) -> Crops:
        """The same at this share of its size."""
        return self.model_copy(
            update={"size": self.size and max(LEAST_SIZE, round(self.size * share))}
        )


class ViewsConfig(Config):
    """How views are made from an image. The defaults are MoCo-v2's (F20).

    `recipe`, a name in RECIPES, may be given instead of the fields: it fills in those that are absent, and is stored
    as `based_on`. If `based_on` is given too (a stored configuration), fields that still have its values change to
    those of the recipe, the size only if the recipe has one.
    """

    based_on: str = "moco-v2"
    """The recipe that the other fields are based on."""
    size: int = pydantic.Field(default=224, ge=LEAST_SIZE, le=MOST_SIZE)
    """Pixels of a view's side."""
    test_scale: float = pydantic.Field(default=1.0, ge=0.25, le=4)
    """Evaluation and export take features of images of `test_scale` · size pixels. Crops show things larger than whole
    images do: views of three quarters of the size show them about as large, for half as much (FixRes, NeurIPS 2019)."""
    num_views: int = pydantic.Field(default=2, gt=0, le=MOST_VIEWS)
    """Independent draws from the same pipeline for every image."""
    scale: Scale = (0.2, 1.0)
    """Range of the share of the image's area that a crop covers."""
    magnification: Ratio | None = None
    """Range of view pixels per image pixel, instead of `scale`, for images whose scale has a meaning. A crop has
    size / magnification pixels, but not more than the image."""
    extra_crops: tuple[Crops, ...] = ()
    """Further groups of views, like the first except for the fields they set: multi-crop."""
    ratio: Ratio = (3 / 4, 4 / 3)
    """Range of a crop's width over its height."""
    flip_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """How often a view is mirrored horizontally."""
    vertical_flip_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """How often a view is mirrored vertically."""
    quarter_turn_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """How often a view is turned by 90, 180 or 270 degrees, equally often; 0.75 makes all four directions alike."""
    stain: float = pydantic.Field(default=0.0, ge=0, le=1)
    """For stained sections: the amounts of haematoxylin, eosin and DAB change by factors uniform in [1 − s, 1 + s] and
    shifts uniform in [−s, s] of optical density, in every view, before all other colour operations."""
    jitter_probability: float = pydantic.Field(default=0.8, ge=0, le=1)
    """How often colours are jittered."""
    brightness: float = pydantic.Field(default=0.4, ge=0, le=10)
    """Factors are uniform in [max(0, 1 − b), 1 + b]."""
    contrast: float = pydantic.Field(default=0.4, ge=0, le=10)
    """As for brightness."""
    saturation: float = pydantic.Field(default=0.4, ge=0, le=10)
    """As for brightness."""
    hue: float = pydantic.Field(default=0.1, ge=0, le=0.5)
    """Shifts are uniform in [−h, h] turns."""
    grayscale_probability: float = pydantic.Field(default=0.2, ge=0, le=1)
    """How often colours are dropped."""
    blur_probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """How often a view is blurred."""
    blur_sigma: Ratio = (0.1, 2.0)
    """Standard deviation in pixels of the view; the kernel reaches 3 σ of the largest."""
    solarize_probability: float = pydantic.Field(default=0.0, ge=0, le=1)
    """How often values from ½ upwards are inverted."""
    randaugment_ops: int = pydantic.Field(default=0, ge=0, le=100)
    """Number of RandAugment operations, each drawn from fifteen and applied with probability ½; 0 for none."""
    randaugment_magnitude: float = pydantic.Field(default=10.0, ge=0, le=10)
    """Their mean magnitude, timm's `m`."""
    randaugment_magnitude_std: float = pydantic.Field(default=0.5, ge=0, le=100)
    """Standard deviation of the magnitudes, which are clipped to [0, 10]."""
    order: tuple[str, ...] = _COLOURS
    """The order of the colour operations; randaugment may be left out if randaugment_ops is 0. Crop and flip come
    first."""

    @property
    def test_size(self) -> int:
        """Pixels of the side of the images that features are extracted from."""
        return round(self.test_scale * self.size)

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups in the order of the views: the first, then extra_crops."""
        own = (self.size, self.scale, self.blur_probability, self.solarize_probability)
        first = Group(self.num_views, *own)
        others = [group.model_dump(exclude_none=True) for group in self.extra_crops]
        return (first, *(replace(first, **fields) for fields in others))

    @property
    def total_views(self) -> int:
        """The number of views of an image, over all groups."""
        return sum(group.count for group in self.groups)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _recipe(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "recipe" not in value:
            return value
        fields = {name: entry for name, entry in value.items() if name != "recipe"}
        name = value["recipe"]
        if name not in RECIPES:
            raise _refused("recipe", f"unknown recipe '{name}'; {nearest(str(name), RECIPES)}")
        before = RECIPES.get(fields.get("based_on", ""))
        if before is not None:
            usual = {key: field.default for key, field in cls.model_fields.items()} | before
            kept = {"size"} - RECIPES[name].keys()  # a recipe without a size leaves it unchanged
            fields = {
                key: entry
                for key, entry in fields.items()
                if key in kept or _plain(entry) != _plain(usual.get(key))
            }
        return {**RECIPES[name], **fields, "based_on": name}

    @pydantic.field_validator("extra_crops", mode="before")
    @classmethod
    def _list_of_groups(cls, value: Any) -> Any:
        if value is None:  # from `none` on the command line
            return ()
        is_list = isinstance(value, list | tuple)
        if not is_list or not all(isinstance(group, dict | Crops) for group in value):
            example = "[{count: 6, size: 96, scale: [0.05, 0.14]}]"
            raise _refused("", f"must be a list of groups, for example {example}")
        return value

    @pydantic.model_validator(mode="after")
    def _valid(self) -> ViewsConfig:
        if sorted(self.order) not in (sorted(_COLOURS), sorted((*_COLOURS, "randaugment"))):
            known = ", ".join(_COLOURS)
            raise _refused("order", f"must name each of {known} once, and randaugment if wanted")
        if self.randaugment_ops and "randaugment" not in self.order:
            example = f"for example [{', '.join(RECIPES['infomin']['order'])}]"
            raise _refused("order", f"must contain randaugment for randaugment_ops, {example}")
        if not LEAST_SIZE <= self.test_size <= MOST_SIZE:
            problem = f"gives {self.test_size} pixels, not {LEAST_SIZE} to {MOST_SIZE}"
            raise _refused("test_scale", problem)
        return self


def _refused(field: str, problem: str) -> ConfigError:
    return ConfigError([(field, problem)])


def _plain(value: Any) -> Any:
    """Equal before and after YAML: tuples as lists, configurations as mappings, without the fields that are none."""
    if isinstance(value, Config):
        return _plain(value.model_dump())
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if entry is not None}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
