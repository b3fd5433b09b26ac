"""The protocols: one module each, whose file name is the protocol's name and which defines PROTOCOL.

The command line, its help and the documentation find a protocol by its file; nothing lists them. Other distributions
add theirs as entry points of the group `hexa.protocols`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, cast

from hexa.entry_points import added

if TYPE_CHECKING:
    from hexa.evaluation.protocol import Protocol

#: The entry points of protocols that other distributions add.
GROUP = "hexa.protocols"


def names() -> list[str]:
    """The names of all protocols, found without importing them."""
    return sorted(_own() | {entry.name for entry in added(GROUP)})


def _own() -> set[str]:
    return {module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)}


def get(name: str) -> Protocol:
    """The protocol of this name. Raises UserError."""
    from hexa.config import UserError, nearest

    if name not in names():
        raise UserError(f"unknown protocol '{name}'; {nearest(name, names())}")
    if name not in _own():
        entry = next(entry for entry in added(GROUP) if entry.name == name)
        try:
            return cast("Protocol", entry.load())
        except Exception as error:
            raise UserError(
                f"{entry.value}, the protocol '{name}', cannot be imported ({error})"
            ) from error
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast("Protocol", module.PROTOCOL)


def summary(name: str) -> str:
    """The first paragraph of a protocol's module."""
    return " ".join((sys.modules[get(name).run.__module__].__doc__ or "").split("\n\n")[0].split())


def every() -> dict[str, Protocol]:
    """All protocols by name."""
    return {name: get(name) for name in names()}
