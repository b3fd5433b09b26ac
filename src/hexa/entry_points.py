"""Entry points, by which installed distributions add to hexa:

- `hexa.commands`: a function that `hexa.cli.declare.command` decorates, by the command's name
- `hexa.methods`, `hexa.hard_examples`: a module that defines them, by any name
- `hexa.protocols`: a `hexa.evaluation.protocol.Protocol`, by the protocol's name
- `hexa.recipes`: a module that registers recipes, by any name
- `hexa.streams`: a function that builds a network from a `hexa.nn.backbones.NetworkConfig`, by the value of its field
  `streams`
- `hexa.references`: a module with published results, as `hexa.reporting.references` says, by any name

`hexa_paper` comes in this way, and so does any package of your own.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from importlib.metadata import EntryPoint
from typing import Any


@functools.cache
def added(group: str) -> list[EntryPoint]:
    """Return the entry points of a group in the order of their names."""
    found = importlib.metadata.entry_points(group=group)
    return sorted(found, key=lambda entry: (entry.name, entry.value))


@functools.cache
def loaded(group: str) -> list[Any]:
    """Load the entry points of a group; an entry point that fails is left out, with a line on standard error."""
    found = []
    for entry in added(group):
        try:
            found.append(entry.load())
        except (Exception, SystemExit) as error:
            home = f" of {entry.dist.name}" if entry.dist is not None else ""
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            line = f"hexa: {entry.value}{home} cannot be imported and is left out ({problem})"
            print(line, file=sys.stderr)
    return found
