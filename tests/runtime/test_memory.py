"""The memory that a container leaves to this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexa.data.sources.parquet import half_of_memory
from hexa.runtime.memory import limits, usable_memory


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000"}, [5000]),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "7000"}, [7000]),
        ("4:cpu,memory:/gone\n", {"memory/memory.limit_in_bytes": "8000"}, [8000]),
        ("0::/a\n", {"a/memory.max": "damaged"}, []),
    ],
)
def test_memory_limits_of_containers(
    tmp_path: Path, own: str, files: dict[str, str], expected: list[int]
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert list(limits(tmp_path / "groups", tmp_path / "own")) == expected


def test_usable_memory_is_some_of_the_machine() -> None:
    assert 2**28 < usable_memory() < 2**50


def test_parquet_files_keep_to_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexa.runtime.memory.limits", lambda: iter([1000]))
    assert half_of_memory() == 500
