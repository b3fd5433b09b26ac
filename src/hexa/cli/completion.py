"""Tab completion by argcomplete: commands, options, and names of recipes and protocols, without importing torch."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any

from hexa.evaluation import protocols
from hexa.recipes import listing


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
    listed = listing.read()
    base, plus, _rest = prefix.rpartition("+")
    if plus:
        return [f"{base}+{name}" for name in listed.modifiers]
    return listed.names


_NAMES: dict[str, Callable[..., list[str]]] = {
    "recipe": _recipes,
    "protocol": lambda **_: protocols.names(),
}
