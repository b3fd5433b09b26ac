"""The limit on an image's pixels holds wherever images are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexa import load_backbone, pretrain
from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.evaluation.embed import embed
from hexa.run.visualize import visualize
from tests.evaluation.given import QUIET, noise_images


def test_pixel_limit_everywhere(tmp_path: Path) -> None:
    """… among twenty small images of two classes and a large one."""
    files = {f"{'ab'[number % 2]}/{number}.png": (8, 8) for number in range(20)}
    data = noise_images(tmp_path / "images", files | {"a/20.png": (40, 30)})
    said = r"a/20\.png: 40 × 30 pixels, more than the limit of 1,000"
    fields: dict[str, Any] = {
        "batch_size": 10,
        "views.size": 8,
        "network.widths": [4, 8],
        "method.queue_size": 20,
    }
    fields |= {
        "training.max_image_pixels": 1000,
        "training.num_workers": 0,
        "training.report": False,
    }
    run = pretrain("digits-moco-v2", data, epochs=1, out=tmp_path / "run", **fields)
    assert "pixels, more than the limit of 1,000" in (run / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=said):
        pretrain(
            "digits-moco-v2",
            data,
            out=tmp_path / "no",
            **fields,
            **{"training.max_corrupt_share": 0.0},
        )
    notes: list[str] = []
    visualize(run, None, tmp_path / "a.png", num_images=20, notes=notes)
    assert sum("1 unreadable image skipped" in note for note in notes) == 1
    backbone = load_backbone("random:small-resnet-4-8")
    assert (
        embed(backbone, data, tmp_path / "a.npz", max_image_pixels=1000, **QUIET).num_images == 20
    )
    for limit, left in (
        (1000, 1),
        (None, 0),
    ):  # the features that were kept for one limit do not serve another
        found = evaluate(
            "knn", backbone, data, holdout=0.2, k=1, max_image_pixels=limit, seed=3, **QUIET
        )
        assert sum("could not be read" in note for note in found.get("notes", ())) == left
