"""Hostile content of pickle files."""

from __future__ import annotations

from typing import Any

import torch


class Calls:
    """Pickles to a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Reduces:
    """Pickles to a call, then a state, items of a list and items of a mapping."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def pairs(levels: int) -> Any:
    """Return a tuple of tuples; to hash or to print it takes 2^levels steps."""
    found: Any = (1, 1)
    for _ in range(levels):
        found = (found, found)
    return found


def itself(key: str, value: Any) -> Any:
    found: dict[str, Any] = {"x": value}
    found[key] = found
    return found


def doubled(levels: int) -> Any:
    found: Any = [torch.ones(1)]
    for _ in range(levels):
        found = [found, found]
    return {"state_dict": {"conv1.weight": torch.ones(1)}, "x": found}
