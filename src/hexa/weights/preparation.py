"""Preparation of images for a backbone, and the origin of its values (F1, F21, D22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

import numpy as np
import timm
import timm.data

from hexa.config import UserError, is_number
from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Channels, mean_of, std_of

#: Side of the centre crop as a share of the shorter side, as published: 224 / 256.
CROP = 224 / 256
INTERPOLATIONS = ("bilinear", "bicubic")
#: Largest image size in pixels; no timm network needs more.
LARGEST = 4096
#: Origins of a value; results report them unless the file is hexa's own.
OWN = "its own file or run"
ASSUMED = "assumed"
GIVEN = "given"
DECLARED = "declared by the network"


class Given(TypedDict, total=False):
    """Values of a backbone's preparation that a user may set; None keeps the backbone's own."""

    mean: object
    std: object
    size: object
    crop: object
    interpolation: object


@dataclass(frozen=True)
class Preparation:
    """Conversion of an image to the input of a network.

    mean, std: of each channel, for pixels in [0, 1].
    size: side of the input in pixels.
    crop: side of the centre crop as a share of the shorter side.
    interpolation: bilinear or bicubic, antialiased.
    origins: source of each value, by name.
    Raises UserError for impossible values.
    """

    mean: Channels
    std: Channels
    size: int
    crop: float = CROP
    interpolation: str = "bilinear"
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", mean_of(self.mean))
        object.__setattr__(self, "std", std_of(self.std, len(self.mean)))
        whole = is_number(self.size) and self.size == int(self.size)
        if not whole or not 1 <= self.size <= LARGEST:
            raise UserError(f"size must be an integer from 1 to {LARGEST}, got {self.size!r}")
        object.__setattr__(self, "size", int(self.size))
        if not is_number(self.crop) or not 0.1 <= self.crop <= 1:
            raise UserError(f"crop must be a share of the image from 0.1 to 1, got {self.crop!r}")
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise UserError(f"interpolation must be one of {known}, got {self.interpolation!r}")
        object.__setattr__(self, "origins", {name: self.origins.get(name, OWN) for name in NAMES})

    def values(self) -> dict[str, Any]:
        """Return each value by name, for JSON."""
        values = {name: getattr(self, name) for name in NAMES}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def said(self) -> str | None:
        """Return a sentence about the values and their origins, for results; None if all are from a
        hexa file."""
        if set(self.origins.values()) == {OWN}:
            return None
        parts = []
        for origin in dict.fromkeys(self.origins.values()):
            values = [
                f"{name} {shown(value)}"
                for name, value in self.values().items()
                if self.origins[name] == origin
            ]
            hint = ": the file does not say; --mean, --std and --size set others"
            parts.append(f"{', '.join(values)} ({origin}{hint if origin == ASSUMED else ''})")
        if self.crop < 1:
            parts.append(f"square images of at most {self.size} px are taken whole")
        return f"images are prepared with {'; '.join(parts)}"

    def changed(self, given: Given) -> tuple[Preparation, dict[str, list[Any]]]:
        """Return the preparation with a user's values, and {name: [before, after]} of the values
        that changed."""
        wanted = {
            name: _read(name, value, len(self.mean))
            for name, value in given.items()
            if value is not None
        }
        after = replace(self, **wanted, origins={**self.origins, **dict.fromkeys(wanted, GIVEN)})
        pairs = {name: [self.values()[name], after.values()[name]] for name in wanted}
        return after, {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


NAMES = tuple(one.name for one in fields(Preparation) if one.name != "origins")


def assumed(size: int = 224) -> Preparation:
    """Return the values of most ImageNet networks, for files without any."""
    return Preparation(IMAGENET_MEAN, IMAGENET_STD, size, origins=dict.fromkeys(NAMES, ASSUMED))


def published(whose: str, std: Channels, interpolation: str) -> Preparation:
    """Return the values in the published code of `whose` (F1, F21)."""
    origins = dict.fromkeys(NAMES, f"published with {whose}")
    return Preparation(IMAGENET_MEAN, std, 224, interpolation=interpolation, origins=origins)


def current_name(name: str) -> str:
    """Return timm's current name of a renamed network, such as convnext_tiny.fb_in22k for
    convnext_tiny_in22k."""
    return timm.models.get_deprecated_models().get(name) or name


def of_timm(name: str) -> Preparation:
    """Return timm's configuration of a network NAME, or of its weights NAME.TAG."""
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not config.input_size:
        return assumed()
    tagged = name if "." in name or not config.tag else f"{name}.{config.tag}"
    return of_timms_values(config.to_dict(), f"timm's configuration of {tagged}")


def of_timms_values(config: Mapping[str, Any], origin: str) -> Preparation:
    """Return the preparation in a pretrained_cfg of timm."""
    own = timm.data.resolve_data_config(pretrained_cfg=dict(config))
    return Preparation(
        own["mean"],
        own["std"],
        int(own["input_size"][-1]),
        float(own["crop_pct"]),
        own["interpolation"] if own["interpolation"] in INTERPOLATIONS else "bicubic",
        dict.fromkeys(NAMES, origin),
    )


def _read(name: str, value: Any, channels: int) -> Any:
    """Parse a user's value; mean and std may also be one number for all channels, or text such as
    0.5,0.5,0.5."""
    if name == "interpolation":
        return value
    check = {"mean": mean_of, "std": std_of}.get(name)
    try:
        if check is None:
            return float(value) if name == "crop" else int(value)
        parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
        numbers = np.atleast_1d(np.asarray(parts, dtype=float)).tolist()
    except (TypeError, ValueError, OverflowError):
        what = "a number" if check is None else "numbers"
        raise UserError(f"{name} must be {what}, got {value!r}") from None
    return check(numbers * channels if len(numbers) == 1 else numbers, channels)


def shown(value: object) -> str:
    """Return a value as a user would type it."""
    if isinstance(value, list):
        return f"{value[0]:g}" if len(set(value)) == 1 else ",".join(f"{part:g}" for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
