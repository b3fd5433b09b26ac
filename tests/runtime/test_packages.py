"""Version and hash of a copy; no text names another project's package."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import hexa
from docs.generated import PAGES, ROOT
from hexa import recipes
from hexa.recipes import experiment as experiments
from hexa.runtime import packages


def test_foreign_package_name() -> None:
    """No message tells users to install the other project."""
    for path in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"hexa\[|install '?hexa(?!-ssl)", path.read_text(encoding="utf-8")), (
            path
        )


def test_commit_and_source_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checkout: HEXA_COMMIT, and a hash that changes with any file."""
    copy = tmp_path / "hexa"
    package = Path(hexa.__file__).parent
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


@pytest.mark.parametrize(
    ("recipe", "trust"), [("cifar10-moco-v2", ""), ("/home/me/my method.py:digits", " --trust")]
)
def test_resume_command(tmp_path: Path, recipe: str, trust: str) -> None:
    run = tmp_path / "my run"
    assert packages.resume_command(run) == f"hexa resume '{run}'"
    run.mkdir()
    experiment = recipes.get("digits-moco-v2")
    experiments.dump(experiment.model_copy(update={"recipe": recipe}), run / "config.yaml")
    assert packages.resume_command(run) == f"hexa resume '{run}'{trust}"
