"""Evaluation of images in their own aspect: as image by image, named in the result, and refused where it can't be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation import evaluate
from hexa.evaluation.embed import embed
from hexa.evaluation.features import extract
from hexa.evaluation.transforms import transform_of
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import random_backbone
from tests.evaluation.given import QUIET, SMALL, noise_images

VIT = {"img_size": 32, "patch_size": 8, "depth": 2}
ALONE = QUIET | {"num_workers": 0}
SIZES = [(20, 30), (30, 20), (16, 16), (20, 30), (90, 20), (5000, 1)]


@pytest.fixture
def data(tmp_path: Path) -> str:
    files = {}
    for folder, count in (("train/a", 6), ("train/b", 6), ("test/a", 3), ("test/b", 3)):
        for number in range(count):
            files[f"{folder}/{number}.png"] = SIZES[(number + folder.endswith("b")) % len(SIZES)]
    return noise_images(tmp_path / "data", files)


@pytest.mark.parametrize("options", [None, VIT | {"dynamic_img_size": True}])
def test_features_are_those_of_each_image_alone(
    tmp_path: Path, data: str, options: dict[str, Any] | None
) -> None:
    config = (
        SMALL if options is None else NetworkConfig(name="vit_tiny_patch16_224", options=options)
    )
    backbone, source = random_backbone(config, 16), open_source(data)
    transform = transform_of(backbone, "keep")
    features, labels, positions = extract(
        backbone, source, transform, precision="fp32", num_workers=0
    )
    assert positions.tolist() == list(range(12))
    assert labels.tolist() == [0] * 6 + [1] * 6
    for position, found in enumerate(features):
        with torch.no_grad():
            alone = backbone(transform(source.decode(position))[None] / 255)[0]
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    out = embed(
        backbone,
        data,
        tmp_path / "f.npz",
        aspect="keep",
        device="cpu",
        precision="fp32",
        num_workers=0,
    )
    np.testing.assert_allclose(
        np.load(out.path)["features"], features.numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("protocol", ["linear", "fine-tune", "semi-supervised", "detect"])
def test_protocols_that_cut_squares_refuse(data: str, protocol: str) -> None:
    match = rf"^{protocol} crops or resizes the images it trains on itself; leave out aspect keep, or use .*knn"
    with pytest.raises(UserError, match=match):
        evaluate(protocol, random_backbone(SMALL, 16), data, aspect="keep", **ALONE)
