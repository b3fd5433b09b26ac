"""PASCAL VOC's boxes: one XML file an image in `Annotations`, and all those of a source at once."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import torch

from hexa.config import UserError, reason
from hexa.data import decode as decoding
from hexa.data.source import Boxes, Source, digest

#: The sides of JPEGs end here.
_LONGEST = 1 << 16


def read(file: Path, class_names: Sequence[str]) -> Boxes:
    """The objects of one annotation file. Raises UserError if it is missing, broken, or names another class.

    VOC counts pixels from 1 and its boxes include both borders, so xmin − 1, ymin − 1, xmax, ymax are the edges. Parts
    of objects (heads, hands, feet of persons) are not objects.
    """
    boxes, labels, difficult = [], [], []
    try:
        root = ElementTree.fromstring(decoding.read(file))
        height, width = (int(root.findtext(f"size/{side}", "")) for side in ("height", "width"))
        if not (0 < height < _LONGEST and 0 < width < _LONGEST):
            raise ValueError(f"an image of {width} x {height} pixels")
        for thing in root.iterfind("object"):
            x0, y0, x1, y1 = (float(thing.findtext(f"bndbox/{edge}", "")) for edge in ("xmin", "ymin", "xmax", "ymax"))
            if not (x0 <= x1 and y0 <= y1):
                raise ValueError("a box ends before it begins")
            # a pixel of slack: some published annotations begin at 0
            if not (x0 >= 0 and y0 >= 0 and x1 <= width + 1 and y1 <= height + 1):
                raise ValueError("a box reaches out of the image")
            boxes.append((x0 - 1, y0 - 1, x1, y1))
            labels.append(class_names.index(thing.findtext("name", "").strip()))
            difficult.append(int(thing.findtext("difficult", "0")) != 0)
    except decoding.DecodeError as error:
        raise UserError(f"{file}: {error}") from None
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise UserError(f"{file}: not an annotation of VOC ({reason(error)})") from None
    return Boxes(
        torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult, dtype=torch.bool),
        (height, width),
    )


def boxes_of(source: Source) -> list[Boxes]:
    """Those of every image. Raises UserError for a source that has none, and one that lists what cannot be read."""
    found, wrong = [], []
    for index in range(len(source)):
        try:
            boxes = source.boxes(index)
        except UserError as error:
            wrong.append(str(error))
            continue
        if boxes is None:
            raise UserError(f"data '{source.name}' does not say where objects are; detection needs voc:PATH/VOCdevkit")
        found.append(boxes)
    if wrong:
        some = "; ".join(wrong[:3]) + (" …" if wrong[3:] else "")
        raise UserError(
            f"{source!r}: {len(wrong)} images have no annotation that can be read: {some}; mend them, or take the "
            "images out of the lists in ImageSets/Main"
        )
    return found


def fingerprint_of_boxes(boxes: Sequence[Boxes]) -> str:
    """Changes with any box, label or difficulty: a source's own fingerprint is of its images."""
    parts = (part for one in boxes for part in (one.boxes, one.labels, one.difficult))
    return digest(*(part.numpy().tobytes() for part in parts))
