"""Turns an error into one line for the command line, and decides its exit status."""

from __future__ import annotations

import os
import traceback

from hexa.config import ConfigError, UserError, some
from hexa.runtime.files import describe


def complaint(error: Exception) -> tuple[int, str]:
    """Return exit status and line; status 0 marks a bug of hexa, and the line is empty if another process prints it."""
    status = getattr(error, "exit_code", 2 if _is_users(error) else 0)
    # every process of a run finds a wrong field, and rank 0 reports it
    silent = isinstance(error, ConfigError) and os.environ.get("RANK", "0") != "0"
    if status and (silent or not getattr(error, "speaks", True)):
        return status, ""
    # above 128: stopped by a signal after saving, which is not an error
    return status, sentence(error) if status > 128 else f"error: {sentence(error)}"


def own_file(error: Exception) -> str:
    """Return the line for an error in a file of the user; empty for other errors."""
    from hexa.recipes.plugins import own_line

    own = own_line(error)
    return (
        f"error: {own}, in your own file: {type(error).__name__}: {sentence(error)}"
        if own is not None
        else ""
    )


def unexpected(error: Exception) -> str:
    """Return the line for an error that neither hexa nor its frames explain."""
    from hexa.recipes.plugins import own_code

    report = "please report it with the lines above and the output of `hexa doctor`"
    code = own_code()
    if not code:
        return f"this is a bug in hexa; {report}"
    return (
        f"error: {type(error).__name__}: {sentence(error)}; this may come from {some(code)}: run "
        f"`hexa check FILE.py:RECIPE`; if that finds nothing, {report}"
    )


def sentence(error: Exception) -> str:
    """Return the error as one line."""
    if isinstance(error, OSError):
        return describe(error)
    text = " ".join(str(error).split())
    if _is_of_memory(error):
        remedy = "lower --batch-size, or use another --device"
        if isinstance(error, ImportError):
            remedy = "raise the limit (ulimit -v)"
        return f"the memory is full; {remedy} ({text[:200] or 'nothing is left'})"
    return text


def _is_users(error: Exception) -> bool:
    """True if a user can fix the error: a ValueError of hexa, an OSError, or full memory.

    A ValueError from another library means that hexa called the library wrongly; it needs a traceback.
    """
    if isinstance(error, UserError | OSError) or _is_of_memory(error):
        return True
    modules = [
        str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return isinstance(error, ValueError) and any(name.startswith("hexa") for name in modules[-1:])


def _is_of_memory(error: Exception) -> bool:
    """True if the memory is full. torch raises its own type for a GPU, and RuntimeError for the CPU or for huge sizes."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, ImportError):  # a library does not fit under ulimit -v
        return "failed to map segment" in str(error)
    said = (
        "can't allocate memory",
        "can't start new thread",
        "calculation overflowed",
        "would overflow",
    )
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)
