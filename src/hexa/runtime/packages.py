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
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

from hexa.config import UserError

#: What pyproject.toml calls the distribution.
DISTRIBUTION = "hexa-ssl"
_SOURCES = Path(__file__).resolve().parents[2]


def version(package: str) -> str:
    """The version of a distribution; of `hexa`, that of the code that runs. Raises PackageNotFoundError."""
    if package == "hexa":
        from hexa import __version__

        return __version__
    return metadata.version(package)


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import a module that only `what` needs. Raises UserError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UserError(f"{what} needs the package {error.name}; install it: {install_extra(extra)}") from None


def install_extra(extra: str) -> str:
    """The command that installs the packages of an extra."""
    root = _SOURCES.parent
    if _SOURCES.name == "src" and (root / "pyproject.toml").is_file():
        return install("-e", f"{'.' if Path.cwd() == root else root}[{extra}]")
    return install(*_requirements(extra))


def install(*arguments: str) -> str:
    """The command that installs into this environment, by the tool that installed hexa there (`make setup`: uv)."""
    python = Path(sys.executable)
    if Path.cwd() in python.parents[1:]:
        python = python.relative_to(Path.cwd())
    if _installer() != "uv":
        command = [str(python), "-m", "pip", "install"]
    elif util.find_spec("uv"):
        command = [str(python), "-m", "uv", "pip", "install"]
    else:  # an environment that a uv outside it made
        command = ["uv", "pip", "install", "--python", str(python)]
    return shlex.join([*command, *arguments])


def _installer() -> str:
    try:
        return (metadata.distribution(DISTRIBUTION).read_text("INSTALLER") or "").strip()
    except metadata.PackageNotFoundError:
        return ""


def _requirements(extra: str) -> list[str]:
    """The requirements of an extra of the installed distribution, such as `onnx>=1.17`."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    wanted = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    return [line.partition(";")[0].strip() for line in lines if wanted.search(line)] or [f"{DISTRIBUTION}[{extra}]"]


@functools.cache
def commit() -> str | None:
    """The commit of the package's checkout, with -dirty if files differ; outside a checkout HEXA_COMMIT, or None.

    Cached from the first call, since later checkouts do not change code that is already loaded. So call it early.
    """
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # an installed package in another project's checkout does not have that project's version
        if git("ls-files", "--", Path(__file__).name):
            return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        pass
    return os.environ.get("HEXA_COMMIT") or None


@functools.cache
def provenance() -> dict[str, str | None]:
    """The `commit` that a result names, and `source`, a hash that shows whether a copy holds that commit's code."""
    return {"commit": commit(), "source": source_hash(Path(__file__).resolve().parents[1])}


def source_hash(package: Path) -> str | None:
    """SHA-256, 64 hexadecimal digits, of the names and contents of a package's files; None where it has none (a zip).

    Compiled and hidden files are left out.
    """
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*") if path.is_file()}
    digest, named = hashlib.sha256(), [name for name in sorted(files) if not _is_by_product(name)]
    for name in named:
        digest.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest() if named else None


def _is_by_product(name: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def processor_name() -> str:
    """The processor's model, as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "processor"
