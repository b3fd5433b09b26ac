"""Versions of packages and of this code, and commands that install missing packages into hexa's environment.

On package indexes the name `hexa` belongs to another project. So the commands install from the checkout if hexa runs
from one, and otherwise the packages of an extra by their own names, since the wheel may not be available any more.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType

from hexa.config import UserError

#: What pyproject.toml calls the distribution.
DISTRIBUTION = "hexa-ssl"
_SOURCES = Path(__file__).resolve().parents[2]


def version(package: str) -> str | None:
    """The version of a distribution, None if it says none; of `hexa`, that of the code that runs."""
    if package == "hexa":
        from hexa import __version__

        return __version__
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import a module that only `what` needs. Raises UserError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UserError(
            f"{what} needs the package {error.name}; install it: {install_extra(extra)}"
        ) from None


def install_extra(extra: str) -> str:
    """The command that installs the packages of an extra, such as `onnx>=1.17`."""
    root = _SOURCES.parent
    if _SOURCES.name == "src" and (root / "pyproject.toml").is_file():
        return install("-e", f"{'.' if Path.cwd() == root else root}[{extra}]")
    wanted = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    named: list[str] = []
    with suppress(metadata.PackageNotFoundError):
        named = [
            one.partition(";")[0].strip()
            for one in metadata.requires(DISTRIBUTION) or []
            if wanted.search(one)
        ]
    return install(*(named or [f"{DISTRIBUTION}[{extra}]"]))


def install(*arguments: str) -> str:
    """The command that installs into this environment, by the pip or uv inside it, or by a uv outside."""
    python = Path(sys.executable)
    if Path.cwd() in python.parents[1:]:
        python = python.relative_to(Path.cwd())
    commands = {
        "pip": [str(python), "-m", "pip", "install"],
        "uv": [str(python), "-m", "uv", "pip", "install"],
    }
    outside = ["uv", "pip", "install", "--python", str(python)]
    there = {distribution.name for distribution in metadata.distributions()}
    return shlex.join(
        [*next((words for name, words in commands.items() if name in there), outside), *arguments]
    )


@functools.cache
def commit() -> str | None:
    """The commit of the package's checkout, with -dirty if files differ; outside a checkout HEXA_COMMIT, or None.

    Cached from the first call, since later checkouts do not change code that is already loaded. So call it early.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        # an installed package in another project's checkout does not have that project's version
        if git("ls-files", "--", Path(__file__).name):
            return git("rev-parse", "HEAD") + (
                "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
            )
    return os.environ.get("HEXA_COMMIT") or None


@functools.cache
def provenance() -> dict[str, str | None]:
    """The `commit` that a result names, and `source`, a hash that shows whether a copy holds that commit's code."""
    return {"commit": commit(), "source": source_hash(Path(__file__).resolve().parents[1])}


def source_hash(package: Path) -> str | None:
    """SHA-256, 64 hexadecimal digits, of the names and contents of a package's files; None where it has none (a zip).

    Compiled and hidden files are left out.
    """
    files = {
        path.relative_to(package).as_posix(): path for path in package.rglob("*") if path.is_file()
    }
    kept = sorted(name for name in files if not re.search(r"(^|/)(\.|__pycache__/)", name))
    lines = [f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n" for name in kept]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def processor_name() -> str:
    """The processor's model, as the system names it."""
    with suppress(OSError):
        if model := re.search(
            r"^model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        ):
            return model[1].strip()
    return platform.processor() or platform.machine() or "processor"
