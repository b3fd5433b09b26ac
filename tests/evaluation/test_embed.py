"""Features as files: what is in them is what the backbone says of each image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import open_source
from hexa.evaluation.embed import embed
from hexa.nn.backbones import NetworkConfig
from hexa.weights.pretrained import random_backbone

SMALL = NetworkConfig(name="small-resnet", widths=(4, 8))


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return dict(np.load(path, allow_pickle=False))
    columns = pyarrow.parquet.read_table(path).to_pydict()
    return {name: np.array(values, np.float32 if name == "features" else None) for name, values in columns.items()}


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_features_labels_and_paths_belong_together(tmp_path: Path, suffix: str) -> None:
    backbone, source = random_backbone(SMALL, 8), open_source("digits", "test")
    out = embed(backbone, "digits#test", tmp_path / "new" / f"out{suffix}", batch_size=100, precision="fp32").path
    found = read(out)
    assert found["features"].shape == (450, 8)
    assert found["features"].dtype == np.float32
    assert source.labels is not None
    assert np.issubdtype(found["labels"].dtype, np.integer)
    assert found["labels"].tolist() == source.labels.tolist()
    assert found["paths"].tolist() == source.paths
    with torch.no_grad():
        alone = backbone(source.decode(123)[None] / 255)[0]
    np.testing.assert_allclose(found["features"][123], alone.numpy(), rtol=1e-4, atol=1e-5)
    assert list(out.parent.iterdir()) == [out]


def test_images_without_labels_have_none(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for shade in range(3):
        Image.new("RGB", (8, 8), (80 * shade,) * 3).save(tmp_path / "flat" / f"{shade}.png")
    found = read(embed("pixels:8", f"folder:{tmp_path / 'flat'}", tmp_path / "out.npz", num_workers=0).path)
    assert found.keys() == {"features", "paths"}
    np.testing.assert_allclose(found["features"][:, 0], [0, 80 / 255, 160 / 255], atol=1e-6)
    assert [Path(path).name for path in found["paths"].tolist()] == ["0.png", "1.png", "2.png"]


def test_an_unreadable_image_is_left_out_of_all_arrays(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for shade in range(3):
        Image.new("RGB", (8, 8), (80 * shade,) * 3).save(tmp_path / "flat" / f"{shade}.png")
    (tmp_path / "flat" / "1.png").write_bytes(b"broken")
    made = embed("pixels:8", f"folder:{tmp_path / 'flat'}", tmp_path / "out.npz", num_workers=0)
    assert (made.num_images, made.shape, len(made.left_out)) == (2, (3 * 8 * 8,), 1)
    assert "1.png" in made.left_out[0]
    found = read(made.path)
    assert [Path(path).name for path in found["paths"].tolist()] == ["0.png", "2.png"]
    np.testing.assert_allclose(found["features"][:, 0], [0, 160 / 255], atol=1e-6)


def test_only_unreadable_images_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.png").write_bytes(b"broken")
    with pytest.raises(UserError, match="read"):
        embed("pixels:8", f"folder:{tmp_path / 'flat'}", tmp_path / "out.npz", num_workers=0)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_image_may_have_several_labels(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("digits", "test")
    source.labels = np.eye(10, dtype=np.int64)[source.labels]
    monkeypatch.setattr("hexa.evaluation.embed.open_source", lambda data, **how: source)
    found = read(embed(random_backbone(SMALL, 8), "digits", tmp_path / f"out{suffix}").path)
    assert np.array_equal(found["labels"], source.labels)


def test_another_kind_of_file_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.npz or \.parquet"):
        embed("nowhere", "nothing", tmp_path / "out.csv")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "savez", lambda file, **arrays: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        embed("pixels:8", "digits#test", tmp_path / "out.npz")
    assert list(tmp_path.iterdir()) == []
