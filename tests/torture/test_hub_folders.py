"""A stranger's folder for `datasets`: whatever it names, nothing outside of it is read, and no address is asked."""

from __future__ import annotations

import json
import os
import re
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.test_parquet import bomb
from tests.torture.harness import Tally
from tests.torture.looking import Zoo, bitmap, outcome

datasets = pytest.importorskip("datasets")
folders = Zoo()
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {"info": {"features": {"image": {"_type": "Image"}}}}
OUTSIDE = "which is outside of the data set; nothing is read from there"
NAMED = "only files inside the folder are read"


def card(root: Path, files: object, file: str = "README.md", **fields: object) -> str:
    """A folder of one image whose card names these data files; `secret` lies beside it."""
    place = root / "set"
    place.mkdir()
    (root / "secret").mkdir()
    (place / "a.bmp").write_bytes(bitmap(1))
    (root / "secret" / "b.bmp").write_bytes(bitmap(2))
    text = json.dumps({"configs": [{"config_name": "default", "data_files": files, **fields}]})  # JSON is YAML
    (place / file).write_text(f"---\n{text}\n---\n" if file == "README.md" else text)
    return f"hf:{place}"


def rows(root: Path, *paths: str) -> str:
    """Rows of a Parquet file that name files instead of holding their bytes; ROOT stands for the folder."""
    spec = card(root, "train.parquet")
    images = [{"bytes": None, "path": path.replace("ROOT", str(root / "set"))} for path in paths]
    table = pa.table({"image": pa.array(images, IMAGE)})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(FEATURES)}), root / "set" / "train.parquet")
    return spec


def linked(root: Path, target: Path, name: str = "link.bmp") -> str:
    spec = card(root, "*.bmp")
    (root / "set" / name).symlink_to(target)
    return spec


@folders("^1 images, 0 unreadable")
def a_card_that_names_its_own_file(root: Path) -> str:
    return card(root, "*.bmp")


@folders(f"^refused: .*README.md names '../secret/\\*.bmp'; {NAMED}")
def a_card_that_leads_out(root: Path) -> str:
    return card(root, "../secret/*.bmp")


@folders(f"^refused: .*names 'x/../../secret/b.bmp'; {NAMED}")
def a_card_that_leads_out_by_a_detour(root: Path) -> str:
    return card(root, [{"split": "train", "path": ["a.bmp", "x/../../secret/b.bmp"]}])


@folders(f"^refused: .*names '/.*/secret/b.bmp'; {NAMED}")
def a_card_with_an_absolute_path(root: Path) -> str:
    return card(root, str(root / "secret" / "b.bmp"))


@folders(f"^refused: .*names 'file://.*/secret/b.bmp'; {NAMED}")
def a_card_with_a_file_address(root: Path) -> str:
    return card(root, f"file://{root}/secret/b.bmp")


@folders(f"^refused: .*names 'file:/.*/secret/b.bmp'; {NAMED}")
def a_card_with_a_file_address_without_slashes(root: Path) -> str:
    return card(root, f"file:{root}/secret/b.bmp")


@folders(f"^refused: .*names 'zip://\\*::/.*'; {NAMED}")
def a_card_with_an_archive_elsewhere(root: Path) -> str:
    return card(root, f"zip://*::{root}/secret.zip")


@folders(f"^refused: .*names '\\.\\.'; {NAMED}")
def a_card_whose_folder_leads_out(root: Path) -> str:
    return card(root, "secret/*.bmp", data_dir="..")


@folders(f"^refused: .*.huggingface.yaml names '../secret/b.bmp'; {NAMED}")
def a_settings_file_that_leads_out(root: Path) -> str:
    return card(root, "../secret/b.bmp", ".huggingface.yaml")


