"""benchmarks/speedrun: every record is a recipe that exists, and says what its file says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hexa import recipes
from hexa.recipes.experiment import override

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speedrun"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "speedrun", raising=False)
    import speedrun

    return speedrun


def test_speedrun_records(script: ModuleType) -> None:
    for name, one in script.tracks().items():
        begins = {"start.weights": "timm:resnet18"} if one.starts else {}
        assert override(recipes.get(one.recipe), one.fields | begins).recipe == one.recipe, name
        result = json.loads((FOLDER / one.result).read_text())
        assert sorted(row["seed"] for row in result["rows"]) == [0, 1, 2, 3, 4]
        assert one.seconds == round(float(np.mean([row["seconds"] for row in result["rows"]])))
        assert script.reached(one, result)
        known = result["track"], result["recipe"], result["fields"], result["held_out"]
        assert known == (name, one.recipe, one.fields, False)
