"""Writes the files that list the recipes of hexa and hexa_paper: `python -m docs.listing`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.recipes.listing import LISTED
from hexa.recipes.modifiers import MODIFIERS

if __name__ == "__main__":
    own = recipes.import_own()  # before hexa_paper is imported
    rows = recipes.describe()
    contents: dict[str, dict[str, Any]] = {
        "hexa": {"modifiers": MODIFIERS, "recipes": [row for row in rows if row["name"] in own]},
        "hexa_paper": {"recipes": [row for row in rows if row["name"] not in own]},
    }
    for package, content in contents.items():
        written = json.dumps(content, indent=1, ensure_ascii=False)
        Path(str(files(package) / LISTED)).write_text(written + "\n", "utf-8")
