"""The grid of hard examples: view | perturbation | adversarial | cut-mixed …, one row per image (REFERENCE §8.7).

Columns follow from the objective: a hard example that reports a perturbation gets a column of it, magnified around
mid-grey, with its mean |δ| in grey levels; one that mixes pseudo-labels says in what shares. Below each view is its
loss, which is what makes it hard. The PNG carries its layout as text, so that a report can cut the pictures out again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor, nn
from torch.nn import functional

from hexa.config import reason
from hexa.core import STD, Batch, Example, Objective
from hexa.runtime.files import write_whole
from hexa.runtime.output import one_line

MID_GREY = 128
_LAYOUT = "hexa-gallery"
_MOST_PIXELS = 64 * 1024**2
_TILE = 128
"""Pictures are magnified to about this many pixels, by a whole factor."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Column:
    """tiles: uint8 [N, S, S, 3]; captions: a text below each tile, perhaps empty."""

    title: str
    tiles: Pixels
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Gallery:
    """The pictures of a grid, to be written as one PNG or shown one by one."""

    columns: tuple[Column, ...]

    @property
    def num_images(self) -> int:
        return len(self.columns[0].tiles)

    def draw(self) -> Image.Image:
        """The grid as one picture, on white."""
        return _draw(self)[0]

    def save(self, path: Path) -> Path:
        """Write the grid as PNG, atomically, with its layout inside."""
        image, layout = _draw(self)
        info = PngInfo()
        info.add_text(_LAYOUT, json.dumps(layout))
        return write_whole(path, lambda file: image.save(file, format="png", pnginfo=info, optimize=True))

    @classmethod
    def load(cls, path: Path) -> Gallery:
        """The pictures of a file that `save` wrote. Raises OSError, and ValueError for any other file."""
        try:
            with Image.open(path, formats=["PNG"]) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"{path}: too large for a gallery ({image.width} × {image.height} pixels)")
                image.load()
                layout = getattr(image, "text", {}).get(_LAYOUT)
                if layout is not None:
                    return _cut(np.asarray(image.convert("RGB")), json.loads(layout))
        except (SyntaxError, RecursionError, Image.DecompressionBombError) as error:  # Pillow's, of a damaged PNG
            raise ValueError(f"{path}: not a PNG that can be read ({reason(error)})") from None
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path}: the layout of its pictures is damaged ({reason(error)})") from None
        raise ValueError(f"{path}: a picture, but not a gallery written by hexa")


@torch.no_grad()
def gallery(objective: Objective, batch: Batch, num_images: int = 8, gain: float | None = None) -> Gallery:
    """The clean view and every hard example of the first `num_images` of a batch, made with the objective's method.

    Everything is made from the whole batch, as in training: batch-norm and cut-mix see all of its images. Of a method
    with several anchors the first is shown. gain: by how much perturbations are magnified around mid-grey; by default
    the power of two that uses the grey scale best. The method's parameters, statistics and memory are left as they are.
    """
    with unchanged(objective.method):
        examples = objective.examples(batch)
        losses = {name: _losses(example)[:num_images] for name, example in examples.items()}
    shown = {name: example.select(slice(0, num_images)) for name, example in examples.items()}
    columns = [_column("view", shown[STD], losses[STD])]
    if not objective.hard_examples:
        size = batch.crops[0].shape[-2:]  # small crops are shown as large as the others
        others = (functional.interpolate(crop[:num_images], size) for crop in batch.crops[1:])
        columns += [_plain(f"view {number}", crop) for number, crop in enumerate(others, start=2)]
    for name, hard_example in objective.hard_examples.items():
        example, source = shown[name], hard_example.source
        # where images were mixed on the way, the difference is not what was added to a view
        if "perturbation" in example.facts and len(example.mixture) == len(shown[source].mixture):
            columns.append(_perturbation(example.crops[0] - shown[source].crops[0], gain))
        columns.append(_column(name if source == STD else f"{name} of {source}", example, losses[name]))
    return Gallery(tuple(columns))


