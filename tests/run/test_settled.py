"""Fields that an experiment derives from its images before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hexa import recipes
from hexa.config import UserError
from hexa.data import ArraySource, open_source
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import settled
from tests.conftest import Says
from tests.distributed.together import run_together

AUTO = {"network.mean": "auto", "network.std": "auto"}


def _experiment(**changes: Any) -> Experiment:
    return override(
        recipes.get("digits-moco-v2"),
        {name.replace("__", "."): value for name, value in changes.items()},
    )


def test_auto_normalisation() -> None:
    """Numbers take the place of auto."""
    assert settled(_experiment(), open_source("digits")) == (_experiment(), [])
    made, notes = settled(override(_experiment(), AUTO), open_source("digits"))
    pixels = open_source("digits").images.double() / 255
    assert made.network.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-3)
    assert made.network.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-3)
    assert [note.partition(":")[0] for note in notes] == ["network.mean", "network.std"]
    one, _ = settled(_experiment(network__mean="auto"), open_source("digits"))
    assert one.network.mean == made.network.mean
    assert one.network.std == _experiment().network.std


def test_auto_normalisation_in_run(tmp_path: Path, says: Says) -> None:
    """A run keeps the numbers."""
    run = tmp_path / "run"
    auto = "--network.mean auto --network.std=auto --training.report false"
    said = says(f"pretrain digits-moco-v2 --out {run} --epochs 1 --device cpu {auto}").out
    assert "measured on the images" in said
    kept = experiments.load(run / "config.yaml")
    assert kept == settled(override(kept, AUTO), open_source("digits", "train"))[0]
    says(f"resume {run}")


def test_colourless_view_fields() -> None:
    """Images without colours get no colour augmentation."""
    changes = {
        "network__channels": 4,
        "network__mean": [0.5] * 4,
        "network__std": [0.25] * 4,
        "views__stain": 0.1,
    }
    made, notes = settled(
        _experiment(**changes), ArraySource(torch.zeros(8, 4, 5, 5, dtype=torch.uint8))
    )
    views = made.views
    for name in ("stain", "saturation", "hue", "grayscale_probability", "randaugment_ops"):
        assert getattr(views, name) == 0
    assert views.brightness == _experiment().views.brightness
    assert len(notes) == 1
    assert notes[0].startswith("images of 4 channels")
    assert "views." in notes[0]
    assert "views.stain" in notes[0]


def _member() -> str:

    source = ArraySource(torch.arange(3 * 64, dtype=torch.uint8).view(4, 3, 4, 4))
    made, _ = settled(override(_experiment(), AUTO), source)
    with pytest.raises(UserError, match="channel 0 is the same"):
        settled(
            override(_experiment(), AUTO), ArraySource(torch.zeros(4, 3, 4, 4, dtype=torch.uint8))
        )
    return str(made.network)


def test_measured_statistics_broadcast() -> None:
    """All processes get what one has measured."""
    one, other = run_together(2, _member)
    assert one == other
