"""The site builds strictly, a broken link would stop it, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.generated import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed (make docs installs it)")
pytestmark = pytest.mark.slow


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(root / "mkdocs.yml"),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=root, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources of the site to another folder."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copytree(
        ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "mkdocs.yml", root)
    return root


class Loads(HTMLParser):
    """Collects the addresses that a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        loads = given.get("src") or (given.get("href") if tag == "link" else None)
        if loads:
            self.found.append(loads)


def test_site_build(copy: Path) -> None:
    """The site builds and loads nothing from elsewhere."""
    done = build(copy)
    assert done.returncode == 0, done.stderr
    pages = sorted((copy / "build/site").rglob("*.html"))
    sources = {
        path.relative_to(copy / "docs").with_suffix(".html")
        for path in (copy / "docs").rglob("*.md")
    }
    assert {page.relative_to(copy / "build/site") for page in pages} >= sources
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.found
        assert not [address for address in loads.found if "//" in address], page
    contract = (copy / "build/site/api/core.html").read_text(encoding="utf-8")
    assert 'id="hexa.core.method.Method.pseudo_labels"' in contract


@pytest.mark.parametrize(
    "broken",
    ["[x](nowhere.md)", "[x](methods.md#no-such-heading)", "::: hexa.no_such_module"],
    ids=["page", "heading", "module"],
)
def test_broken_site_links(copy: Path, broken: str) -> None:
    """A target that does not exist stops the build."""
    page = copy / "docs" / "index.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n{broken}\n", encoding="utf-8")
    try:
        assert build(copy).returncode != 0
    finally:
        page.write_text(before, encoding="utf-8")
