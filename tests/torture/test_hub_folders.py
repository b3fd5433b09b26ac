"""A stranger's folder for `datasets`: whatever it names, nothing outside of it is read, and no address is asked."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.image_files import bitmap
from tests.torture.harness import Tally
from tests.torture.test_packed import IMAGE, ROWS
from tests.torture.test_sources import check

datasets = pytest.importorskip("datasets")
GROUP = "folders for datasets"
FEATURES = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}
OUTSIDE = "outside of the data set"
NAMED = "only files inside the folder are read"


def card(
    files: object = "*.bmp", file: str = "README.md", config: str = "", **fields: object
) -> Callable[[Path], str]:
    """Make a folder of one image whose card names these data files; `secret` is next to it. ROOT
    stands for both."""

    def make(root: Path) -> str:
        place = root / "set"
        for folder in (place, root / "secret"):
            folder.mkdir()
            (folder / "a.bmp").write_bytes(bitmap(1))
        configs: list[dict[str, Any]] = [{"config_name": "default", "data_files": files, **fields}]
        if config:
            configs = [
                {"config_name": "a", "data_files": "*.bmp"},
                {**configs[0], "config_name": config},
            ]
        text = json.dumps({"configs": configs}).replace("ROOT", str(root))  # JSON is YAML
        (place / file).write_text(f"---\n{text}\n---\n" if file == "README.md" else text)
        return f"hf:{place}{':' * bool(config)}{config}"

    return make


def then(make: Callable[[Path], str], change: Callable[[Path], object]) -> Callable[[Path], str]:
    return lambda root: (make(root), change(root / "set"))[0]


def written(text: bytes) -> Callable[[Path], str]:
    """Make a folder of one image whose card has this text."""
    return then(card(), lambda place: (place / "README.md").write_bytes(text))


def rows(*paths: str) -> Callable[[Path], str]:
    """Rows of a Parquet file that name files instead of holding their bytes; ROOT stands for the folder above it."""

    def write(place: Path) -> None:
        images = [
            {"bytes": None, "path": path.replace("ROOT", str(place.parent))} for path in paths
        ]
        table = pa.table({"image": pa.array(images, IMAGE)})
        pq.write_table(table.replace_schema_metadata(FEATURES), place / "train.parquet")

    return then(card("train.parquet"), write)


def linked(name: str, target: str, files: str = "*.bmp") -> Callable[[Path], str]:
    return then(card(files), lambda place: (place / name).symlink_to(target))


def without_card(change: Callable[[Path], object]) -> Callable[[Path], str]:
    return then(card("*"), lambda place: ((place / "README.md").unlink(), change(place)))


def download(root: Path) -> str:
    """Store files like the hub's client: links to blobs."""
    place = root / "datasets--x--y" / "snapshots" / "abc"
    blobs = root / "datasets--x--y" / "blobs"
    place.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0").write_bytes(bitmap())
    (place / "0.bmp").symlink_to(os.path.relpath(blobs / "0", place))
    return f"hf:{place}"


def saved(
    change: Callable[[Path], object], labels: tuple[int | None, ...] = (0, 1)
) -> Callable[[Path], str]:
    """A folder as `save_to_disk` writes it, then changed."""

    def make(root: Path) -> str:
        kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("uint64")})
        images = [*ROWS, None][: len(labels)]
        datasets.Dataset.from_dict({"image": images, "label": labels}, features=kinds).save_to_disk(
            root / "set"
        )
        change(root / "set")
        return f"hf:{root / 'set'}"

    return make


def state(file: str) -> Callable[[Path], object]:
    return lambda place: (place / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": file}]})
    )


def packed(name: str, content: bytes) -> Callable[[Path], str]:
    return then(card(name), lambda place: (place / name).write_bytes(content))


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.bmp", bitmap())
    return file.getvalue()


