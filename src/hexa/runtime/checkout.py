"""Which code computes: the commit that this package is of."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that the package lies in, with -dirty if files differ; None outside a checkout.

    It is what it was when this process first asked: code is loaded once, whatever is checked out while it works. So ask
    at the start.
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # a package installed into some other project's checkout is not under that project's version
        if not git("ls-files", "--", Path(__file__).name):
            return None
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
