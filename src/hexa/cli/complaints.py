"""How the command line reports an error: a user's mistake is one line, whatever raised it."""

from __future__ import annotations

import os

from hexa.config import ConfigError, UserError
from hexa.runtime.files import describe


def complaint(error: Exception) -> tuple[int, str]:
    """The exit status and the line; status 0 for a bug of ours, and no line where another process says it."""
    status = getattr(error, "exit_code", 2 if _is_users(error) else 0)
    if status and not (getattr(error, "speaks", True) and _is_first_to(error)):
        return status, ""
    stopped = status > 128  # by a signal, having saved: not an error
    return status, sentence(error) if stopped else f"error: {sentence(error)}"


def own_file(error: Exception) -> str:
    """The line for an error in a file that the user gave; empty for any other."""
    from hexa.recipes.plugins import own_line

    own = own_line(error)
    return f"error: {own}, in your own file: {type(error).__name__}: {sentence(error)}" if own is not None else ""


def sentence(error: Exception) -> str:
    """The error on one line."""
    if isinstance(error, OSError):
        return describe(error)
    text = " ".join(str(error).split())
    if _is_of_memory(error):
        return f"the memory is full; lower --batch-size, or use another --device ({text[:200] or 'nothing is left'})"
    return text


def _is_first_to(error: Exception) -> bool:
    """Whether this process is to name a wrong field, which all processes of a run notice alike."""
    return not isinstance(error, ConfigError) or os.environ.get("RANK", "0") == "0"


def _is_users(error: Exception) -> bool:
    """Whether a user can fix it: a ValueError of ours, an error of the system about a file, or memory that is full.

    A ValueError that some library raised below us is not: we called it wrongly, and the traceback is needed.
    """
    if isinstance(error, UserError | OSError) or _is_of_memory(error):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return isinstance(error, ValueError) and str(raised_in).split(".")[0].startswith("hexa")


def _is_of_memory(error: Exception) -> bool:
    """torch says it of a GPU by a type of its own, of the CPU by a RuntimeError; sizes that overflow are the same."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = ("can't allocate memory", "Storage size calculation overflowed", "would overflow")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)