@contextmanager
def unchanged(method: nn.Module) -> Iterator[None]:
    """Buffers as before on the way out: encoding pseudo-labels is a pass that moves running statistics."""
    before = [(buffer, buffer.clone()) for buffer in method.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _losses(example: Example) -> list[float]:
    """The loss of the first anchor of each image, through the batch-norms that it is trained through."""
    branch = replace(example.branch, update=False)
    losses: list[float] = example.score(replace(example, branch=branch))[0].tolist()
    return losses


def magnify(perturbation: Tensor, gain: float) -> Pixels:
    """128 + gain·255·δ, clipped, for δ in units of the pixel range [0, 1]; [N, C, S, S] -> uint8 [N, S, S, 3]."""
    grey = MID_GREY + gain * 255 * perturbation.double()
    return as_pixels(grey)


def automatic_gain(perturbation: Tensor) -> float:
    """The largest power of two by which no pixel leaves the grey scale; 1 for no perturbation at all."""
    largest = 255 * perturbation.abs().max().item()
    return 2.0 ** math.floor(math.log2((MID_GREY - 1) / largest) + 1e-6) if largest > 1e-6 else 1.0


def _perturbation(delta: Tensor, gain: float | None) -> Column:
    gain = automatic_gain(delta) if gain is None else gain
    moved = 255 * delta.abs().flatten(1).double()
    captions = tuple(f"|δ| {mean:.2f}" for mean in moved.mean(1).tolist())
    return Column(f"perturbation × {gain:g}", magnify(delta, gain), captions)


def _plain(title: str, images: Tensor) -> Column:
    tiles = as_pixels(255 * images.double())
    return Column(title, tiles, ("",) * len(tiles))


def _column(title: str, example: Example, losses: list[float]) -> Column:
    # exactly 0: its own pseudo-label is missing, such as the cluster of an image that the last epoch left out
    captions = [f"loss {loss:.2f}" if loss else "no pseudo-label" for loss in losses]
    if len(example.mixture) > 1:
        weights = torch.stack([weight[0] for _, weight in example.mixture], 1).tolist()  # [N, pseudo-labels]
        shares = ("λ " + " + ".join(f"{share:.2f}" for share in row[:-1]) for row in weights)
        captions = [f"{share} · {caption}" for share, caption in zip(shares, captions, strict=True)]
    return replace(_plain(title, example.crops[0]), captions=tuple(captions))


def as_pixels(images: Tensor) -> Pixels:
    """Values from 0 to 255, [N, C, S, S], as uint8 [N, S, S, 3]: the first three channels, or the first as grey."""
    shown = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    levels = shown.round().clamp(0, 255) if shown.is_floating_point() else shown
    pixels: Pixels = levels.to("cpu", torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return pixels


# -- the picture ----------------------------------------------------------------------------------------------------


def _draw(grid: Gallery) -> tuple[Image.Image, dict[str, Any]]:
    """The picture, and where in it the tiles are."""
    grid = Gallery(tuple(_printable(column) for column in grid.columns))
    size = grid.columns[0].tiles.shape[1]
    scale = max(1, round(_TILE / size))
    side, gap, margin = size * scale, 14, 16
    title_font, caption_font = _font(15), _font(12)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    widths = [
        math.ceil(
            max(
                side,
                measure.textlength(column.title, title_font),
                *(measure.textlength(caption, caption_font) for caption in column.captions),
            )
        )
        for column in grid.columns
    ]
    captioned = any(any(column.captions) for column in grid.columns)
    top, pitch = margin + 26, side + gap + (18 if captioned else 0)
    width = 2 * margin + sum(widths) + gap * (len(widths) - 1)
    image = Image.new("RGB", (width, top + grid.num_images * pitch - gap + margin), "white")
    pen = ImageDraw.Draw(image)
    left, boxes = margin, []
    for column, column_width in zip(grid.columns, widths, strict=True):
        pen.text((left + column_width / 2, margin), column.title, "#1b1f24", title_font, anchor="ma")
        x = left + (column_width - side) // 2
        boxes.append(x)
        for row, (tile, caption) in enumerate(zip(column.tiles, column.captions, strict=True)):
            y = top + row * pitch
            image.paste(Image.fromarray(np.ascontiguousarray(tile.repeat(scale, 0).repeat(scale, 1))), (x, y))
            pen.text((left + column_width / 2, y + side + 4), caption, "#5d6875", caption_font, anchor="ma")
        left += column_width + gap
    layout = {
        "size": size,
        "scale": scale,
        "left": boxes,
        "top": [top + row * pitch for row in range(grid.num_images)],
        "titles": [column.title for column in grid.columns],
        "captions": [list(column.captions) for column in grid.columns],
    }
    return image, layout


def _printable(column: Column) -> Column:
    """Names of classes and hard examples may hold anything."""
    return replace(column, title=one_line(column.title), captions=tuple(map(one_line, column.captions)))


def _cut(picture: Pixels, layout: dict[str, Any]) -> Gallery:
    """The tiles again. Raises ValueError, or whatever a layout leads to that isn't one of `_draw`'s."""
    size, scale, tops = int(layout["size"]), int(layout["scale"]), [int(top) for top in layout["top"]]
    columns = []
    for left, title, captions in zip(map(int, layout["left"]), layout["titles"], layout["captions"], strict=True):
        tiles = [picture[top : top + size * scale : scale, left : left + size * scale : scale] for top in tops]
        if any(tile.shape != (size, size, 3) for tile in tiles) or len(captions) != len(tiles):
            raise ValueError("the layout does not fit the picture")
        columns.append(Column(str(title), np.stack(tiles), tuple(map(str, captions))))
    # tiles lie beside each other, so that together they have no more pixels than the picture
    if (
        size < 1
        or not columns
        or not tops
        or len(columns) * len(tops) * (size * scale) ** 2 > picture.shape[0] * picture.shape[1]
    ):
        raise ValueError("the layout does not fit the picture")
    return Gallery(tuple(columns))


def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which has δ, λ and ×, from matplotlib: no system promises a font."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)
