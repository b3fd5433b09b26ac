"""Presets of views for images other than photographs of objects, read from `domains.yaml`.

`--domain NAME` sets the fields of a preset; fields that the user sets take precedence. Groups of extra_crops keep their
own fields, such as blur and solarisation in BYOL and DINO.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hexa.config import UserError, nearest
from hexa.runtime import parsing

_VIEWS: dict[str, dict[str, Any]] = parsing.read_resource("hexa.recipes", "domains.yaml")
NAMES = tuple(_VIEWS)


def changes(name: str, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that a domain sets, by dotted path, for `hexa.recipes.experiment.override`.

    given: paths that the user sets, which are left out. If `views.scale` is given, `views.magnification` is left out
    too, because both set the size of crops. Raises UserError with the nearest name.
    """
    if name not in _VIEWS:
        raise UserError(f"--domain: unknown domain '{name}'; {nearest(name, NAMES)}")
    left_out = set(given)
    if "views.scale" in left_out:
        left_out.add("views.magnification")
    changed = {}
    for field, value in _VIEWS[name].items():
        if f"views.{field}" not in left_out:
            changed[f"views.{field}"] = value
    return changed
