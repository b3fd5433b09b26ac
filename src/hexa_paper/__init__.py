"""What only the paper needs: its experiments and recipes, compared methods, detection, semi-supervised learning.

An experiment is one command that can be stopped anywhere: arms × seeds × epochs, then tables and figures.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.console import Console
    from hexa_paper.whole import Whole
    from hexa_paper.work import Work

__all__ = ["begin", "reproduce"]


def begin(experiment: str, data: str, **options: Any) -> Work | Whole:
    """One of the paper's experiments, or "all" of them, checked and not yet carried out; options as for `reproduce`."""
    from hexa_paper.request import Request
    from hexa_paper.whole import Whole
    from hexa_paper.work import Work

    request = Request(data, **options)
    return Whole.begin(request) if experiment == "all" else Work.begin(experiment, request)


def reproduce(
    experiment: str, data: str, *, console: Console | None = None, **options: Any
) -> Path:
    """Carry out one of the paper's experiments, or "all" of them, or resume it, and return its folder.

    options: those of a `Request`; others are fields of every arm's experiment, by path. The folder holds tables,
    result.json, figures/ as PNG and SVG, runs/. Raises UserError before any work.
    """
    from hexa.runtime.console import Console
    from hexa_paper.request import Request

    known = {one.name for one in fields(Request)}
    of_arms = {name: options.pop(name) for name in list(options) if name not in known}
    return (
        begin(experiment, data, fields=of_arms, **options)
        .measured()
        .carry_out(console or Console(stderr=True))
    )
