"""Notebooks of the documentation: run them, and show them as pages of the site.

`python -m docs.notebooks` runs every cell of every notebook in docs/ in an empty folder, and stores the printed text as
the outputs. mkdocs loads this file as a hook, and shows a notebook as a page. Neither needs Jupyter.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

SUFFIX = ".ipynb"


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells in the current folder, and replace the outputs by the printed text."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(_code_cells(notebook), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        lines = printed.getvalue().splitlines(keepends=True)
        output = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [output] if lines else []
        cell["execution_count"] = number


def markdown(notebook: dict[str, Any]) -> str:
    """Return the notebook as a Markdown page, with printed text after the code that printed it."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [f"```text\n{''.join(output['text'])}```" for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook. mkdocs calls this function."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(SUFFIX)]:
        text = markdown(json.loads(file.content_string))
        files.append(File.generated(config, _page_of(file.src_uri), content=text))
    return files


def on_page_markdown(text: str, files: Files, **_: object) -> str:
    """Let links to a notebook lead to its page. mkdocs calls this function."""
    for file in files:
        if file.src_uri.endswith(SUFFIX):
            text = text.replace(f"({file.src_uri})", f"({_page_of(file.src_uri)})")
    return text


def _page_of(notebook: str) -> str:
    return notebook.removesuffix(SUFFIX) + ".md"


def _code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob(f"*{SUFFIX}")):
        found = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["COLUMNS"] = "100"
            run(found)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
