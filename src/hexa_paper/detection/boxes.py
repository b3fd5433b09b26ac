"""PASCAL VOC's boxes, which each image has in an XML file in `Annotations`."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hexa.config import UserError, reason
from hexa.data.sources.decode import DecodeError, read as read_bytes
from hexa.data.sources.source import digest

#: Sides of a JPEG are shorter than this.
_LONGEST = 1 << 16
#: Bytes of an annotation file, at most; published ones have ten thousand.
_MOST_BYTES = 1 << 20


class Boxes(NamedTuple):
    """The objects of one image."""

    boxes: Tensor
    """float32 [n, 4]: x0, y0, x1, y1 in pixels from the upper left corner, so that x1 − x0 is the width."""
    labels: Tensor
    """int64 [n], indices into the source's class_names."""
    difficult: Tensor
    """bool [n]."""
    size: tuple[int, int]
    """(height, width) of the image in pixels."""


def read(file: Path, class_names: Sequence[str]) -> Boxes:
    """The objects of one annotation file. Raises UserError if it is missing, damaged, or names an unknown class.

    VOC counts pixels from 1 and its boxes include both borders, so the edges are xmin − 1, ymin − 1, xmax, ymax. Parts
    of objects (heads, hands, feet of persons) are not objects.
    """
    boxes = []
    labels = []
    difficult = []
    try:
        text = read_bytes(file, _MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES:,} bytes")
        root = ElementTree.fromstring(text)
        height, width = (int(root.findtext(f"size/{side}", "")) for side in ("height", "width"))
        if not (0 < height < _LONGEST and 0 < width < _LONGEST):
            raise ValueError(f"an image of {width} x {height} pixels")
        for thing in root.iterfind("object"):
            x0, y0, x1, y1 = (
                float(thing.findtext(f"bndbox/{edge}", ""))
                for edge in ("xmin", "ymin", "xmax", "ymax")
            )
            if not (x0 <= x1 and y0 <= y1):
                raise ValueError("a box ends before it begins")
            # a pixel of slack: some published annotations begin at 0
            if not (x0 >= 0 and y0 >= 0 and x1 <= width + 1 and y1 <= height + 1):
                raise ValueError("a box extends beyond the image")
            boxes.append((x0 - 1, y0 - 1, x1, y1))
            labels.append(class_names.index(thing.findtext("name", "").strip()))
            difficult.append(int(thing.findtext("difficult", "0")) != 0)
    except DecodeError as error:
        raise UserError(f"{file}: {error}") from None
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise UserError(f"{file}: not a valid VOC annotation ({reason(error)})") from None
    return Boxes(
        torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult, dtype=torch.bool),
        (height, width),
    )


def fingerprint_of_boxes(boxes: Sequence[Boxes]) -> str:
    """Changes with any box, label or difficulty, none of which are part of a source's own fingerprint."""
    parts = (part for one in boxes for part in (one.boxes, one.labels, one.difficult))
    return digest(*(part.numpy().tobytes() for part in parts))
