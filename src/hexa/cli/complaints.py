"""How the command line reports an error: a user's mistake is one line, whatever raised it."""

from __future__ import annotations

import os
import traceback

from hexa.config import ConfigError, UserError
from hexa.runtime.files import describe


def complaint(error: Exception) -> tuple[int, str]:
    """The exit status and the line; status 0 for a bug of ours, and no line where another process says it."""
    status = getattr(error, "exit_code", 2 if _is_users(error) else 0)
    # a wrong field is noticed by all processes of a run, and named by the first
    silent = isinstance(error, ConfigError) and os.environ.get("RANK", "0") != "0"
    if status and (silent or not getattr(error, "speaks", True)):
        return status, ""
    # above 128: stopped by a signal, having saved, which is not an error
    return status, sentence(error) if status > 128 else f"error: {sentence(error)}"


def own_file(error: Exception) -> str:
    """The line for an error in a file that the user gave; empty for any other."""
    from hexa.recipes.plugins import own_line

    own = own_line(error)
    return (
        f"error: {own}, in your own file: {type(error).__name__}: {sentence(error)}"
        if own is not None
        else ""
    )


def sentence(error: Exception) -> str:
    """The error on one line."""
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
    """Whether a user can fix it: a ValueError of ours, an error of the system about a file, or memory that is full.

    A ValueError that some library raised below us is not: we called it wrongly, and the traceback is needed.
    """
    if isinstance(error, UserError | OSError) or _is_of_memory(error):
        return True
    modules = [
        str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return isinstance(error, ValueError) and any(name.startswith("hexa") for name in modules[-1:])


def _is_of_memory(error: Exception) -> bool:
    """torch says it of a GPU by a type of its own, of the CPU by a RuntimeError; sizes that overflow are the same."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, ImportError):  # of a library, where ulimit -v is low
        return "failed to map segment" in str(error)
    said = (
        "can't allocate memory",
        "can't start new thread",
        "calculation overflowed",
        "would overflow",
    )
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)
