"""Images outside of a data set's folder: by a link they are read only on request, by a name in a list never."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hexa.data import open_source
from tests.data.image_files import bitmap
from tests.data.sources import test_torchvision_sets, test_voc, test_webdataset
from tests.data.sources.test_opening import write_image, write_parquet
from tests.refusals import one_line


def moved_out(path: Path) -> None:
    """Replace a file or folder by a link to where it is now, outside of the data set."""
    outside = next(folder for folder in path.parents if folder.name == "set").parent
    target = outside / f"out-{path.name}"
    shutil.move(path, target)
    path.symlink_to(target)


def photos(root: Path) -> str:
    for name in ("train/a/0.bmp", "train/b/1.bmp", "test/a/2.bmp"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bitmap(1))
    return f"folder:{root}"


def voc(root: Path) -> str:
    return f"voc:{test_voc.kit(root)}"


def parquet(root: Path) -> str:
    root.mkdir()
    for name in ("train", "test"):
        write_parquet(root / f"{name}.parquet", [1, 2])
    return f"parquet:{root}"


def shards(root: Path) -> str:
    test_webdataset.shard(root / "train-0.tar", 0)
    test_webdataset.shard(root / "train-1.tar", 3)
    return f"webdataset:{root}"


def pattern(root: Path) -> str:
    shards(root)
    return f"webdataset:{root}/train-*.tar"


def food(root: Path) -> str:
    test_torchvision_sets.food101(root)
    return f"food101:{root}"


LINKS: dict[str, tuple[Callable[[Path], str], str]] = {
    "an image": (photos, "train/a/0.bmp"),
    "a class": (photos, "train/b"),
    "a split": (photos, "train"),
    "a photograph of VOC": (voc, "VOCdevkit/VOC2007/JPEGImages/trainval0.jpg"),
    "all photographs of VOC": (voc, "VOCdevkit/VOC2007/JPEGImages"),
    "a Parquet file": (parquet, "train.parquet"),
    "a shard": (shards, "train-1.tar"),
    "a shard of a pattern": (pattern, "train-1.tar"),
    "a photograph of food": (food, "food-101/images/pie/1.jpg"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_link_outside_folder(tmp_path: Path, kind: str) -> None:
    """A link out of the folder is followed only on request."""
    make, linked = LINKS[kind]
    spec = make(tmp_path / "set")
    before = open_source(spec)
    moved_out(tmp_path / "set" / linked)
    with one_line("outside of the data set; .*,links=follow$"):
        open_source(spec)
    after = open_source(f"{spec},links=follow#train")
    assert after.paths == before.paths
    assert after.decode(0).equal(before.decode(0))


def test_inner_and_hub_links(tmp_path: Path) -> None:
    """Links inside the folder, and those of the Hub, are followed."""
    spec = photos(tmp_path / "set")
    (tmp_path / "set/train/a/3.bmp").symlink_to("../../test/a/2.bmp")
    assert len(open_source(spec)) == 3
    (tmp_path / "link").symlink_to(tmp_path / "set")
    assert len(open_source(f"folder:{tmp_path}/link")) == 3
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0").write_bytes(bitmap(1))
    (snapshot / "0.bmp").symlink_to("../../blobs/0")
    assert open_source(f"folder:{snapshot}").decode(0).shape[0] == 3


@pytest.mark.parametrize("suffix", ["", ",links=follow"])
def test_listed_name_outside_folder(tmp_path: Path, suffix: str) -> None:
    """A listed name that leads out of the folder is never followed."""
    write_image(tmp_path / "secret.jpg", 100)
    lists = voc(tmp_path / "set").removeprefix("voc:")
    for name in test_voc.LABELS:
        file = Path(lists) / f"VOC2007/ImageSets/Main/{name}_trainval.txt"
        file.write_text("../../../../secret 1\ntrainval1 1\n")
    with one_line("secret.jpg"):
        open_source(f"voc:{lists}{suffix}")
    spec = food(tmp_path / "food")
    listed = {"pie": ["../../../secret"], "soup": ["soup/1"]}
    (tmp_path / "food/food-101/meta/train.json").write_text(json.dumps(listed))
    with one_line("secret.jpg"):
        open_source(f"{spec}{suffix}")


def test_user_named_link(tmp_path: Path) -> None:
    """A pattern or file that the user names may be a link."""
    shards(tmp_path / "set")
    (tmp_path / "here.tar").symlink_to("set/train-0.tar")
    assert len(open_source(f"webdataset:{tmp_path}/here.tar")) == 3


def test_invalid_links_option(tmp_path: Path) -> None:
    with one_line("links must be follow, got 'yes'"):
        open_source(f"{photos(tmp_path / 'set')},links=yes")
