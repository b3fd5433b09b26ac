"""Planted duplicates and junk among photographs: what `hexa search` finds.

    python benchmarks/search.py WEIGHTS VOCDEVKIT [--size 128] [--out FILE.json]

Photographs: the first 886 of the split `test` of the subset of PASCAL VOC 2007. The rules were chosen on 450 others, of
its split `trainval`; that images are taken from the two orders in turn was decided after these photographs had been
scored once with another rule. Duplicates: 28 variants of each of three photographs, which are compared with all photographs one
variant at a time. Junk: 12 kinds on which the rule for outliers was chosen and 22 others, two draws of each, one image
at a time and a draw of all kinds together. Other rules, by cosines of features: the mean over the ten nearest images,
with and without removing the mean of the features.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from hexa.evaluation.alike import unit
from hexa.evaluation.embed import embed
from hexa.evaluation.feature_file import FeatureFile
from hexa.evaluation.search import Features
from hexa.runtime.files import write_text

PHOTOGRAPHS, DRAWS = 886, 2
SIZE = (400, 300)
WORDS = [
    "image",
    "folder",
    "data",
    "the",
    "of",
    "features",
    "and",
    "search",
    "network",
    "value",
    "12",
    "0.3",
    "error:",
    "in",
    "line",
]
Images = dict[str, Image.Image]


def picture(levels: Any) -> Image.Image:
    pixels = np.clip(levels, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGB")


def text(draw: np.random.Generator, paper: str, ink: str) -> Image.Image:
    image = Image.new("RGB", SIZE, paper)
    for y in range(8, SIZE[1] - 14, 14):
        words = " ".join(draw.choice(WORDS, int(draw.integers(6, 14))))
        ImageDraw.Draw(image).text((10, y), words, fill=ink)
    return image


def code(draw: np.random.Generator) -> Image.Image:
    cells = 255 * (draw.random((29, 29)) > 0.5)
    for y, x in ((0, 0), (0, 22), (22, 0)):
        cells[y : y + 7, x : x + 7] = 0
        cells[y + 1 : y + 6, x + 1 : x + 6] = 255
        cells[y + 2 : y + 5, x + 2 : x + 5] = 0
    return picture(np.kron(np.pad(cells, 4, constant_values=255), np.ones((10, 10))))


def shapes(draw: np.random.Generator, filled: bool) -> Image.Image:
    image = Image.new("RGB", SIZE, "#f0ebdc" if filled else "white")
    pen = ImageDraw.Draw(image)
    for _ in range(30):
        points = [(int(draw.integers(SIZE[0])), int(draw.integers(SIZE[1]))) for _ in range(3)]
        if filled:
            pen.polygon(points, tuple(map(int, draw.integers(120, 255, 3))), "grey")
        else:
            pen.line(points[:2], "black", 2)
    return image


def chart(draw: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(image)
    pen.line((40, 10, 40, 260, 390, 260), "black")
    heights = 130 + 60 * np.sin(np.arange(35) / 4) + 15 * draw.normal(size=35)
    pen.line([(40 + 10 * x, int(y)) for x, y in enumerate(heights)], (30, 100, 200), 3)
    pen.text((150, 275), "epochs", "black")
    return image


def compressed(image: Image.Image, quality: int, kind: str = "JPEG") -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, quality=quality)
    return Image.open(file).convert("RGB")


def cropped(image: Image.Image, share: float, at: float = 0.5) -> Image.Image:
    width, height = image.size
    left, top = round(width * share * at), round(height * share * at)
    return image.crop(
        (left, top, left + round(width * (1 - share)), top + round(height * (1 - share)))
    )


def chosen_junk(photographs: list[Image.Image], draw: np.random.Generator) -> Images:
    """The kinds on which the rule was chosen."""
    tiny, cut, soft, inverted, turned = (
        photographs[one] for one in draw.integers(len(photographs), size=5)
    )
    half = np.array(cut)
    half[len(half) // 2 :] = 128
    return {
        "thumbnail of 8 px": tiny.resize((8, 8)).resize(SIZE),
        "black": Image.new("RGB", SIZE),
        "white": Image.new("RGB", SIZE, "white"),
        "half grey": picture(half),
        "noise": picture(draw.integers(0, 256, (*SIZE, 3))),
        "line drawing": shapes(draw, filled=False),
        "text": text(draw, "white", "black"),
        "gradient": picture(np.linspace(0, 255, SIZE[0])[None].repeat(SIZE[1], 0)),
        "square code": code(draw),
        "blurred": soft.filter(ImageFilter.GaussianBlur(25)),
        "inverted": ImageOps.invert(inverted),
        "upside down": turned.transpose(Image.Transpose.ROTATE_180),
    }


def other_junk(photographs: list[Image.Image], draw: np.random.Generator) -> Images:
    """Kinds on which nothing was chosen."""
    some = [photographs[one] for one in draw.integers(len(photographs), size=10)]
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    peppered, covered = np.array(some[0]), np.array(some[1])
    where = draw.random(peppered.shape[:2])
    peppered[where < 0.25], peppered[where > 0.75] = 0, 255
    covered[:, : covered.shape[1] // 2] = 0
    mosaic = Image.new("RGB", SIZE)
    for place, one in enumerate(draw.integers(len(photographs), size=48)):
        mosaic.paste(photographs[one].resize((50, 50)), (50 * (place % 8), 50 * (place // 8)))
    bars = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)]) * 255
    return {
        "checkerboard": picture((y // 25 + x // 25) % 2 * 255),
        "green": Image.new("RGB", SIZE, (0, 160, 40)),
        "grey": Image.new("RGB", SIZE, (128, 128, 128)),
        "salt and pepper": picture(peppered),
        "smooth noise": picture(draw.integers(0, 256, (6, 8, 3))).resize(
            SIZE, Image.Resampling.BICUBIC
        ),
        "chart": chart(draw),
        "terminal": text(draw, "#14141e", "#c8dcc8"),
        "barcode": picture(np.repeat((draw.random(100) > 0.5) * 255, 4)[None].repeat(300, 0)),
        "mosaic": mosaic,
        "sine": picture(127 + 127 * np.sin(x / 6 + y / 9)),
        "circles": picture(127 + 127 * np.sin(np.hypot(y - 150, x - 200) / 6)),
        "pixelated": some[2].resize((16, 16)).resize(SIZE, Image.Resampling.NEAREST),
        "dark": picture(np.array(some[3]) * 0.04),
        "overexposed": picture(np.array(some[4]) * 0.1 + 235),
        "JPEG of quality 1": compressed(some[5], 1),
        "colour bars": picture(np.repeat(bars, 50, 0)[None].repeat(300, 0)),
        "negative": ImageOps.invert(some[6].convert("L")).convert("RGB"),
        "map": shapes(draw, filled=True),
        "edges": some[7].filter(ImageFilter.FIND_EDGES),
        "posterized": ImageOps.posterize(some[8], 1),
        "on its side": some[9].transpose(Image.Transpose.ROTATE_90),
        "half black": picture(covered),
    }


def variants(image: Image.Image) -> Images:
    width, height = image.size
    captioned = image.copy()
    ImageDraw.Draw(captioned).text((10, height - 25), "(c) photographer 2021", fill="white")
    levels = np.array(image, dtype=float)
    noise = np.random.default_rng(0).normal(size=levels.shape)
    return {
        "exact": image,
        "JPEG of quality 75": compressed(image, 75),
        "JPEG of quality 30": compressed(image, 30),
        "JPEG of quality 10": compressed(image, 10),
        "WebP of quality 50": compressed(image, 50, "WEBP"),
        "half the size": image.resize((width // 2, height // 2), Image.Resampling.BICUBIC),
        "a quarter of the size": image.resize((width // 4, height // 4), Image.Resampling.BICUBIC),
        "brighter": ImageEnhance.Brightness(image).enhance(1.3),
        "darker": ImageEnhance.Brightness(image).enhance(0.7),
        "more contrast": ImageEnhance.Contrast(image).enhance(1.4),
        "gamma 0.7": picture(255 * (levels / 255) ** 0.7),
        "grey": image.convert("L").convert("RGB"),
        "saturated": ImageEnhance.Color(image).enhance(1.8),
        "warmer": picture(levels * [1.15, 1, 0.85]),
        "mirrored": ImageOps.mirror(image),
        "cropped by 5 %": cropped(image, 0.05),
        "cropped by 12 %": cropped(image, 0.12),
        "cropped by 12 %, corner": cropped(image, 0.12, 0),
        "cropped by 20 %": cropped(image, 0.2),
        "mirrored, cropped by 5 %": ImageOps.mirror(cropped(image, 0.05)),
        "sides cropped by 10 %": image.crop((round(0.05 * width), 0, round(0.95 * width), height)),
        "squashed by 12 %": image.resize((width, round(0.88 * height))),
        "white border of 3 %": ImageOps.expand(image, round(0.03 * width), "white"),
        "caption": captioned,
        "blurred by 2 px": image.filter(ImageFilter.GaussianBlur(2)),
        "noise of 10 levels": picture(levels + 10 * noise),
        "turned by 3 degrees": image.rotate(3, resample=Image.Resampling.BICUBIC),
        "upside down": image.transpose(Image.Transpose.ROTATE_180),
    }


def part(file: FeatureFile, places: list[int]) -> FeatureFile:
    """The file with these images alone."""
    arrays = {name: getattr(file, name)[places] for name in ("thumbnails", "statistics")}
    paths = [file.paths[place] for place in places]
    return replace(
        file,
        features=file.features[places],
        paths=paths,
        previews=None,
        preview_ends=None,
        **arrays,
    )


def by_cosines(features: Any, centred: bool) -> Any:
    rows = unit(features - features.mean(0) if centred else features)
    product = rows @ rows.T
    np.fill_diagonal(product, -1)
    return -np.sort(product, axis=1)[:, -10:].mean(1)


def ranks(file: FeatureFile, junk: list[str]) -> dict[str, list[int]]:
    """Of each rule the places of these images in the order of outliers, from 1 on."""
    order = [one.paths[0] for one in Features(file).outliers(len(file.paths))]
    found = {"hexa search": [1 + order.index(path) for path in junk]}
    for name, centred in (("cosines", False), ("cosines without the mean", True)):
        scores = by_cosines(file.features, centred)
        rows = [file.paths.index(path) for path in junk]
        found[name] = [1 + int((scores > scores[row]).sum()) for row in rows]
    return found


def summary(
    alone: dict[str, dict[str, float]], together: list[dict[str, list[int]]]
) -> dict[str, Any]:
    """Of each rule: the geometric mean of median ranks, kinds among the first 1, 5 and 20, and of all in the first 20."""
    rows = {}
    for rule in together[0]:
        medians = np.array([kind[rule] for kind in alone.values()])
        rows[rule] = {
            "geometric mean rank": round(float(np.exp(np.log(medians).mean())), 2),
            **{f"first {n}": int((medians <= n).sum()) for n in (1, 5, 20)},
            "together in the first 20": float(
                np.mean([np.sum(np.array(one[rule]) <= 20) for one in together])
            ),
            "kinds": len(medians),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("weights")
    parser.add_argument("voc")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--out", default="search.json")
    given = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True
    )
    voc = Path(given.voc) / "VOC2007"
    names = (voc / "ImageSets/Main/test.txt").read_text().split()[:PHOTOGRAPHS]
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "images"
        folder.mkdir()
        for name in names:
            shutil.copy(voc / f"JPEGImages/{name}.jpg", folder)
        photographs = [Image.open(folder / f"{name}.jpg").convert("RGB") for name in names[:200]]
        draw = np.random.default_rng(0)
        kinds: dict[str, list[str]] = {"chosen on": [], "others": []}
        for number in range(DRAWS):
            for group, makes in (("chosen on", chosen_junk), ("others", other_junk)):
                made = makes(photographs, draw)
                kinds[group] = list(made)
                for kind, image in made.items():
                    image.save(folder / f"{kind} {number}.png")
        originals = [int(one) for one in draw.choice(len(photographs), 3, replace=False)]
        for original in originals:
            for kind, image in variants(photographs[original]).items():
                image.save(folder / f"{kind} of {names[original]}.png")
        out = Path(home) / "x.npz"
        embed(given.weights, f"folder:{folder}", out, size=given.size)
        every = Features(out).file
    place = {path: row for row, path in enumerate(every.paths)}
    known = [place[f"{name}.jpg"] for name in names]
    begun = time.process_time()
    false = len(Features(part(every, known)).duplicates())
    seconds = time.process_time() - begun
    duplicates: dict[str, int] = {}
    for original in originals:
        for kind in variants(photographs[original]):
            path = f"{kind} of {names[original]}.png"
            found = Features(part(every, [*known, place[path]])).duplicates()
            wanted = sorted([path, f"{names[original]}.jpg"])
            duplicates[kind] = duplicates.get(kind, 0) + (
                wanted in [sorted(one.paths) for one in found]
            )
    outliers: dict[str, Any] = {}
    for group, members in kinds.items():
        alone: dict[str, dict[str, float]] = {}
        for kind in members:
            paths = [f"{kind} {number}.png" for number in range(DRAWS)]
            found_ranks = [ranks(part(every, [*known, place[path]]), [path]) for path in paths]
            alone[kind] = {
                rule: float(np.median([one[rule][0] for one in found_ranks]))
                for rule in found_ranks[0]
            }
        together = []
        for number in range(DRAWS):
            paths = [f"{kind} {number}.png" for kind in members]
            together.append(ranks(part(every, [*known, *(place[path] for path in paths)]), paths))
        outliers[group] = {"rules": summary(alone, together), "alone": alone}
    result = {
        "commit": commit.stdout.strip(),
        "weights": Path(given.weights).name,
        "size": given.size,
        "photographs": len(names),
        "groups among the photographs": false,
        "core seconds of that search": round(seconds, 2),
        "variants found, of 3": duplicates,
        "outliers": outliers,
    }
    write_text(Path(given.out), json.dumps(result, indent=1) + "\n")
    print(
        json.dumps({name: value for name, value in result.items() if name != "outliers"}, indent=1)
    )
    for group, found_rules in outliers.items():
        print(group, json.dumps(found_rules["rules"], indent=1))


if __name__ == "__main__":
    main()
