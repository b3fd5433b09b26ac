"""Every result file can be traced: the commits that it names exist here, and contain the code of
its hash."""

from __future__ import annotations

import io
import json
import math
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from docs.generated import ROOT, _mean_changes, over_images_and_seeds, strongest
from hexa.runtime.packages import source_hash


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


pytestmark = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false",
    reason="needs a clone with its history",
)


def named(content: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each commit in a result, with the hash of the package next to it."""
    if isinstance(content, dict):
        for commit in (content.get("commit"), *content.get("commits", ())):
            if isinstance(commit, str):
                yield commit, content.get("source")
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from named(part)


NAMED = {
    pair
    for file in sorted((ROOT / "benchmarks").rglob("*.json"))
    for pair in named(json.loads(file.read_text()))
}


def is_here(commit: str) -> bool:
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def test_result_commits() -> None:
    """Every commit that a result names is clean and in this branch."""
    lost = {commit for commit, _ in NAMED if not is_here(commit)}
    assert lost == set(), "run it again from a clean commit of this branch"


@pytest.mark.parametrize(("commit", "source"), sorted(pair for pair in NAMED if pair[1]))
def test_result_source_hash(commit: str, source: str, tmp_path: Path) -> None:
    """A result was made by the code of its commit."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src/hexa").stdout)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert source_hash(tmp_path / "src" / "hexa") == source


@pytest.mark.parametrize(
    "values",
    [
        [5.0, 6.0, 6.5],
        [1.4, 5.8, 10.2],
        [-1.0, -1.2, -0.8, -1.1, -0.9],
    ],
)
def test_change_interval_mark(values: list[float]) -> None:
    """A change has its interval, and a mark if that includes 0."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    said = f"{sum(values) / len(values):+.1f} ± {(high - low) / 2:.1f}{'†' * bool(low <= 0 <= high)} ({len(values)})"
    found = _mean_changes([[value] for value in values])
    assert found == said.replace("-", "−")


def test_image_and_seed_intervals() -> None:
    """With equal seeds the interval is over images, with equal images over seeds, and otherwise the
    root of the sum of squares."""
    right = np.arange(400) < 100
    error = 100 * right.std(ddof=1) / 20
    assert over_images_and_seeds([right]) == pytest.approx((25.0, 1.96 * error))
    assert over_images_and_seeds([right] * 3) == pytest.approx((25.0, 1.96 * error))
    levels = np.array([0.2, 0.3, 0.4])
    low, high = stats.ttest_1samp(100 * levels, 0).confidence_interval(0.95)
    of_seeds = (high - low) / 2
    found = over_images_and_seeds([[level] * 400 for level in levels])
    assert found == pytest.approx((30.0, of_seeds))
    both = over_images_and_seeds([right + level for level in levels])
    expected = (55.0, math.hypot(of_seeds, 1.96 * error))
    assert both == pytest.approx(expected)


def test_single_seed_mark() -> None:
    """One seed shows nothing."""
    assert _mean_changes([[3.0, -0.01]]) == "+3.0† / +0.0† (1)"


def test_first_page_gains() -> None:
    """The gains on the first page have intervals that exclude 0."""
    _, _, *rows = strongest().splitlines()
    assert rows
    for row in rows:
        clean, *attacked = row.split("|")[-2].split(" / ")
        assert clean.lstrip().startswith("−")  # it has a price
        assert any("†" not in change and change.startswith("+") for change in attacked)
