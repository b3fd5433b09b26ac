"""Tab completion by argcomplete: commands, options, and names of recipes and protocols, without importing torch."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from hexa.entry_points import added
from hexa.evaluation import protocols

#: The file of a package that lists its recipes, and its modifiers with a plus, a line each.
LISTED = "recipes.txt"


def complete(build: Callable[[str], tuple[ArgumentParser, Mapping[str, ArgumentParser]]]) -> None:
    """Answer the shell that asks for completions, and end the process; do nothing without argcomplete.

    build: from the name of a command to the parser, and the parser of each command by name.
    """
    try:
        import argcomplete
    except ImportError:
        return
    words = os.environ.get("COMP_LINE", "").split()
    parser, parsers = build(words[1] if len(words) > 1 else "")
    for command in parsers.values():
        for action in command._actions:
            if action.dest in _NAMES:
                action.completer = _NAMES[action.dest]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _recipes(prefix: str, **_: Any) -> list[str]:
    """Names of recipes or, after a plus, the name so far with each modifier."""
    entries = added("hexa.recipes").values()
    packages = {"hexa", *(entry.module.partition(".")[0] for entry in entries)}
    listed = [files(package) / LISTED for package in sorted(packages)]
    lines = [line for file in listed if file.is_file() for line in file.read_text().split()]
    base, plus = prefix.rpartition("+")[:2]
    if plus:
        return [f"{base}{line}" for line in lines if line.startswith("+")]
    return [line for line in lines if not line.startswith("+")]


_NAMES: dict[str, Callable[..., list[str]]] = {
    "recipe": _recipes,
    "protocol": lambda **_: protocols.names(),
}
