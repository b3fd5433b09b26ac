"""Versions of packages and of this code, and commands that install missing packages into this
environment.

The name `hexa` belongs to another project on package indexes. If hexa runs from a checkout, the
commands install from it; otherwise they list the packages of an extra by name, since the wheel may
not be available any more.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
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

#: Name of the distribution in pyproject.toml.
DISTRIBUTION = "hexa-ssl"
#: Packages on which numbers depend.
_PACKAGES = ("hexa", "torch", "torchvision", "timm", "numpy", "scikit-learn", "pillow", "pyarrow")
_SOURCES = Path(__file__).resolve().parents[2]


def version(package: str) -> str | None:
    """Return the version of a distribution, None if unknown; for `hexa`, the version of the running
    code."""
    if package == "hexa":
        from hexa import __version__

        return __version__
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def versions() -> dict[str, str | None]:
    """Return the versions of the packages on which numbers depend, by name."""
    return {name: version(name) for name in _PACKAGES}


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import a module that only `what` needs. Raises UserError with the command that installs the
    module."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UserError(
            f"{what} needs the package {error.name}; install it: {install_extra(extra)}"
        ) from None


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra, such as `onnx>=1.17`."""
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
    """Return the command that installs into this environment, with its pip or, without one, uv."""
    python = Path(sys.executable)
    if Path.cwd() in python.parents[1:]:
        python = python.relative_to(Path.cwd())
    command = [str(python), "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", str(python)]
    return shlex.join([*command, *arguments])


def resume_command(run: Path) -> str:
    """Return the command that continues a run, quoted for a shell; with --trust if its method is in a Python file."""
    command = ["hexa", "resume", str(run)]
    with suppress(OSError), (run / "config.yaml").open("rb") as config:
        if b".py:" in config.readline(10_000):  # the recipe
            command.append("--trust")
    return shlex.join(command)


@functools.cache
def commit() -> str | None:
    """Return the commit of the package's checkout, with -dirty if files differ; outside a checkout
    HEXA_COMMIT, or None.

    Cached at the first call, because a later checkout does not change code that is already loaded.
    Call it early.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        # the package may be installed inside another project's checkout
        if git("ls-files", "--", Path(__file__).name):
            return git("rev-parse", "HEAD") + (
                "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
            )
    return os.environ.get("HEXA_COMMIT") or None


@functools.cache
def provenance() -> dict[str, str | None]:
    """Return `commit` and `source`, a hash that shows whether a copy contains the code of that
    commit."""
    return {"commit": commit(), "source": source_hash(Path(__file__).resolve().parents[1])}


def source_hash(package: Path) -> str | None:
    """Return the SHA-256, 64 hexadecimal digits, of the names and contents of a package's files;
    None for a zip.

    Compiled and hidden files are excluded.
    """
    files = {
        path.relative_to(package).as_posix(): path for path in package.rglob("*") if path.is_file()
    }
    kept = sorted(name for name in files if not re.search(r"(^|/)(\.|__pycache__/)", name))
    lines = [f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n" for name in kept]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def processor_name() -> str:
    """Return the model name of the processor."""
    with suppress(OSError):
        if model := re.search(
            r"^model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        ):
            return model[1].strip()
    return platform.processor() or platform.machine() or "processor"
