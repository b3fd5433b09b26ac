"""The size of the code in tokens, without comments, docstrings, blank lines and imports.

`python -m tests.size` prints it.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from dataclasses import dataclass
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


@dataclass
class Size:
    """The size of some code."""

    tokens: int = 0
    """Tokens of code."""
    lines: int = 0
    """Lines that hold code."""
    packed: int = 0
    """Statements that assign unrelated values at once, and texts multiplied by a condition."""

    def __add__(self, other: Size) -> Size:
        return Size(
            self.tokens + other.tokens, self.lines + other.lines, self.packed + other.packed
        )

    @property
    def density(self) -> float:
        """Tokens on a line of code."""
        return self.tokens / max(self.lines, 1)


def _lines_without_code(tree: ast.AST) -> set[int]:
    """Return the line numbers of docstrings and imports."""
    rows: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            rows.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return rows


def _assigns_unrelated(node: ast.AST) -> bool:
    """Tell whether a statement is like `a, b = f(x), g(y)`; `a, b = b, a` is an exchange."""
    if not isinstance(node, ast.Assign):
        return False
    targets = node.targets[0]
    if not isinstance(targets, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    names = {ast.unparse(target) for target in targets.elts}
    values = {ast.unparse(value) for value in node.value.elts}
    return not names & values


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List)


def _is_condition(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    return isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp)


def _multiplies_by_condition(node: ast.AST) -> bool:
    """Tell whether an expression is like `"s" * (count > 1)`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = (node.left, node.right)
    return any(map(_is_text, sides)) and any(map(_is_condition, sides))


def size_of(text: str) -> Size:
    """Return the size of a file's text."""
    tree = ast.parse(text)
    ignored = _lines_without_code(tree)
    packed = sum(_assigns_unrelated(n) or _multiplies_by_condition(n) for n in ast.walk(tree))
    tokens = 0
    rows: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _NO_CODE or token.start[0] in ignored:
            continue
        tokens += 1
        rows.update(range(token.start[0], token.end[0] + 1))
    return Size(tokens, len(rows), packed)


@functools.cache
def files(part: str) -> dict[str, Size]:
    """Return the sizes of all files of a part, by path."""
    paths = sorted((ROOT / part).rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): size_of(path.read_text(encoding="utf-8")) for path in paths
    }


if __name__ == "__main__":
    for part in PARTS:
        found = sum(files(part).values(), Size())
        print(f"{part}: {found.tokens:,} tokens, {found.density:.1f} a line")
