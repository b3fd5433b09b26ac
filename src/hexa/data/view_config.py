"""How views are made: the published recipes as typed configurations."""

from __future__ import annotations

import math
from typing import Any

import pydantic

from hexa.config import Config, ConfigError, nearest

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
