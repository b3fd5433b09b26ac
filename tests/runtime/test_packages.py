"""Versions, and commands that install what is missing: none may ever name another project's package."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import hexa
from docs.generated import PAGES, ROOT
from hexa.config import UserError
from hexa.runtime import packages

METADATA = """Metadata-Version: 2.4
Name: hexa-ssl
Version: 9.8.7
Requires-Dist: torch>=2.11
Provides-Extra: onnx
Requires-Dist: onnx>=1.17; extra == "onnx"
Requires-Dist: onnxruntime[gpu]<2,>=1.20; python_version >= "3.11" and extra == 'onnx'
Requires-Dist: onnxscript; extra == "onnx-more"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hexa as if it were installed from a wheel."""
    site = tmp_path / "site-packages"
    (site / "hexa").mkdir(parents=True)
    information = site / "hexa_ssl-9.8.7.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(packages, "_SOURCES", site)
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")


def test_a_wheel_takes_the_packages_of_an_extra_by_name(installed: None) -> None:
    words = shlex.split(packages.install_extra("onnx"))
    assert words == [
        "/venv/bin/python",
        "-m",
        "pip",
        "install",
        "onnx>=1.17",
        "onnxruntime[gpu]<2,>=1.20",
    ]


@pytest.mark.parametrize(
    ("there", "command"),
    [
        (("pip", "uv"), "/venv/bin/python -m pip install timm"),
        (("uv",), "/venv/bin/python -m uv pip install timm"),
        ((), "uv pip install --python /venv/bin/python timm"),
    ],
)
def test_what_is_in_the_environment_installs_more(
    installed: None, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], command: str
) -> None:
    monkeypatch.setattr(
        metadata, "distributions", lambda: [SimpleNamespace(name=name) for name in there]
    )
    assert packages.install("timm") == command


def test_a_checkout_installs_itself(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my checkout"
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    monkeypatch.setattr(packages, "_SOURCES", root / "src")
    monkeypatch.setattr(sys, "executable", str(root / ".venv/bin/python"))
    words = shlex.split(packages.install_extra("hf"))
    assert words == [f"{root}/.venv/bin/python", "-m", "pip", "install", "-e", f"{root}[hf]"]
    monkeypatch.chdir(root)
    assert packages.install_extra("hf") == ".venv/bin/python -m pip install -e '.[hf]'"


def test_without_metadata_the_name_is_ours(
    monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    assert packages.install_extra("onnx") == "/venv/bin/python -m pip install 'hexa-ssl[onnx]'"


def test_a_missing_package_is_one_line(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        UserError, match=r"^--to onnx needs the package onnx; install it: .*'onnx>=1\.17'"
    ):
        packages.import_extra("onnx", "onnx", "--to onnx")


def test_nothing_says_to_install_the_other_project() -> None:
    for path in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"hexa\[|install '?hexa(?!-ssl)", path.read_text(encoding="utf-8")), (
            path
        )


def test_a_copy_names_the_commit_that_it_is_told_and_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkout: HEXA_COMMIT, and a hash that is another one if a file is."""
    copy, package = tmp_path / "hexa", Path(hexa.__file__).parent
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(packages, "__file__", str(copy / "runtime" / "packages.py"))
    monkeypatch.setenv("HEXA_COMMIT", "a" * 40)
    assert packages.commit.__wrapped__() == "a" * 40
    for compiled in ("__pycache__", ".cache"):
        (copy / compiled).mkdir()
        (copy / compiled / "x.pyc").touch()
    first = packages.source_hash(copy)
    assert first == packages.source_hash(package)
    (copy / "recipes.json").write_text("")
    assert packages.source_hash(copy) != first