ZIP = _zip()
#: A list of 3 ** 30 names.
_ALIASES = "a0: &a0 ['*.bmp']\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 31)
)
_ALIASES += "configs:\n- config_name: default\n  data_files: *a30\n"
CASES = {
    "its own file": (card(), "^1 images, 0 unreadable"),
    "out": (card("../secret/*.bmp"), f"^refused: .*README.md names '../secret/\\*.bmp'; {NAMED}"),
    "an absolute path": (
        card("ROOT/secret/a.bmp"),
        f"^refused: .*names '/.*/secret/a.bmp'; {NAMED}",
    ),
    "a file's address": (
        card("file://ROOT/secret/a.bmp"),
        f"^refused: .*names 'file://.*/secret/a.bmp'; {NAMED}",
    ),
    "lists in lists": (
        written(b"---\nconfigs: %b\n---\n" % (b"[" * 3000)),
        "^refused: .*README.md: nested too deeply",
    ),
    "aliases of aliases": (
        written(f"---\n{_ALIASES}---\n".encode()),
        "^refused: .*README.md: not YAML .*aliases are not supported",
    ),
    "aliases in the other card": (
        then(card(), lambda place: (place / ".huggingface.yaml").write_text(_ALIASES)),
        "^refused: .*huggingface.yaml: not YAML .*aliases are not supported",
    ),
    "values like numbers": (
        written(b"---\na: 0x1F\nb: 12:30\nc: 99999999999999999999\nc: 1\n---\n"),
        "^1 images, 0 unreadable",
    ),
    "a card in Latin-1": (
        written(b"---\na: caf\xe9\n---\n"),
        "^refused: data '.*README.md: is not UTF-8 text .*; correct it, or use folder:.*/set$",
    ),
    "files in a merged mapping": (
        written(b"---\nconfigs:\n- <<: {data_files: ../secret/a.bmp}\n---\n"),
        f"^refused: .*README.md names '../secret/a.bmp'; {NAMED}",
    ),
    "a zip": (packed("a.zip", ZIP), "^refused: .*a.zip is a packed file; unpack it first"),
    "a packed table": (
        packed("train.csv.gz", gzip.compress(b"a,b\n" * 1000)),
        "^refused: .*train.csv.gz is a packed file; unpack it first",
    ),
    "a table that is packed": (
        packed("train.csv", gzip.compress(b"a,b\n" * 1000)),
        "^refused: .*train.csv is a packed file; unpack it first",
    ),
    "a link out": (linked("link.bmp", "../secret/a.bmp"), f"^refused: .*link.bmp {OUTSIDE}"),
    "a link inside": (linked("link.bmp", "a.bmp"), "^2 images, 0 unreadable"),
    "a download of the hub": (download, "^1 images, 0 unreadable"),
    "a row out": (
        rows("ROOT/set/a.bmp", "ROOT/secret/a.bmp"),
        f"^refused: .*a row names /.*/secret/a.bmp {OUTSIDE}",
    ),
    "a row where the program runs": (
        rows("README.md"),
        f"^refused: .*a row names README.md {OUTSIDE}",
    ),
    "splits elsewhere": (
        without_card(
            lambda place: (place / "dataset_dict.json").write_text('{"splits": ["../secret"]}')
        ),
        f"^refused: .* {OUTSIDE}",
    ),
    "saved elsewhere": (saved(state("/dev/zero")), f"^refused: .*names /dev/zero {OUTSIDE}"),
}


@pytest.fixture(autouse=True)
def _limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("hexa.data.sources.huggingface.usable_memory", lambda: 200_000_000)


@pytest.mark.parametrize("name", CASES)
def test_hostile_hub_folders(name: str, tmp_path: Path, tally: Tally) -> None:
    make, said = CASES[name]
    check(GROUP, make(tmp_path), said, tally)


@pytest.mark.parametrize("scheme", ["HTTP", "hf", "simplecache::http", "row of http"])
def test_address_requests(tmp_path: Path, tally: Tally, scheme: str) -> None:
    """No address is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme.removeprefix('row of ')}://127.0.0.1:{server.getsockname()[1]}/b.bmp"
        spec = (rows(address) if scheme.startswith("row") else card(["a.bmp", address]))(tmp_path)
        check(GROUP, spec, rf"^refused: .*names '?{re.escape(address)}", tally)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
