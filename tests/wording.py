"""Finds turns of phrase that readers stumble over, in pages, messages, help texts and docstrings.

`python -m tests.wording` lists them, and fails if a kind of text has more than `BOUNDS` allows. Rewrite the sentence
(subject, verb, object) instead of replacing the word. Code in backticks is not checked, so that names may stay.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
#: Largest accepted number of findings by kind of text; a finding may be a real use, such as the name of a parameter.
BOUNDS = {"page": 0, "message": 0, "docstring": 1}
#: Phrases as regular expressions, and what to write instead.
PHRASES = {
    r"withst(?:and|ands|ood|anding)": "robust accuracy is x %",
    r"grey levels?": "ε = 1/255",
    r"the start(?:'s)?(?=[.,;:)]| (?:is|has|keeps|and|knew|or|weights)\b|$)": "the initial weights",
    r"further images|in truth|(?:kept|put|set) aside": "held-out images",
    r"sets? in|setting in": "starts",
    r"judg(?:e|es|ed|ing)": "evaluate, score, compare",
    r"(?:is|are|was|were|be) told|tells? apart|told apart": "distinguish; is reported; is unknown",
    r"beside": "next to, in addition to, compared with",
    r"go(?:es)? on|gone on": "resume, continue",
    r"anew": "again",
    r"of (?:now|then|before)": "current, previous",
    r"worth (?:a try|it)|(?:is|was) worth(?! \d)": "useful; results",
    r"the way (?:on|back)": "what to do next",
    r"in (?:a given|the same) time": "within a time limit; at equal time",
    r"so many|as many as there are": "that many; all",
    r"is (?:no|none of)": "is not a",
    r"if not given|unless given": "(default: …)",
    r"Where (?:the|a|an|it|there|no|only|time|labels)": "If …",
    r"what (?:it|they) (?:is|are) of|that it is of|by (?:what|which) (?:it|they)": "repeat the noun",
}
_FOUND = {re.compile(rf"\b(?:{phrase})\b"): better for phrase, better in PHRASES.items()}
#: First words of a docstring that does not say what the function returns or what the field means.
RIDDLES = {"What", "Whether", "How", "Which", "Where", "Of", "That", "Those", "As", "By"}
_CODE = re.compile(r"`[^`]*`|<!--.*?-->", re.DOTALL)
_GENERATED = re.compile(r"<!-- generated: (.+?) -->.*?<!-- end of \1 -->", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


class Finding(NamedTuple):
    """A phrase in a text, with the kind of text and a better phrase."""

    place: str
    kind: str
    phrase: str
    better: str


def texts_of_page(content: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of a Markdown page, without code, tables and generated parts."""
    for part in (_GENERATED, _FENCED, _CODE):
        content = part.sub(lambda found: "\n" * found[0].count("\n"), content)
    for number, line in enumerate(content.splitlines(), 1):
        if not line.startswith("|"):
            yield number, "page", line


def texts_of_code(content: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of docstrings and of strings with several words."""
    docstrings = set()
    for node in ast.walk(tree := ast.parse(content)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "docstring" if node in docstrings else "message"
            if kind == "docstring" or " " in node.value.strip():
                yield node.lineno, kind, _CODE.sub("", node.value)


def findings(path: Path) -> list[Finding]:
    """Return the findings in a page or a Python file."""
    content = path.read_text("utf-8")
    found = []
    for line, kind, text in (texts_of_page if path.suffix == ".md" else texts_of_code)(content):
        place = f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}"
        first = text.split(maxsplit=1)[:1]
        if kind == "docstring" and RIDDLES & {*first}:
            found.append(Finding(place, kind, first[0], "say what it returns, does or means"))
        for pattern, better in _FOUND.items():
            found += [Finding(place, kind, one[0], better) for one in pattern.finditer(text)]
    return found


def all_findings() -> list[Finding]:
    """Return the findings in README, changelog, pages and source code."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        one for path in [*pages, *sorted((ROOT / "src").rglob("*.py"))] for one in findings(path)
    ]


def main() -> int:
    """Print the findings; return 1 if there are more than `BOUNDS` allows."""
    found = all_findings()
    counts = Counter(one.kind for one in found)
    for one in found:
        print(f"{one.place}: {one.kind}: '{one.phrase}' -> {one.better}")
    print(", ".join(f"{kind}s: {counts[kind]} (at most {most})" for kind, most in BOUNDS.items()))
    return int(any(counts[kind] > most for kind, most in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
