"""Entry points, by which installed distributions add to hexa:

- `hexa.commands`: a function that `hexa.cli.declare.command` decorates, by the command's name
- `hexa.methods`, `hexa.hard_examples`: a module that defines them, by any name
- `hexa.protocols`: a `hexa.evaluation.protocol.Protocol`, by the protocol's name
- `hexa.recipes`: a module that registers recipes, by any name
- `hexa.references`: a module with published results, as `hexa.reporting.references` says, by any name

`hexa_paper` comes in this way, and so does any package of your own.
"""

from __future__ import annotations

import functools
import importlib.metadata
from importlib.metadata import EntryPoint


@functools.cache
def added(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, in the order of their names."""
    found = importlib.metadata.entry_points(group=group)
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}
