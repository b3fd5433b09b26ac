"""Makes terminal.png and compare.png of the documentation: `python -m docs.pictures`, after `make demo`.

Needs chromium. The terminal is what `hexa compare` printed, the page is the one that it wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from docs.generated import ROOT

#: Columns of the terminal.
_COLUMNS = 100
#: Width of the pages, in pixels.
_WIDTH = 1100
#: Colours of a picture.
_COLOURS = 64
COMMAND = "hexa compare pixels:8 runs/demo/digits-moco-v2 --data digits#test --out build/compare"


def terminal() -> str:
    """The command and what it prints, as HTML."""
    environment = os.environ | {"COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}
    program = [sys.executable, "-m", *COMMAND.split()]
    done = subprocess.run(
        program, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    console = Console(record=True, width=_COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ {COMMAND}\n", style="bold"))
    console.print(Text.from_ansi(done.stdout))
    return console.export_html(theme=MONOKAI, inline_styles=True)


def shoot(page: Path, name: str, height: int, width: int = _WIDTH) -> None:
    """Save the top of a page as docs/NAME.png."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
        ]
        options += [
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={made}",
        ]
        subprocess.run(
            ["chromium", *options, page.resolve().as_uri()], check=True, stderr=subprocess.DEVNULL
        )
        picture = Image.open(made).convert("RGB").quantize(_COLOURS, Image.Quantize.FASTOCTREE)
        picture.save(ROOT / "docs" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    page = ROOT / "build/terminal.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text(terminal())
    shoot(page, "terminal", 330, 990)
    shoot(ROOT / "build/compare/compare.html", "compare", 1000)
