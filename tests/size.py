"""The size of the code in tokens, without comments, docstrings, blank lines and imports."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("src/hexa", "src/hexa_paper", "tests")

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_without_code(tree: ast.AST) -> set[int]:
    """Return the line numbers of docstrings and imports."""
    rows: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            rows.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return rows


def count(text: str) -> tuple[int, int]:
    """Return the number of tokens, and the number of lines that hold them."""
    ignored = lines_without_code(ast.parse(text))
    tokens = 0
    rows: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _NO_CODE or token.start[0] in ignored:
            continue
        tokens += 1
        rows.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(rows)


def summary() -> list[str]:
    """Return one line for each part of the project."""
    lines = []
    for part in PARTS:
        counts = [count(path.read_text()) for path in (ROOT / part).rglob("*.py")]
        tokens = sum(found for found, _ in counts)
        rows = sum(found for _, found in counts)
        lines.append(f"{part}: {tokens:,} tokens, {tokens / rows:.1f} a line")
    return lines
