"""How images are prepared for a backbone, and how that is known (REFERENCE §0, §7, D22)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, cast

import timm
import timm.data

from hexa.config import UserError
from hexa.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Channels, mean_of, std_of

#: The share of the shorter side that the centre crop takes, as published: 224 of 256.
CROP = 224 / 256
INTERPOLATIONS = ("bilinear", "bicubic")
#: Pixels: more than any network of timm takes; a batch of such images still fits into memory.
LARGEST = 4096
#: Where a value comes from. A user is told of it unless it is hexa's own file.
OWN, ASSUMED, GIVEN, DECLARED = "its own file or run", "assumed", "given", "declared by the network"


class Given(TypedDict, total=False):
    """What a user may set of a backbone's preparation; None leaves it as it is."""

    mean: object
    std: object
    size: object
    crop: object
    interpolation: object


@dataclass(frozen=True)
class Preparation:
    """How pixels become the input of a network.

    mean, std: of each channel, pixels in [0, 1]. size: of the square that the network takes. crop: the share of the
    shorter side that the centre crop takes. interpolation: bilinear or bicubic, antialiased. origins: where each comes
    from, by its name. Raises UserError for impossible values.
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
        if not _is_number(self.size) or self.size != int(self.size) or not 1 <= self.size <= LARGEST:
            raise UserError(f"size must be a whole number of pixels from 1 to {LARGEST}, got {self.size!r}")
        if not _is_number(self.crop) or not 0.1 <= self.crop <= 1:
            raise UserError(f"crop must be a share of the image from 0.1 to 1, got {self.crop!r}")
        if self.interpolation not in INTERPOLATIONS:
            raise UserError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}")
        object.__setattr__(self, "origins", {name: self.origins.get(name, OWN) for name in NAMES})

    def values(self) -> dict[str, Any]:
        """Each value by its name, as JSON has it."""
        given = {name: getattr(self, name) for name in NAMES}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    def said(self) -> str | None:
        """A sentence for the reader of a number made with it; None if all of it is from a file of hexa."""
        parts = []
        for origin in dict.fromkeys(self.origins.values()):
            values = ", ".join(f"{name} {shown(self.values()[name])}" for name in NAMES if self.origins[name] == origin)
            hint = ": the file does not say; --mean, --std and --size set others" if origin == ASSUMED else ""
            parts.append(f"{values} ({origin}{hint})")
        return None if set(self.origins.values()) == {OWN} else f"images are prepared with {'; '.join(parts)}"

    def changed(self, given: Given) -> tuple[Preparation, dict[str, list[Any]]]:
        """With what a user set, and {name: [before, after]} of what that changed."""
        channels = len(self.mean)
        wanted = {name: _read(name, value, channels) for name, value in given.items() if value is not None}
        for name, check in (("mean", mean_of), ("std", std_of)):
            if name in wanted:
                check(wanted[name], channels)
        origins = {**self.origins, **dict.fromkeys(wanted, GIVEN)}
        after = replace(self, **wanted, origins=origins)
        pairs = {name: [self.values()[name], after.values()[name]] for name in wanted}
        return after, {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


NAMES = tuple(one.name for one in fields(Preparation) if one.name != "origins")


def assumed(size: int = 224) -> Preparation:
    """What most networks trained on ImageNet use, where the file says nothing."""
    return Preparation(IMAGENET_MEAN, IMAGENET_STD, size, origins=dict.fromkeys(NAMES, ASSUMED))


def published(whose: str, std: Channels = IMAGENET_STD) -> Preparation:
    """What the published code of `whose` trains and evaluates with (REFERENCE §0, §7)."""
    return Preparation(IMAGENET_MEAN, std, 224, origins=dict.fromkeys(NAMES, f"published with {whose}"))


def of_timm(name: str) -> Preparation:
    """timm's configuration of a network NAME, or of its weights NAME.TAG."""
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not config.input_size:
        return assumed()
    own = timm.data.resolve_data_config(pretrained_cfg=config.to_dict())
    tagged = name if "." in name or not config.tag else f"{name}.{config.tag}"
    return Preparation(
        mean_of(own["mean"]),
        std_of(own["std"]),
        int(own["input_size"][-1]),
        float(own["crop_pct"]),
        own["interpolation"] if own["interpolation"] in INTERPOLATIONS else "bicubic",
        dict.fromkeys(NAMES, f"timm's configuration of {tagged}"),
    )


def _read(name: str, value: object, channels: int) -> Any:
    """A value as it may come from a command line: 0.5 and 0.5,0.5,0.5 and [0.5, 0.5, 0.5] for mean and std."""
    try:
        if isinstance(value, bool):
            raise TypeError
        if name in ("mean", "std"):
            parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
            several = [parts] if isinstance(parts, int | float) else list(cast(Any, parts))
            numbers = tuple(float(part) for part in several)
            return numbers * channels if len(numbers) == 1 else numbers
        if name == "size":
            return int(cast(Any, value))
        return float(cast(Any, value)) if name == "crop" else value
    except (TypeError, ValueError, OverflowError):
        kind = f"{channels} numbers, one a channel" if name in ("mean", "std") else "a number"
        raise UserError(f"{name} must be {kind}, got {value!r}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: object) -> str:
    """A value as a user may type it."""
    if isinstance(value, list):
        return f"{value[0]:g}" if len(set(value)) == 1 else ",".join(f"{part:g}" for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
