"""Features as files: what is in them is what the backbone says of each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.embed import embed
from hexa.weights.pretrained import random_backbone
from tests.evaluation.given import SMALL, plain_images


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return dict(np.load(path, allow_pickle=False))
    columns = pyarrow.parquet.read_table(path).to_pydict()
    return {
        name: np.array(values, np.float32 if name == "features" else None)
        for name, values in columns.items()
    }


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_embed_features_labels_paths(tmp_path: Path, suffix: str) -> None:
    """Features, labels and paths belong together."""
    backbone = random_backbone(SMALL, 8)
    source = open_source("digits", "test")
    place = tmp_path / f"new/out{suffix}"
    out = embed(backbone, "digits#test", place, batch_size=100, device="cpu", precision="fp32").path
    found = read(out)
    assert found["features"].shape == (450, 8)
    assert found["features"].dtype == np.float32
    assert np.issubdtype(found["labels"].dtype, np.integer)
    assert found["labels"].tolist() == source.labels.tolist()
    assert found["paths"].tolist() == source.paths
    with torch.no_grad():
        alone = backbone(source.decode(123)[None] / 255)[0]
    np.testing.assert_allclose(
        found["features"][123],
        alone.numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
    assert list(out.parent.iterdir()) == [out]


def test_embed_unreadable_image(tmp_path: Path) -> None:
    """It is left out; images without labels have none."""
    data = plain_images(tmp_path / "flat", {f"{shade}.png": (8, 8) for shade in range(3)})
    (tmp_path / "flat/1.png").write_bytes(b"broken")
    made = embed("pixels:8", data, tmp_path / "out.npz", num_workers=0)
    assert [name.split(":")[0] for name in made.left_out] == ["1.png"]
    found = read(made.path)
    of_images = {"features", "paths", "thumbnails", "statistics", "preview_ends"}
    assert found.keys() == of_images | {"previews", "origin"}
    assert {len(found[name]) for name in of_images} == {made.num_images} == {2}
    assert made.shape == (3 * 8 * 8,)
    np.testing.assert_allclose(
        found["features"][:, 0],
        [0, 40 / 255],
        atol=1e-6,
    )
    assert found["paths"].tolist() == ["0.png", "2.png"]
    for shade in (0, 2):
        (tmp_path / f"flat/{shade}.png").write_bytes(b"broken")
    with pytest.raises(UserError, match="read"):
        embed("pixels:8", data, tmp_path / "none.npz", num_workers=0)
    assert not (tmp_path / "none.npz").exists()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_embed_multiple_labels(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may have several labels."""
    source = open_source("digits", "test")
    source.labels = np.eye(10, dtype=np.int64)[source.labels]
    monkeypatch.setattr("hexa.evaluation.embed.open_source", lambda data, **how: source)
    found = read(embed(random_backbone(SMALL, 8), "digits", tmp_path / f"out{suffix}").path)
    assert np.array_equal(found["labels"], source.labels)
