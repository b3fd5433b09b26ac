"""What is known of images that are not photographs of things: fields that fit a recipe's views to their domain.

`--domain NAME` of `hexa pretrain` and `hexa visualize` sets them; what a user sets beside wins. Groups of extra_crops
keep what they say themselves, as those of BYOL and DINO do of blur and solarisation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hexa.config import UserError, nearest

# No colour is made up where colour says nothing (grey) or is what was measured (dyes); how bright a grey image is
# depends on exposure and window. RandAugment would bring colours back.
_NO_COLOURS = {"saturation": 0.0, "hue": 0.0, "grayscale_probability": 0.0, "randaugment_ops": 0}
# Seen from above nothing has a right way up: all eight symmetries of the square are alike.
_FROM_ABOVE = {
    "flip_probability": 0.5,
    "vertical_flip_probability": 0.5,
    "quarter_turn_probability": 0.75,
}

_VIEWS: dict[str, dict[str, Any]] = {
    # What the recipes were made for: gravity has a direction, left and right are alike, colours change with the light.
    "photos": {},
    # From the air the scale is known: a house is never as large as a field. Haze and season change colours somewhat.
    "aerial": _FROM_ABOVE
    | {
        "magnification": (0.5, 2.0),
        "saturation": 0.2,
        "hue": 0.05,
        "solarize_probability": 0.0,
        "randaugment_ops": 0,
    },
    # The size of a cell is a finding, so crops keep it; what is out of focus stays recognisable only with a small blur.
    "microscopy": _FROM_ABOVE
    | _NO_COLOURS
    | {
        "magnification": (0.8, 1.25),
        "ratio": (1.0, 1.0),
        "blur_sigma": (0.1, 1.0),
        "solarize_probability": 0.0,
    },
    # Writing is not mirrored, letters keep their shape, and a crop must hold some of the layout. Scanners differ in
    # exposure and focus; colour is a few stamps and letterheads, which may go.
    "documents": {
        "flip_probability": 0.0,
        "scale": (0.3, 1.0),
        "ratio": (0.9, 1.1),
        "blur_sigma": (0.1, 1.0),
    }
    | _NO_COLOURS
    | {"grayscale_probability": 0.2, "solarize_probability": 0.0},
    # A finding may be a few pixels: large crops, no blur. Exposure and window differ between machines (MoCo-CXR,
    # Sowrirajan et al. 2021). Mirrored bodies are rare; as there, they are allowed, for twice the poses.
    "medical-grey": _NO_COLOURS
    | {
        "scale": (0.5, 1.0),
        "ratio": (0.9, 1.1),
        "blur_probability": 0.0,
        "solarize_probability": 0.0,
    },
    # Stains differ between laboratories: they change as dyes do, and colours otherwise little (Tellez et al. 2018; Kang
    # et al. 2023). Cells keep their size within what scanners and focus make of it.
    "histology": _FROM_ABOVE
    | {
        "magnification": (0.7, 1.4),
        "ratio": (1.0, 1.0),
        "stain": 0.05,
        "brightness": 0.2,
        "contrast": 0.2,
    }
    | {"saturation": 0.1, "hue": 0.02, "grayscale_probability": 0.0, "blur_sigma": (0.1, 1.0)}
    | {"solarize_probability": 0.0, "randaugment_ops": 0},
}

NAMES = tuple(_VIEWS)


def changes(name: str, given: Collection[str] = ()) -> dict[str, Any]:
    """The fields of an experiment that a domain sets, by dotted path, for `hexa.recipes.experiment.override`.

    given: the paths that a user sets, which are left out; `views.scale` is one way to say how large crops are, so that
    with it no magnification is set. Raises UserError with the nearest name.
    """
    if name not in _VIEWS:
        raise UserError(f"--domain: unknown domain '{name}'; {nearest(name, NAMES)}")
    left_out = {*given, "views.magnification"} if "views.scale" in given else {*given}
    return {
        f"views.{field}": value
        for field, value in _VIEWS[name].items()
        if f"views.{field}" not in left_out
    }
