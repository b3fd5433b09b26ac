"""Packages that are missing: `hexa doctor` still answers, and what needs one says in a line what to type."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.runtime import doctor
from hexa.training import trackers
from hexa.weights.export import export
from tests.torture.harness import Tally, forked


@pytest.fixture(scope="module")
def healthy() -> None:
    """Everything is imported here once: children begin with it."""
    assert not doctor.failed(doctor.diagnose(Path.cwd()))


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("name", doctor.REQUIRED)
def test_doctor_names_each(name: str, tmp_path: Path, tally: Tally) -> None:
    def look() -> list[doctor.Finding]:
        sys.modules[doctor._MODULES.get(name, name)] = None  # type: ignore[assignment]
        return doctor.diagnose(tmp_path)

    ended = forked(look, seconds=60)
    found = {finding.name: finding for finding in ended.value or []}
    survived = name in found and "install" in found[name].remedy and {"python", "disk"} <= set(found)
    tally.input("missing packages", survived)
    assert survived, ended


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime", "datasets", "wandb", "mlflow"])
def test_what_needs_an_extra_says_how_to_get_it(module: str, tmp_path: Path, tally: Tally) -> None:
    def use() -> None:
        sys.modules[module] = None  # type: ignore[assignment]
        if module in ("wandb", "mlflow"):
            importlib.util.find_spec = lambda *_: None  # type: ignore[assignment]
            trackers.check(module)  # type: ignore[arg-type]
        elif module == "datasets":
            from hexa.data.sources import open_source

            open_source(f"hf:{tmp_path}")
        else:
            export("random:resnet18", "onnx", tmp_path / "out.onnx")

    ended = forked(use)
    said = str(ended.raised)
    refused = isinstance(ended.raised, UserError) and " install " in said and "hexa[" not in said
    survived = refused and not list(tmp_path.iterdir())
    tally.input("missing packages", survived)
    assert survived, ended
