"""The data sets of `adapt_sets.py`, drawn with a seed from published images: OUT/NAME/{train,labelled,test}.

    python benchmarks/draw_sets.py OUT NAME=PATH … [--seed 0]

Each NAME=PATH is a set and its folder: cifar10 and omniglot (parquet files with the columns of shared data), objects
(a VOCdevkit/VOC2007, whose boxes are cut out of the photographs), groceries (the folder `dataset` of
marcusklasson/GroceryStoreDataset at fc80ba90), hands (`Dataset` of ardamavi/Sign-Language-Digits-Dataset at 4b09433e),
smiles (`SMILEs` of hromi/SMILEsmileD at 6afac66f), clothes (alexeygrigorev/clothing-dataset-small at 11961516) and
caltech (`101_ObjectCategories` of MachineLearning2020/Homework2-Caltech101 at 836044dd, without BACKGROUND_Google). The
images of train have no labels. Test images come from the published test split where there is one, `rest` has the
images of the pool that were not drawn. Objects of one
photograph, photographs of one visit and characters of one drawer may come into both train and labelled.
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet
from PIL import Image

Labelled = tuple[bytes, str]

#: How many images train, labelled and test have at most.
SIZES = {"hands": (1000, 500, 562), "omniglot": (2000, 1600, 1210)}
SMALLEST_OBJECT = 48  # pixels of its shorter side


def parquet(file: Path) -> Iterator[Labelled]:
    """The images and labels of a table."""
    table = pyarrow.parquet.read_table(file)
    image = "img" if "img" in table.column_names else "image"
    for picture, label in zip(table[image].to_pylist(), table["label"].to_pylist(), strict=True):
        yield picture["bytes"], f"{label:03}"


def folders(root: Path, depth: int = -2) -> Iterator[Labelled]:
    """The images of a folder, labelled by the folder they are in or by one above it."""
    for file in sorted(
        path for path in root.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    ):
        yield file.read_bytes(), file.parts[depth]


def objects(root: Path, listed: str) -> Iterator[Labelled]:
    """Objects of VOC, cut from their photographs."""
    for name in (root / "ImageSets/Main" / f"{listed}.txt").read_text().split():
        photograph = Image.open(root / "JPEGImages" / f"{name}.jpg")
        for one in ElementTree.parse(root / "Annotations" / f"{name}.xml").iter("object"):
            box = [
                int(float(one.findtext(f"bndbox/{side}", "0")))
                for side in ("xmin", "ymin", "xmax", "ymax")
            ]
            if min(box[2] - box[0], box[3] - box[1]) >= SMALLEST_OBJECT:
                written = io.BytesIO()
                photograph.crop(tuple(box)).save(written, "JPEG", quality=95)  # type: ignore[arg-type]
                yield written.getvalue(), one.findtext("name", "")


def halves(name: str, root: Path) -> tuple[list[Labelled], list[Labelled]]:
    """What train and labelled are drawn from, and what test is drawn from (empty: from the same)."""
    if name in ("cifar10", "omniglot"):
        return list(parquet(root / "train.parquet")), list(parquet(root / "test.parquet"))
    if name == "objects":
        return list(objects(root, "trainval")), list(objects(root, "test"))
    if name == "groceries":
        return [*folders(root / "train"), *folders(root / "val")], list(folders(root / "test"))
    if name == "clothes":
        return [*folders(root / "train"), *folders(root / "validation")], list(
            folders(root / "test")
        )
    if name == "smiles":  # SMILEs/positives/positives7/1.jpg
        return list(folders(root, -3)), []
    return list(folders(root)), []


def draw(name: str, root: Path, out: Path, seed: int) -> None:
    """One set, shuffled by the seed."""
    drawn = random.Random(seed)
    pool, published = halves(name, root)
    drawn.shuffle(pool)
    drawn.shuffle(published)
    train, labelled, test = SIZES.get(name, (2000, 1000, 1500))
    if not published:
        pool, published = pool[: -test or None], pool[-test:]
    train = min(train, int(0.65 * len(pool)))
    rest = {"rest": pool[train + labelled :]} if len(pool) > train + labelled else {}
    parts = {
        "train": pool[:train],
        "labelled": pool[train : train + labelled],
        "test": published[:test],
        **rest,
    }
    for part, images in parts.items():
        for index, (data, label) in enumerate(images):
            folder = out / name / part / ("" if part == "train" else label)
            folder.mkdir(parents=True, exist_ok=True)
            suffix = "png" if data.startswith(b"\x89PNG") else "jpg"
            (folder / f"{index:05}.{suffix}").write_bytes(data)
    print(
        name,
        {
            part: (len(images), len({label for _, label in images}))
            for part, images in parts.items()
        },
    )


def main() -> None:
    """Every set that was named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="+", metavar="NAME=PATH")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for one in asked.sets:
        name, _, path = one.partition("=")
        draw(name, Path(path), asked.out, asked.seed)


if __name__ == "__main__":
    main()
