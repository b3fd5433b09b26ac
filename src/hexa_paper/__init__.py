"""The paper's experiments, each as one command that can be stopped anywhere: arms × seeds × epochs, tables, figures."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.console import Console
    from hexa_paper.whole import Whole
    from hexa_paper.work import Work

__all__ = ["begin", "reproduce"]


def begin(experiment: str, data: str, *, time: str | None = None, **options: Any) -> Work | Whole:
    """One of the paper's experiments, or "all" of them, checked and not yet carried out; options as for `reproduce`.

    time: for all of them together.
    """
    from hexa.config import UserError
    from hexa_paper.whole import Whole
    from hexa_paper.work import Work

    if experiment == "all":
        return Whole.begin(data, time=time, **options)
    if time is not None:
        raise UserError(f"--time: is for all experiments together; for {experiment} give --epochs")
    return Work.begin(experiment, data, **options)


def reproduce(experiment: str, data: str, *, console: Console | None = None, **options: Any) -> Path:
    """Carry out one of the paper's experiments, or "all" of them, or resume it, and return its folder.

    options: those of `Work.begin`, or of `Whole.begin` for all; others are fields of every arm's experiment, by path.
    The folder holds tables, result.json, figures/ as PNG and SVG, runs/. Raises UserError before any work.
    """
    from hexa.runtime.console import Console
    from hexa_paper.work import Work

    known = {*inspect.signature(Work.begin).parameters, "time"}
    fields = {name: options.pop(name) for name in list(options) if name not in known}
    return begin(experiment, data, fields=fields, **options).carry_out(console or Console(stderr=True))
