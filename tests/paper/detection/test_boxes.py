"""VOC's boxes: pixels counted from 1, entries that are not objects, and one-line errors for invalid
files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexa.config import UserError
from hexa.data import open_source
from hexa_paper.detection.boxes import fingerprint_of_boxes, read
from hexa_paper.detection.images import boxes_of
from tests.data.sources.test_voc import kit
from tests.refusals import one_line

ANNOTATION = """<annotation><size><width>12</width><height>8</height><depth>3</depth></size>
<object><name>dog</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>12</xmax><ymax>8</ymax></bndbox>
</object><object><name>cat</name><bndbox><ymax>5</ymax><xmax>3.0</xmax><ymin>5</ymin><xmin>3</xmin></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
</annotation>"""


def annotated(folder: Path) -> Path:
    """The kit of test_voc, the same boxes for each of its images."""
    root = kit(folder)
    boxes = root / "VOC2007" / "Annotations"
    boxes.mkdir()
    for image in (root / "VOC2007" / "JPEGImages").iterdir():
        (boxes / f"{image.stem}.xml").write_text(ANNOTATION)
    return root


def test_voc_box_fields(tmp_path: Path) -> None:
    found = boxes_of(open_source(f"voc:{annotated(tmp_path)}"))[0]
    # the first covers the whole image of 12 × 8 but its first row, the second one pixel
    assert found.boxes.tolist() == [[0, 1, 12, 8], [2, 4, 3, 5]]
    assert found.labels.tolist() == [1, 0]
    assert found.difficult.tolist() == [True, False]
    assert found.size == (8, 12)


def test_box_fingerprint(tmp_path: Path) -> None:
    """The fingerprint of boxes changes with a box."""
    source = open_source(f"voc:{annotated(tmp_path)}")
    before = fingerprint_of_boxes(boxes_of(source))
    assert before == fingerprint_of_boxes(boxes_of(source))
    file = next(
        iter(sorted((tmp_path / "VOCdevkit" / "VOC2007" / "Annotations").glob("trainval*")))
    )
    file.write_text(ANNOTATION.replace("<xmax>12<", "<xmax>11<"))
    assert before != fingerprint_of_boxes(boxes_of(source))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation>", "annotation"),
        (ANNOTATION.replace("dog", "wolf"), "wolf"),
        (ANNOTATION.replace("<xmax>12<", "<xmax>500<"), "extends beyond the image"),
        (ANNOTATION.replace("<xmin>3</xmin>", "<xmin>4</xmin>"), "ends before it begins"),
        (ANNOTATION.replace("<width>12</width>", ""), "annotation"),
    ],
)
def test_damaged_annotations(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with one_line(said) as caught:
        read(tmp_path / "a.xml", ["cat", "dog"])
    assert "a.xml" in str(caught.value)


def test_missing_annotations(tmp_path: Path) -> None:
    """Missing files are listed."""
    root = annotated(tmp_path)
    for number in (0, 2):
        (root / "VOC2007" / "Annotations" / f"trainval{number}.xml").unlink()
    with one_line(r"2 annotations cannot be read.*trainval0\.xml.*trainval2\.xml"):
        boxes_of(open_source(f"voc:{root}"))
    with pytest.raises(UserError, match="voc:PATH"):
        boxes_of(open_source("digits"))