@folders(f"^refused: .*names '../secret/b.bmp'; {NAMED}")
def a_second_config_that_leads_out(root: Path) -> str:
    spec = card(root, "*.bmp")
    configs = [{"config_name": name, "data_files": files} for name, files in (("a", "*.bmp"), ("b", "../secret/b.bmp"))]
    (root / "set" / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")
    return f"{spec}:b"


@folders("^refused: .*cannot be read")
def a_card_of_lists_in_lists(root: Path) -> str:
    spec = card(root, "*.bmp")
    (root / "set" / "README.md").write_text(f"---\nconfigs: {'[' * 5000}\n---\n")
    return spec


@folders("^refused: .*cannot be read")
def configs_that_are_a_number(root: Path) -> str:
    spec = card(root, "*.bmp")
    (root / "set" / "README.md").write_text("---\nconfigs: 7\n---\n")
    return spec


@folders(f"^refused: .*link.bmp, {OUTSIDE}")
def a_link_out(root: Path) -> str:
    return linked(root, root / "secret" / "b.bmp")


@folders(f"^refused: .*, {OUTSIDE}")
def a_linked_folder_out(root: Path) -> str:
    spec = card(root, "more/*.bmp")
    (root / "set" / "more").symlink_to(root / "secret")
    return spec


@folders(f"^refused: .*link.bmp, {OUTSIDE}")
def a_link_to_a_link_out(root: Path) -> str:
    spec = linked(root, Path("other"))
    (root / "set" / "other").symlink_to("../secret/b.bmp")
    return spec


@folders("^2 images, 0 unreadable")
def a_link_that_stays_inside(root: Path) -> str:
    return linked(root, Path("a.bmp"))


@folders("^2 images, 0 unreadable")
def a_download_of_the_hub_which_is_links_to_its_blobs(root: Path) -> str:
    place = root / "datasets--x--y" / "snapshots" / "abc"
    for number in range(2):
        (place / f"{number}.bmp").parent.mkdir(parents=True, exist_ok=True)
        blob = root / "datasets--x--y" / "blobs" / str(number)
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(bitmap(number))
        (place / f"{number}.bmp").symlink_to(os.path.relpath(blob, place))
    return f"hf:{place}"


@folders(f"^refused: .*a row names /.*/secret/b.bmp, {OUTSIDE}")
def a_row_with_an_absolute_path(root: Path) -> str:
    return rows(root, "ROOT/a.bmp", str(root / "secret" / "b.bmp"))


@folders(f"^refused: .*a row names /.*/set/../secret/b.bmp, {OUTSIDE}")
def a_row_that_leads_out(root: Path) -> str:
    return rows(root, "ROOT/../secret/b.bmp")


@folders(f"^refused: .*a row names README.md, {OUTSIDE}")
def a_row_relative_to_where_the_program_runs(root: Path) -> str:
    return rows(root, "README.md")


@folders(f"^refused: .*a row names /dev/zero, {OUTSIDE}")
def a_row_that_is_a_device(root: Path) -> str:
    return rows(root, "/dev/zero")


@folders(f"^refused: .*link.bmp, {OUTSIDE}")
def a_row_that_names_a_link_out(root: Path) -> str:
    spec = rows(root, "ROOT/link.bmp")
    (root / "set" / "link.bmp").symlink_to("../secret/b.bmp")
    return spec


@folders("^2 images, 1 unreadable")
def rows_that_stay_inside_and_what_is_not_there(root: Path) -> str:
    return rows(root, "ROOT/a.bmp", "ROOT/gone.bmp")


@folders("^refused: ")
def metadata_of_images_that_lead_out(root: Path) -> str:
    spec = card(root, "*")
    (root / "set" / "metadata.csv").write_text("file_name,text\n../secret/b.bmp,x\n")
    (root / "set" / "README.md").unlink()
    return spec


@folders("^refused: .*a row names zip://a.bmp::/.*/train.zip, an address; only files are read")
def an_archive_in_the_folder(root: Path) -> str:
    spec = card(root, "*")
    (root / "set" / "README.md").unlink()
    with zipfile.ZipFile(root / "set" / "train.zip", "w") as archive:
        archive.write(root / "set" / "a.bmp", "a.bmp")
    (root / "set" / "a.bmp").unlink()
    return spec


@folders("^refused: .*, which is outside of the data set")
def a_saved_set_whose_splits_are_elsewhere(root: Path) -> str:
    table = datasets.Dataset.from_dict({"image": [{"bytes": bitmap(), "path": "a.bmp"}]})
    features = datasets.Features({"image": datasets.Image()})
    table.cast(features).save_to_disk(root / "private")
    (root / "set").mkdir()
    (root / "set" / "dataset_dict.json").write_text('{"splits": ["../private"]}')
    return f"hf:{root / 'set'}"


@folders("^refused: .*outside.pipe, which is outside of the data set")
def a_saved_set_that_names_a_pipe_elsewhere(root: Path) -> str:
    (root / "set").mkdir()
    os.mkfifo(root / "outside.pipe")
    (root / "set" / "state.json").write_text('{"_data_files": [{"filename": "../outside.pipe"}]}')
    return f"hf:{root / 'set'}"


@folders("^refused: .*own.pipe is not a regular file")
def a_saved_set_that_names_a_pipe(root: Path) -> str:
    (root / "set").mkdir()
    os.mkfifo(root / "set" / "own.pipe")
    (root / "set" / "state.json").write_text('{"_data_files": [{"filename": "own.pipe"}]}')
    return f"hf:{root / 'set'}"


@folders("^refused: .*train.parquet unpacks to more than .* bytes, the limit; write it as several smaller files")
def kilobytes_that_unpack_to_gigabytes(root: Path) -> str:
    spec = card(root, "train.parquet")
    bomb(root / "set" / "train.parquet", 4, 3000)
    return spec


@pytest.mark.parametrize(("make", "said"), folders.cases)
def test_folders_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally, make: Callable[[Path], str], said: str
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("hexa.data.huggingface.half_of_memory", lambda: 100_000_000)
    assert re.search(said, outcome(make(tmp_path), "folders of strangers for datasets", tally))


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https", "hf", "s3", "ftp", "simplecache::http", "row of http"])
def test_no_address_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally, scheme: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme.removeprefix('row of ')}://127.0.0.1:{server.getsockname()[1]}/b.bmp"
        spec = rows(tmp_path, address) if scheme.startswith("row") else card(tmp_path, ["a.bmp", address])
        said = outcome(spec, "folders of strangers for datasets", tally)
        assert re.search(rf"^refused: .*names '?{re.escape(address)}", said), said
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
