"""Duplicates, outliers and neighbours in files of features, against naive loops and planted images."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from hexa.evaluation import alike, feature_file
from hexa.evaluation.embed import embed
from hexa.evaluation.search import Features, shared
from hexa.weights.pretrained import random_backbone, save_backbone
from tests.conftest import Says
from tests.evaluation.given import SMALL
from tests.refusals import one_line


def scene(seed: int) -> Image.Image:
    """Something like a photograph: smooth colours with edges and texture."""
    generator = np.random.default_rng(seed)
    few = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    many = generator.integers(0, 256, (15, 20, 3), dtype=np.uint8)
    size = (160, 120)
    coarse = Image.fromarray(few).resize(size, Image.Resampling.BICUBIC)
    fine = Image.fromarray(many).resize(size, Image.Resampling.NEAREST)
    blended = Image.blend(coarse, fine, 0.3)
    for _ in range(4):
        x = int(generator.integers(120))
        y = int(generator.integers(80))
        shade = tuple(int(one) for one in generator.integers(0, 256, 3))
        blended.paste(shade, (x, y, x + 40, y + 30))
    return blended


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = image.size
    left = round(width * share / 2)
    top = round(height * share / 2)
    return image.crop((left, top, width - left, height - top))


VARIANTS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "exact": lambda image: image,
    "quality 80": lambda image: recompressed(image, 80),
    "quality 30": lambda image: recompressed(image, 30),
    "smaller": lambda image: image.resize((80, 60), Image.Resampling.BICUBIC),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.3),
    "mirrored": ImageOps.mirror,
    "cropped 5": lambda image: cropped(image, 0.05),
    "cropped 12": lambda image: cropped(image, 0.12),
    "grey": lambda image: image.convert("L").convert("RGB"),
}


def embedded(folder: Path, out: Path, **options: Any) -> Path:
    backbone = random_backbone(SMALL, 32, 0)
    embed(backbone, f"folder:{folder}", out, num_workers=0, **options)
    return out


def given(folder: Path, features: Any, **more: Any) -> Path:
    names = [f"{place}.png" for place in range(len(features))]
    np.savez(folder / "x.npz", features=features, paths=np.array(names), **more)
    return folder / "x.npz"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Thirty directions; 3, 7 and 11 nearly agree, as do 20 and 21 even more."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(30, 16)).astype(np.float32)
    features[7] = features[3] + 0.05
    features[11] = features[3] - 0.05
    features[21] = features[20] + 0.01
    return given(tmp_path, features + 1)


# -- features alone ----------------------------------------------------------------------------------------------------


def test_feature_duplicates(file: Path) -> None:
    found = Features(file).duplicates()
    features = np.load(file)["features"].astype(np.float64)
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = directions @ directions.T
    pair, triple = found
    assert pair.paths == ["20.png", "21.png"]
    assert triple.paths == ["3.png", "7.png", "11.png"]
    assert pair.similarity == pytest.approx(expected[20, 21], abs=1e-6)
    cosines_of_triple = [expected[3, 7], expected[3, 11], expected[7, 11]]
    assert triple.similarity == pytest.approx(max(cosines_of_triple), abs=1e-6)
    assert triple.lowest == pytest.approx(min(cosines_of_triple), abs=1e-6)
    assert Features(file).duplicates(1) == []


def test_duplicate_chain(tmp_path: Path) -> None:
    """Each of ten directions is near the next; the ends are a right angle apart."""
    angles = np.linspace(0, np.pi / 2, 10)
    features = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    found = Features(given(tmp_path, features)).duplicates(0.98)
    assert found
    for group in found:
        rows = features[group.places]
        lowest = (rows @ rows.T).min()
        assert lowest >= 0.98
        assert group.lowest == pytest.approx(lowest, abs=1e-6)


@pytest.mark.parametrize(("least", "apart"), [(0.3, False), (0.9, False), (0.1, True)])
def test_tiled_pairs(least: float, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all products."""
    monkeypatch.setattr(alike, "_ROWS", 7)
    monkeypatch.setattr(alike, "_COLUMNS", 16)
    generator = np.random.default_rng(0)
    rows = alike.unit(generator.normal(size=(60, 8)) + generator.normal(size=8))
    rows[40:] = alike.unit(rows[:20] + 0.02 * generator.normal(size=(20, 8)))
    bank = alike.unit(generator.normal(size=(60, 8))) if apart else rows
    product = rows @ bank.T
    pairs, cosine = alike.pairs_above(rows, least, bank)
    wanted = {(i, j) for i in range(60) for j in range(i + 1, 60) if product[i, j] >= least}
    first, second = np.divmod(pairs, 60)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == wanted
    assert cosine == pytest.approx(product[first, second], abs=1e-6)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 scenes, and one variant of each of the first eleven."""
    folder = tmp_path_factory.mktemp("planted")
    for seed in range(60):
        scene(seed).save(folder / f"{seed:02}.png")
    for seed, (name, variant) in enumerate(VARIANTS.items()):
        variant(scene(seed)).save(folder / f"{name} of {seed:02}.png")
    return folder


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_planted_duplicates(suffix: str, planted: Path, tmp_path: Path) -> None:
    """All are found, alone, whatever the features: here those of an untrained network."""
    out = embedded(planted, tmp_path / f"x{suffix}")
    found = Features(out).duplicates()
    wanted = set()
    for seed, name in enumerate(VARIANTS):
        wanted.add(frozenset({f"{seed:02}.png", f"{name} of {seed:02}.png"}))
    assert len(found) == len(wanted)
    assert {frozenset(one.paths) for one in found} == wanted


def test_planted_outliers(tmp_path: Path) -> None:
    """Each kind of junk alone is among the first three of 61 images, and all together are among the first eight."""
    generator = np.random.default_rng(1)
    size = (160, 120)
    noise = generator.integers(0, 256, (120, 160, 3), dtype=np.uint8)
    junk = {
        "black": Image.new("RGB", size),
        "white": Image.new("RGB", size, "white"),
        "noise": Image.fromarray(noise),
        "tiny": scene(70).resize((4, 3)).resize(size, Image.Resampling.BICUBIC),
        "blurred": scene(71).filter(ImageFilter.GaussianBlur(25)),
        "gradient": Image.linear_gradient("L").resize(size).convert("RGB"),
    }
    (tmp_path / "all").mkdir()
    for seed in range(60):
        scene(seed).save(tmp_path / f"all/{seed:02}.png")
    for name, image in junk.items():
        image.save(tmp_path / f"all/{name}.png")
    every = Features(embedded(tmp_path / "all", tmp_path / "x.npz"))
    found = {one.paths[0] for one in every.outliers(8)}
    assert found >= {f"{name}.png" for name in junk}
    for name in junk:
        kept = [p for p, path in enumerate(every.paths) if path[:2].isdecimal() or name in path]
        alone = feature_file.FeatureFile(
            tmp_path,
            every.file.features[kept],
            [every.paths[place] for place in kept],
            statistics=every.file.statistics[kept],  # type: ignore[index]
        )
        first = [one.paths[0] for one in Features(alone).outliers(3)]
        assert f"{name}.png" in first


# -- two files, other images, pages ------------------------------------------------------------------------------------


def test_shared_images_of_files(planted: Path, tmp_path: Path, says: Says) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    for path in planted.iterdir():
        shutil.copy(path, tmp_path / ("train" if path.stem.isdecimal() else "test"))
    shutil.copy(planted / "05.png", tmp_path / "train/again.png")
    scene(99).save(tmp_path / "test/new.png")
    files = [embedded(tmp_path / part, tmp_path / f"{part}.npz") for part in ("train", "test")]
    found = shared(*map(Features, files))
    matches = {one.paths[0]: set(one.paths[1:]) for one in found}
    wanted = {}
    for seed, name in enumerate(VARIANTS):
        wanted[f"{name} of {seed:02}.png"] = {f"{seed:02}.png"}
    wanted["darker of 05.png"].add("again.png")
    assert matches == wanted
    said = says("search", *files, "--duplicates").out
    assert (
        f"11 of 12 images of {files[1]} are duplicates of 12 of 61 of {files[0]} at --least 0.9"
        in said
    )
    err = says("search", *files, "--outliers", status=2).err
    assert "--duplicates" in err
    other = tmp_path / "other.npz"
    backbone = random_backbone(SMALL, 32, 1)
    embed(backbone, f"folder:{tmp_path / 'test'}", other, num_workers=0)
    with one_line("different backbones"):
        shared(Features(files[0]), Features(other))


def test_query_image_outside_file(planted: Path, tmp_path: Path, says: Says) -> None:
    """Its features are made by the backbone that the file names, prepared as then."""
    weights = save_backbone(random_backbone(SMALL, 32, 0), tmp_path / "net.safetensors")
    out = tmp_path / "x.npz"
    embed(weights, f"folder:{planted}", out, num_workers=0, size=48, crop=1.0)
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere/04.png"  # the name of another image of the file
    shutil.copy(planted / "13.png", other)
    found = json.loads(says(f"search {out} --like {other} --count 2 --json").out)
    assert found[0]["paths"] == ["13.png"]
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-5)
    found = json.loads(says(f"search {out} --like {planted / '04.png'} --json").out)
    assert ["04.png"] not in [one["paths"] for one in found]
    weights.rename(tmp_path / "moved.safetensors")
    err = says(f"search {out} --like {other}", status=2).err
    assert "--backbone names another place" in err
    moved = ["--backbone", tmp_path / "moved.safetensors"]
    assert "1.000  13.png" in says(f"search {out} --like {other}", *moved).out
    save_backbone(random_backbone(SMALL, 32, 1), weights)
    assert "not the weights that made" in says(f"search {out} --like {other}", status=2).err
    err = says(f"search {out} --like {tmp_path / 'moved.safetensors'}", *moved, status=2).err
    assert "give an image, or a path in" in err
    assert "no such file" in says(f"search {out} --like nowhere.png", status=2).err


def test_hostile_origin_code(
    planted: Path, tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that a file names is not run, also if a file of that name is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "python:hostile.py:net").touch()
    for name in (f"python:{tmp_path}/hostile.py:net", "python:hostile.py:net"):
        origin = np.array(json.dumps({"backbone": name}))
        file = given(tmp_path, np.eye(3, dtype=np.float32), origin=origin)
        err = says(f"search {file} --like {planted / '00.png'}", status=2).err
        assert "may run code; if you trust it, name it by --backbone" in err
        assert not (tmp_path / "ran").exists()
    file = given(tmp_path, np.eye(3, dtype=np.float32))
    err = says(f"search {file} --like {planted / '00.png'}", status=2).err
    assert "does not say which backbone made its features" in err


def test_search_command(file: Path, tmp_path: Path, says: Says) -> None:
    said = says(f"search {file} --duplicates --least 0.9").out
    assert "2 groups among 30 images at --least 0.9" in said
    assert "at --least 0.95" in says(f"search {file} --duplicates").out
    found = json.loads(says(f"search {file} --outliers --count 3 --json").out)
    assert len(found) == 3
    assert set(found[0]) == {"paths", "similarity", "score", "reason", "nearest"}
    page = tmp_path / "outliers.html"
    says(f"search {file} --outliers --count 3 --html {page}")
    assert "<h1>The most unusual images</h1>" in page.read_text()
    assert f"{found[0]['similarity']:.3f} to the fifth nearest image" in page.read_text()
    err = says(f"search {file} --duplicates --least 2", status=2).err
    assert "--least" in err
    err = says(f"search {file} --duplicates --outliers", status=2).err
    assert "give one of --duplicates, --outliers and --like" in err
    (labels := tmp_path / "labels.csv").write_text("path,label")
    err = says(f"search {labels} --outliers", status=2).err
    assert "labels.csv: not an intact file of features" in err


# -- files of others ---------------------------------------------------------------------------------------------------


def bomb(path: Path) -> None:
    """Features of 512 MB of zeros in a .npz, compressed."""
    header = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (1 << 25, 4)}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("features.npy", "w", force_zip64=True) as file:
            file.write(header.getvalue())
            for _ in range(32):
                file.write(bytes(1 << 24))
        paths = io.BytesIO()
        np.save(paths, np.array(["a"]))
        archive.writestr("paths.npy", paths.getvalue())


#: Features of four images.
EYE = np.eye(4, dtype=np.float32)
#: Arrays of a file that is not quite one of features, and the name in the error.
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "objects": ({"paths": np.array(["a", 1, None, "d"], dtype=object)}, "'paths'"),
    "nan": ({"features": np.where(EYE == 1, np.nan, EYE)}, "features"),
    "fewer paths": ({"paths": np.array(["a", "b"])}, "paths"),
    "previews": (
        {"previews": np.zeros(4, np.uint8), "preview_ends": np.array([3, 2, 1, 4])},
        "'previews'",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_archives(kind: str, tmp_path: Path) -> None:
    """Other archives are refused in one line."""
    arrays, said = FOREIGN[kind]
    np.savez(tmp_path / "x.npz", **{"features": EYE, "paths": np.array([*"abcd"])} | arrays)
    with one_line(rf"x\.npz: .*{said}"):
        Features(tmp_path / "x.npz")


@pytest.mark.parametrize("kind", ["missing", "cut", "labels", "bomb"])
def test_damaged_archives(kind: str, tmp_path: Path) -> None:
    """Files that are no features are refused in one line."""
    path = tmp_path / "x.npz"
    if kind == "bomb":
        bomb(path)
    elif kind != "missing":
        np.savez(path, labels=np.arange(4), paths=np.array([*"abcd"]))
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    said = {"labels": "'features'", "bomb": "unpack"}.get(kind, "")
    with one_line(rf"x\.npz: .*{said}"):
        Features(path)


@pytest.mark.parametrize("lists", [pyarrow.list_, pyarrow.large_list])
def test_foreign_feature_tables(tmp_path: Path, lists: Callable[[Any], Any]) -> None:
    """Lists of doubles, without anything else."""
    rows = pyarrow.array(
        [
            [1.0, 0.0],
            [1.0, 0.01],
            [0.0, 1.0],
        ],
        lists(pyarrow.float64()),
    )
    table = {"features": rows, "paths": ["a", "b", "c"]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
    (group,) = Features(tmp_path / "x.parquet").duplicates()
    assert group.paths == ["a", "b"]


@pytest.mark.filterwarnings("error")
def test_half_precision_features(tmp_path: Path) -> None:
    """Features of 16 bits are searched like the same numbers in 32 bits."""
    generator = np.random.default_rng(0)
    halves = generator.normal(size=(8, 300)).astype(np.float16) * 100
    narrow = Features(given(tmp_path, halves))
    wide = Features(given(tmp_path, halves.astype(np.float32)))
    assert narrow.file.features.dtype == np.float32
    np.testing.assert_array_equal(narrow.directions, wide.directions)


def test_feature_file_bomb(tmp_path: Path) -> None:
    """Half a gigabyte in some kilobytes is refused before it is unpacked, in a process that has 1.5 GB."""
    path = tmp_path / "x.parquet"
    rows = pyarrow.array([[0.0] * 1000] * 1000)
    schema = pyarrow.schema({"features": rows.type, "paths": pyarrow.string()})
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(60):
            columns = {"features": rows, "paths": ["a"] * 1000}
            writer.write_table(pyarrow.table(columns, schema))
    assert path.stat().st_size < 6e6
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))\n"
        "from hexa.evaluation import feature_file; from hexa.config import UserError\n"
        f"try: feature_file.read({str(path)!r})\n"
        "except UserError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "unpack to" in said.stdout
