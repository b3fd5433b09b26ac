"""The check of wording finds planted phrases and leaves code alone."""

from __future__ import annotations

from pathlib import Path

from tests.wording import findings

PAGE = """A page beside `beside`.
<!-- skip: beside it -->
| beside |
<!-- generated: table -->
It is no table.
<!-- end of table -->
```bash
hexa beside
```
Half withstand it.
"""
CODE = '''"""What a module does."""
NAME = "anew"
LINE = f"training goes on with {NAME}"


def judged(judge: int) -> int:
    """Return `judge`, which judges."""
    return judge
'''


def test_planted_phrases(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "code.py").write_text(CODE)
    of_page = [(one.place.rpartition(":")[2], one.phrase) for one in findings(tmp_path / "page.md")]
    assert of_page == [("1", "beside"), ("10", "withstand")]
    of_code = {(one.kind, one.phrase) for one in findings(tmp_path / "code.py")}
    assert of_code == {("docstring", "What"), ("message", "goes on"), ("docstring", "judges")}
