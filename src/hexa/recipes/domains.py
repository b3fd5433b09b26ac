"""Fields of views that fit images which are not photographs of things; `domains.yaml` has them.

`--domain NAME` of `hexa pretrain` and `hexa visualize` sets them; what a user sets besides wins. Groups of extra_crops
keep what they say themselves, as those of BYOL and DINO do of blur and solarisation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hexa.config import UserError, nearest
from hexa.runtime import parsing

_VIEWS: dict[str, dict[str, Any]] = parsing.read_resource("hexa.recipes", "domains.yaml")
NAMES = tuple(_VIEWS)


def changes(name: str, given: Collection[str] = ()) -> dict[str, Any]:
    """The fields of an experiment that a domain sets, by dotted path, for `hexa.recipes.experiment.override`.

    given: the paths that a user sets, which are left out; `views.scale` is one way to say how large crops are, so that
    with it no magnification is set. Raises UserError with the nearest name.
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
