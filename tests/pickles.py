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


def itself(key: str, value: Any) -> Any:
    found: dict[str, Any] = {"x": value}
    found[key] = found
    return found


def doubled(levels: int) -> Any:
    found: Any = [torch.ones(1)]
    for _ in range(levels):
        found = [found, found]
    return {"state_dict": {"conv1.weight": torch.ones(1)}, "x": found}
