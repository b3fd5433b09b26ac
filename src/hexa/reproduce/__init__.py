"""The paper's experiments, each as one command that can be stopped anywhere: arms × seeds × epochs, tables, figures."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from hexa.reproduce import together
from hexa.reproduce.session import Session
from hexa.reproduce.whole import Whole
from hexa.runtime.console import Console

__all__ = ["Session", "reproduce"]


def reproduce(experiment: str, data: str, *, console: Console | None = None, **options: Any) -> Path:
    """Carry out one of the paper's experiments, or "all" of them, or resume it, and return its folder.

    options: those of `Session.begin`, or of `Whole.begin` for all; others are fields of every arm's experiment, by
    path. The folder holds tables, result.json, figures/ as PNG and SVG, runs/. Raises UserError before any work.
    """
    console = console or Console(stderr=True)
    known = {*inspect.signature(Session.begin).parameters, *({"time"} if experiment == "all" else ())}
    fields = {name: options.pop(name) for name in list(options) if name not in known}
    if experiment == "all":
        return together.carry_out(Whole.begin(data, fields=fields, **options), console)
    return Session.begin(experiment, data, fields=fields, **options).carry_out(console)
