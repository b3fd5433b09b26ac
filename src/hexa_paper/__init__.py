"""The paper's own parts: its experiments and recipes, compared methods, detection, semi-supervised learning.

An experiment is one command that can be stopped anywhere: arms × seeds × epochs, then tables and figures.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.console import Console

__all__ = ["reproduce"]


def reproduce(
    experiment: str, data: str, *, console: Console | None = None, **options: Any
) -> Path:
    """Carry out one of the paper's experiments, or "all" of them, or resume it, and return its folder.

    options: those of a `Request`; others are fields of every arm's experiment, by path. The folder holds tables,
    result.json, figures/ as PNG and SVG, results/ and runs/. Raises UserError before any work.
    """
    from hexa.runtime.console import Console
    from hexa_paper.loop import begin, make
    from hexa_paper.request import Request

    known = {one.name for one in fields(Request)}
    of_arms = {name: options.pop(name) for name in list(options) if name not in known}
    log = console or Console(stderr=True)
    request = Request(data, fields=of_arms, **options)
    return make(begin(experiment, request, log), log)
