"""Odd images, and files that are none: read or refused, alone and in a folder, by every path that images take."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from hexa import load_backbone, pretrain
from hexa.config import UserError
from hexa.data import open_source
from hexa.data.decode import DecodeError, decode
from hexa.data.evaluation_transform import EvaluationTransform
from hexa.data.loaders import PretrainLoader, evaluation_batches
from hexa.data.views import Views, ViewsConfig
from hexa.evaluation import evaluate
from hexa.evaluation.embed import embed
from hexa.reporting.visualize import visualize
from hexa.runtime.random import Stream
from tests.torture.harness import Tally, forked
from tests.torture.image_files import chunk, exif, palette, photograph, png, png_values, saved

SIDE = 24
SQUARE = (3, SIDE, SIDE)


def _zoo() -> dict[str, tuple[bytes, tuple[int, int, int] | None]]:
    """File name: (content, the shape it has once decoded; None for what must be refused)."""
    picture = photograph(SIDE, SIDE)
    grey, frames = picture.convert("L"), [picture.rotate(90), picture.rotate(180)]
    jpeg, plain = saved(picture, "JPEG"), saved(picture, "PNG")
    clear = picture.convert("RGBA")
    clear.putalpha(0)
    floats = np.asarray(grey, dtype=np.float32) / 255
    floats[3:5], floats[7], floats[9] = np.nan, np.inf, -np.inf
    indices = png_values(3, 8, SIDE, SIDE)
    colours = chunk(b"PLTE", palette(8).tobytes())
    word = chunk(b"tEXt", b"key\0word")
    good: dict[str, bytes] = {
        "adobe cmyk.jpg": saved(picture.convert("CMYK"), "JPEG"),
        "behind jpeg.jpg": jpeg + b"junk" * 100,
        "behind png.png": plain + b"junk" * 100,
        "bilevel.tif": saved(picture.convert("1"), "TIFF", compression="group4"),
        "bits 16 colour.png": png(png_values(2, 16, SIDE, SIDE), 2, 16),
        "bits 16 grey.png": png(png_values(0, 16, SIDE, SIDE), 0, 16),
        "called jpeg.jpg": plain,
        "called png.png": jpeg,
        "called tiff.tif": saved(picture, "WEBP"),
        "capital.PNG": plain,
        "checksum of a text.png": png(np.array(picture), 2, 8, before=word[:-1] + b"?"),
        "clear.png": saved(clear, "PNG"),
        "exif of garbage.jpg": saved(picture, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
        "exif of words.png": png(np.array(picture), 2, 8, before=chunk(b"eXIf", b"no EXIF at all")),
        "floats.tif": saved(Image.fromarray(np.nan_to_num(floats, posinf=1, neginf=0)), "TIFF"),
        "frames half.gif": saved(picture, "GIF", save_all=True, append_images=frames)[:-700],
        "frames.gif": saved(picture, "GIF", save_all=True, append_images=frames),
        "frames.png": saved(picture, "PNG", save_all=True, append_images=frames),
        "frames.tiff": saved(picture, "TIFF", save_all=True, append_images=frames),
        "frames.webp": saved(picture, "WEBP", save_all=True, append_images=frames),
        "grey and alpha.png": png(png_values(4, 8, SIDE, SIDE), 4, 8),
        "interlaced.png": png(np.array(picture), 2, 8, interlaced=True),
        "jpeg 2000.jp2": saved(picture, "JPEG2000"),
        "palette with holes.png": png(indices, 3, 8, before=colours + chunk(b"tRNS", bytes(range(0, 256, 2)))),
        "palette.bmp": saved(picture.convert("P"), "BMP"),
        "palette of two.png": png(indices, 3, 8, before=chunk(b"PLTE", bytes((9, 9, 9, 255, 0, 0)))),
        "progressive.jpeg": saved(grey, "JPEG", progressive=True),
        "words.ppm": b"P3\n24 24 255\n" + b"7 8 9 " * SIDE**2,
    }
    good |= {f"turned {turn}.jpg": saved(picture, "JPEG", exif=exif(turn)) for turn in range(10)}
    bad = {
        "floats of nothing.tif": saved(Image.fromarray(np.full((SIDE, SIDE), np.nan, np.float32)), "TIFF"),
        "checksum of the header.png": plain[:29] + b"????" + plain[33:],
        "empty.jpg": b"",
        "floats without bounds.tif": saved(Image.fromarray(floats), "TIFF"),
        "half.jpg": jpeg[: len(jpeg) // 2],
        "half.png": plain[: len(plain) // 2],
        "head alone.png": plain[:33],
        "head alone.jpg": jpeg[:20],
        "no end.jpg": jpeg[:-2],
        "no columns.png": png(png_values(0, 8, 1, 1), 0, 8)[:16] + bytes(8) + bytes(20),
        "page.jpg": b"<!doctype html><title>404 Not Found</title>",
        "program.jpg": saved(picture, "EPS"),
        "vectors.png": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "zeros.png": bytes(1000),
    }
    sizes = {
        "one pixel.png": (saved(photograph(1, 1), "PNG"), (3, 1, 1)),
        "one row.png": (saved(photograph(1, 3000), "PNG"), (3, 1, 3000)),
        "one column.jpg": (saved(photograph(3000, 1), "JPEG"), (3, 3000, 1)),
        "large.jpg": (saved(photograph(900, 1300), "JPEG", quality=99, subsampling=0), (3, 900, 1300)),
    }
    return (
        {name: (data, SQUARE) for name, data in good.items()}
        | {name: (data, None) for name, data in bad.items()}
        | sizes
    )


ZOO = _zoo()


@pytest.mark.parametrize("name", ZOO)
def test_an_odd_image_is_read_or_refused(name: str, tally: Tally) -> None:
    data, shape = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = forked(lambda: tuple(decode(data).shape))
    if shape is None:
        survived = isinstance(found.raised, DecodeError) and "\n" not in str(found.raised)
    else:
        survived = found.value == shape
    tally.input("odd images", survived)
    assert survived, found


def _folder(root: Path, names: list[str]) -> str:
    """The files in two classes."""
    for number, name in enumerate(names):
        path = root / ("even", "odd")[number % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ZOO[name][0])
    return f"folder:{root}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("resident", [True, False], ids=["in memory", "by workers"])
def test_a_folder_of_odd_images_goes_all_the_way(resident: bool, tmp_path: Path, tally: Tally) -> None:
    names = [name for name, (_, shape) in ZOO.items() if not resident or shape in (SQUARE, None)]
    source = open_source(_folder(tmp_path, names))
    unread = {path for path in source.paths if ZOO[path.partition("/")[2]][1] is None}
    views = Views(ViewsConfig(size=16))
    loader = PretrainLoader(source, views, len(source), Stream(0), num_workers=1, tolerance=1.0)
    assert loader.resident == resident
    for batch in loader.epoch(0):
        assert all(crop.shape == (len(source), 3, 16, 16) and crop.isfinite().all() for crop in batch.crops)
        assert not unread & {source.paths[position] for position in batch.index.tolist()}
    loader.close()
    assert {line.partition(": ")[0] for line in loader.problems} == unread
    problems: dict[int, str] = {}
    shown = evaluation_batches(source, EvaluationTransform(16), 8, num_workers=1, problems=problems, tolerance=1.0)
    positions = torch.cat([index for _, _, index in shown])
    assert {source.paths[position] for position in problems} == unread
    assert sorted([*positions.tolist(), *problems]) == list(range(len(source)))
    for _ in source.paths:
        tally.input("odd images in folders", True)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pngs_with_flipped_bytes_in_a_parquet_file(num_workers: int, tmp_path: Path, tally: Tally) -> None:
    """Each of these used to end the process."""
    generator, files = random.Random(0), [saved(photograph(8, 8), "PNG")]
    for number in range(100):
        data = bytearray(saved(photograph(64, 64).rotate(number), "PNG"))
        for _ in range(20):
            data[generator.randrange(60, len(data) - 20)] = generator.randrange(256)
        files.append(bytes(data))
    images = [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(files)]
    pyarrow.parquet.write_table(pyarrow.table({"image": images}), tmp_path / "train.parquet")
    source = open_source(f"parquet:{tmp_path}")

    def work() -> list[int]:
        problems: dict[int, str] = {}
        shown = list(
            evaluation_batches(
                source, EvaluationTransform(16), 32, num_workers=num_workers, problems=problems, tolerance=1.0
            )
        )
        return [sum(len(index) for _, _, index in shown), len(problems)]

    found = forked(work)
    for _ in files:
        tally.input("damaged PNGs in Parquet files", found.value is not None and sum(found.value) == len(files))
    assert found.value is not None, found
    assert sum(found.value) == len(files)


@pytest.fixture
def one_large(tmp_path: Path) -> str:
    """Twenty small images of two classes and a large one."""
    for number in range(20):
        path = tmp_path / "images" / ("a", "b")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(saved(photograph(8, 8).rotate(number), "PNG"))
    (tmp_path / "images" / "a" / "large.png").write_bytes(saved(photograph(30, 40), "PNG"))
    return f"folder:{tmp_path / 'images'}"


_LARGE = r"a/large\.png: 40 × 30 pixels, more than the limit of 1,000"


def test_the_limit_on_pixels_holds_in_training(one_large: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "batch_size": 10,
        "views.size": 8,
        "network.widths": [4, 8],
        "method.queue_size": 20,
        "training.max_image_pixels": 1000,
        "training.num_workers": 0,
        "training.report": False,
    }
    run = pretrain("digits-moco-v2", one_large, epochs=1, out=tmp_path / "run", **fields)
    assert "pixels, more than the limit of 1,000" in (run / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match=_LARGE):
        pretrain("digits-moco-v2", one_large, out=tmp_path / "no", **fields, **{"training.max_corrupt_share": 0.0})
    skipped: list[str] = []
    visualize(run, None, tmp_path / "a.png", num_images=20, problems=skipped)
    assert len(skipped) == 1
    assert "more than the limit" in skipped[0]


def test_the_limit_on_pixels_holds_in_evaluations(one_large: str, tmp_path: Path) -> None:
    backbone = load_backbone("random:small-resnet-4-8")
    options: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
    made = embed(backbone, one_large, tmp_path / "a.npz", max_image_pixels=1000, **options)
    assert made.num_images == 20
    assert "more than the limit of 1,000" in made.left_out[0]
    counted = {}
    for limit in (1000, None):  # the features that were kept for one limit do not serve another
        found = evaluate("knn", backbone, one_large, holdout=0.2, k=1, max_image_pixels=limit, seed=3, **options)
        counted[limit] = [note for note in found.get("notes", ()) if "could not be read" in note]
    assert len(counted[1000]) == 1
    assert not counted[None]
    with pytest.raises(UserError, match=r"max_image_pixels: must be an integer"):
        evaluate("knn", backbone, one_large, max_image_pixels="many")  # type: ignore[arg-type]
