"""The wheel of `make dist` is complete, and works without this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import hexa
from docs.generated import ROOT

UV = Path(sys.prefix) / "bin" / "uv"
pytestmark = pytest.mark.skipif(
    not UV.exists(), reason="uv is not in this environment (make setup puts it there)"
)
#: What a build could take from this folder; enough of it to show what stays out.
PARTS = (
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "src",
    "tests",
)
LEFT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")
STEM = f"hexa_ssl-{hexa.__version__}"


def run(*command: object, folder: Path, status: int = 0) -> str:
    """Run a command without this process's settings of paths, and return its output.

    Skips if no package index answers and the packages are not installed here either.
    """
    foreign = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPYCACHEPREFIX",
        "VIRTUAL_ENV",
        "MAKEFLAGS",
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in foreign}
        | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode and "Failed to fetch" in done.stderr:
        pytest.skip(
            "what the build or the installation needs is not here, and the package index doesn't answer"
        )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this folder in which `make dist` has run."""
    copy = tmp_path_factory.mktemp("dist") / "checkout"
    for name in PARTS:
        (copy / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=LEFT)
        else:
            shutil.copy2(ROOT / name, copy / name)
    run("make", "dist", f"VENV={sys.prefix}", folder=copy)
    return copy


def installed(checkout: Path, place: Path, *options: object) -> Path:
    """The bin folder of a new environment that holds the wheel."""
    run(UV, "venv", "--quiet", "--python", sys.executable, place / "venv", folder=place)
    install = (UV, "pip", "install", "--quiet", "--python", place / "venv/bin/python")
    run(*install, *options, checkout / f"dist/{STEM}-py3-none-any.whl", folder=place)
    return place / "venv/bin"


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_members(checkout: Path) -> None:
    """The wheel holds the package and nothing else."""
    found = members(checkout / f"dist/{STEM}-py3-none-any.whl")
    sources = checkout / "src"
    package = {
        str(path.relative_to(sources)): path.read_bytes()
        for name in ("hexa", "hexa_paper")
        for path in (sources / name).rglob("*")
        if path.is_file()
    }
    assert {"hexa/py.typed", "hexa/reporting/templates/report.html"} <= set(package)
    assert {
        name: content for name, content in found.items() if ".dist-info/" not in name
    } == package
    assert b"hexa = hexa.cli:run" in found[f"{STEM}.dist-info/entry_points.txt"]
    assert f"{STEM}.dist-info/licenses/LICENSE" in found


@pytest.mark.slow
def test_wheel_own_environment(checkout: Path, tmp_path: Path) -> None:
    """The wheel works in an environment of its own."""
    environment = installed(checkout, tmp_path, "--constraint", ROOT / "constraints.txt")

    def command(line: str, status: int = 0) -> str:
        return run(environment / "hexa", *line.split(), folder=tmp_path, status=status)

    where = run(environment / "python", "-c", "import hexa; print(hexa.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    assert command("--version") == f"hexa {hexa.__version__}\n"
    assert "digits-hexa-moco" in command("recipes")
    command("pretrain digits-hexa-moco --epochs 1 --network.widths [8,16] --out run")
    assert (tmp_path / "run" / "report.html").is_file()
    assert "knn" in command("evaluate knn run --data digits")
    refusal = command("export run --to onnx --out run.onnx", status=2)
    assert f"{environment.relative_to(tmp_path)}/python 'onnx>=1.17' 'onnxscript" in refusal


def test_wheel_shared_packages(checkout: Path, tmp_path: Path) -> None:
    """The wheel works with the packages of this environment; tests/test_imports.py checks its
    requirements."""
    programs = installed(checkout, tmp_path, "--no-deps")
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    where = run(programs / "python", "-c", "import hexa; print(hexa.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert run(programs / "hexa", "--version", folder=tmp_path) == f"hexa {hexa.__version__}\n"
