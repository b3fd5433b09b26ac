"""Semi-supervised learners through the command line and the library: digits, counts of labels, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexa.data.sources.source import ArraySource
from hexa.evaluation import evaluate
from hexa.evaluation.few_labels import half_width
from hexa.evaluation.protocol import Outcome
from hexa.evaluation.split import draw_per_class
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.random import Stream
from hexa.weights.pretrained import random_backbone, save_backbone
from hexa_paper.protocols import semi_supervised
from hexa_paper.semi_supervised.batches import Batches
from hexa_paper.semi_supervised.options import PUBLISHED, SemiSupervisedOptions
from tests.conftest import Says
from tests.evaluation.given import QUIET, SMALL
from tests.evaluation.test_tuning import images, task


def test_fixmatch_forty_labels() -> None:
    """From random weights in two seconds, far above chance (10 %)."""
    network = NetworkConfig(
        name="small-resnet", widths=(16, 32), mean=(0.3, 0.3, 0.3), std=(0.37, 0.37, 0.37)
    )
    how: dict[str, Any] = {
        "learner": "fixmatch",
        "labels": 40,
        "labelled_batch": 16,
        "ratio": 2,
        "learning_rate": 0.1,
    }
    how |= {"steps": 60, "mirrored": False, **QUIET}
    found = evaluate("semi-supervised", random_backbone(network, 8), "digits", **how)
    assert found["protocol"].startswith("semi-supervised/fixmatch-40-labels-60steps-")
    assert found["metrics"]["top1"] > 50  # seeds 0–2: 69, 59, 69


@pytest.mark.parametrize("learner", sorted(PUBLISHED))
def test_learner_commands(learner: str, tmp_path: Path, says: Says) -> None:
    weights = tmp_path / "b.safetensors"
    out = tmp_path / "r.json"
    save_backbone(random_backbone(SMALL, 8), weights)
    how = f"--learner {learner} --labels 20 --steps 2 --labelled_batch 4 --hard adversarial,cutmix"
    how += f" --out {out} --device cpu --num-workers 0"
    said = says(f"evaluate semi-supervised {weights} --data digits {how}").out
    assert (
        f"semi-supervised/{learner}-20-labels-2steps-labelled_batch=4-adversarial-cutmix on digits: top1"
        in said
    )
    assert f'"ratio": {PUBLISHED[learner].ratio}' in out.read_text()


def test_label_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labels are drawn class by class from seed and draw."""
    source = images(60, 0)
    seen = []

    def fake(task: Any, labelled: Any, *_: object) -> Any:
        seen.append(labelled)
        return Outcome({"top1": 10.0 * len(seen)})

    monkeypatch.setattr(semi_supervised, "train", fake)
    found = semi_supervised.run(
        task(source), SemiSupervisedOptions(learner="uda", labels=12, draws=3)
    )
    half = half_width([10.0, 20.0, 30.0])
    assert found.metrics == {"top1": 20.0, "top1_std": pytest.approx(10.0), "top1_interval": half}
    for number, rows in enumerate(seen):
        assert np.bincount(source.labels[rows]).tolist() == [4, 4, 4]
        assert (
            rows.tolist()
            == draw_per_class(source.labels, 4, Stream(0).child("labels", number)).tolist()
        )


def test_labelled_batch_order() -> None:
    """Batches hold labelled images first and hide all other labels."""
    made = list(Batches(task(images(10, 0)), np.array([7, 2]), 4, 3, Stream(0)).steps(6))
    for batch in made:
        assert len(batch) == 16
        assert batch.crops[0].shape == (16, 3, 8, 8)
        assert sorted(batch.index[:4].tolist()) == [2, 2, 7, 7]
    drawn = torch.cat([batch.index[4:] for batch in made])
    assert np.bincount(drawn.numpy(), minlength=10).min() > 0, "all images, those with a label too"


def test_weak_view_shifts() -> None:
    """Weak views are mirrored and moved by an eighth."""
    pixels = torch.arange(64).view(1, 1, 8, 8).expand(1, 3, 8, 8).to(torch.uint8)
    source = ArraySource(pixels.repeat(3, 1, 1, 1), np.arange(3), name="ramp")
    image = pixels[0].float() / 255
    seen = set()
    allowed = {}
    for flip in (False, True):
        whole = torch.nn.functional.pad(
            image.flip(2) if flip else image, (1, 1, 1, 1), mode="reflect"
        )
        for y, x in np.ndindex(3, 3):
            allowed[flip, y, x] = whole[:, y : y + 8, x : x + 8]
    for batch in Batches(replace(task(), fit=source), np.arange(3), 3, 2, Stream(0)).steps(20):
        for view in batch.crops[0]:
            (name,) = [
                name for name, crop in allowed.items() if torch.allclose(crop, view, atol=1e-6)
            ]
            seen.add(name)
    assert seen == set(allowed)
