"""Versions, and commands that install what is missing: none may ever name another project's package."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path
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
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """hexa as if it were installed from a wheel by pip: its INSTALLER file."""
    site = tmp_path / "site-packages"
    (site / "hexa").mkdir(parents=True)
    information = site / "hexa_ssl-9.8.7.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    (information / "INSTALLER").write_text("pip\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(packages, "_SOURCES", site)
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    return information / "INSTALLER"


def test_a_wheel_takes_the_packages_of_an_extra_by_name(installed: Path) -> None:
    words = shlex.split(packages.install_extra("onnx"))
    assert words == ["/venv/bin/python", "-m", "pip", "install", "onnx>=1.17", "onnxruntime[gpu]<2,>=1.20"]


def test_what_installed_hexa_installs_more(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text("uv")
    monkeypatch.setattr(util, "find_spec", lambda name: name)
    assert packages.install("timm") == "/venv/bin/python -m uv pip install timm"
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert packages.install("timm") == "uv pip install --python /venv/bin/python timm"


def test_a_checkout_installs_itself(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "my checkout"
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    monkeypatch.setattr(packages, "_SOURCES", root / "src")
    monkeypatch.setattr(sys, "executable", str(root / ".venv/bin/python"))
    words = shlex.split(packages.install_extra("hf"))
    assert words == [f"{root}/.venv/bin/python", "-m", "pip", "install", "-e", f"{root}[hf]"]
    monkeypatch.chdir(root)
    assert packages.install_extra("hf") == ".venv/bin/python -m pip install -e '.[hf]'"


def test_without_metadata_the_name_is_ours(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    assert packages.install_extra("onnx") == "/venv/bin/python -m pip install 'hexa-ssl[onnx]'"


def test_a_missing_package_is_one_line(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"^--to onnx needs the package onnx; install it: .*'onnx>=1\.17'"):
        packages.import_extra("onnx", "onnx", "--to onnx")


def test_versions(installed: Path) -> None:
    assert packages.version("hexa") == hexa.__version__
    assert packages.version("timm") == metadata.version("timm")
    with pytest.raises(metadata.PackageNotFoundError):
        packages.version("no-such-package")


def test_the_name_is_that_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == packages.DISTRIBUTION
    assert project["scripts"] == {"hexa": "hexa.cli:main"}


def test_nothing_says_to_install_the_other_project() -> None:
    for path in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"hexa\[|install '?hexa(?!-ssl)", path.read_text(encoding="utf-8")), path


def test_a_copy_names_the_commit_that_it_is_told_and_what_it_holds(tmp_path: Path) -> None:
    """Without a checkout: HEXA_COMMIT, and a hash that is another one if a file is."""
    shutil.copytree(Path(hexa.__file__).parent, tmp_path / "hexa", ignore=shutil.ignore_patterns("__pycache__"))
    told = "from hexa.runtime.packages import provenance; import json; print(json.dumps(provenance()))"

    def named() -> dict[str, str]:
        variables = os.environ | {"HEXA_COMMIT": "a" * 40, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(
            [sys.executable, "-c", told], env=variables, cwd=tmp_path, check=True, capture_output=True
        )
        return dict(json.loads(done.stdout))

    first = named()
    assert first == {"commit": "a" * 40, "source": packages.source_hash(Path(hexa.__file__).parent)}
    assert named() == first  # compiled files have come since
    (tmp_path / "hexa" / "published.yaml").write_text("")
    assert named()["source"] != first["source"]
