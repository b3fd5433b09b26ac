"""Feature maps as files: those of the network's own pass, image by image, and never all of them in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from hexa.data import open_source
from hexa.evaluation import maps
from hexa.evaluation.embed import embed
from hexa.evaluation.transforms import transform_of
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import Backbone, random_backbone
from tests.evaluation.given import QUIET, SMALL, noise_images

VIT = NetworkConfig(
    name="vit_tiny_patch16_224",
    options={"img_size": 32, "patch_size": 8, "depth": 2, "dynamic_img_size": True},
)


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        return {
            "maps": np.load(path, mmap_mode="r"),
            **np.load(maps.beside(path), allow_pickle=False),
        }
    table = pyarrow.parquet.read_table(path)
    found = {
        name: np.array(table[name].to_pylist()) for name in table.column_names if name != "maps"
    }
    return found | {"maps": table["maps"].combine_chunks().to_numpy_ndarray()}


def naive(backbone: Backbone, data: str) -> np.ndarray:
    """One image after the other through the network's own function."""
    source, transform, found = open_source(data), transform_of(backbone), []
    for index in range(len(source)):
        pixels = backbone.normalize(transform(source.decode(index))[None] / 255)
        with torch.no_grad():
            found.append(backbone.network.forward_features(pixels)[0])  # type: ignore[operator]
    return torch.stack(found).numpy()


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_maps_labels_and_paths_belong_together(tmp_path: Path, suffix: str) -> None:
    backbone, source = random_backbone(SMALL, 8), open_source("digits", "test")
    made = embed(
        backbone, "digits#test", tmp_path / f"out{suffix}", maps=True, batch_size=100, **QUIET
    )
    assert (made.num_images, made.shape) == (450, (8, 4, 4))
    found = read(made.path)
    np.testing.assert_allclose(found["maps"], naive(backbone, "digits#test"), rtol=1e-4, atol=1e-5)
    assert found["maps"].dtype == np.float32
    assert found["labels"].tolist() == source.labels.tolist()
    assert found["paths"].tolist() == source.paths
    assert len(list(tmp_path.iterdir())) == (2 if suffix == ".npy" else 1)


def test_the_mean_of_the_maps_are_the_features(tmp_path: Path) -> None:
    backbone = random_backbone(SMALL, 8)
    embed(backbone, "digits#test", tmp_path / "f.npz", precision="fp32")
    embed(
        backbone,
        "digits#test",
        tmp_path / "m.npy",
        maps=True,
        maps_precision="float16",
        precision="fp32",
    )
    found = np.load(tmp_path / "m.npy")
    assert found.dtype == np.float16
    features = np.load(tmp_path / "f.npz")["features"]
    np.testing.assert_allclose(
        found.astype(np.float32).mean((2, 3)), features, rtol=1e-2, atol=1e-2
    )


def test_tokens_lie_on_the_grid_of_their_patches(tmp_path: Path) -> None:
    data = noise_images(
        tmp_path / "images", {"0.png": (40, 30), "1.png": (32, 32), "2.png": (50, 60)}
    )
    backbone = random_backbone(VIT, 32).prepared(size=48)
    found = np.load(
        embed(backbone, data, tmp_path / "m.npy", maps=True, num_workers=0, **QUIET).path
    )
    grid = 48 // 8
    assert found.shape == (3, 192, grid, grid)
    tokens = naive(backbone, data)[:, 1:]  # [3, h·w, 192], after the class token
    for row in range(grid):
        for column in range(grid):
            np.testing.assert_allclose(
                found[:, :, row, column], tokens[:, row * grid + column], rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_no_more_than_a_part_is_in_memory(tmp_path: Path, suffix: str) -> None:
    def parts() -> Iterator[maps.Part]:
        for number in range(64):
            yield (
                np.full((4, 64, 32, 32), number, np.float32),
                np.full((4, 2), (number, -1)),
                [str(number)] * 4,
            )

    tracemalloc.start()
    shape = maps.write(tmp_path / f"m{suffix}", parts(), 300, "float32")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shape == (256, 64, 32, 32)
    assert peak < 8 * 4 * 64 * 32 * 32 * 4  # 64 such parts were written
    found = read(tmp_path / f"m{suffix}")
    assert found["labels"].tolist() == [[number // 4, -1] for number in range(256)]
    assert found["maps"][:, 5, 6, 7].tolist() == [number // 4 for number in range(256)]
