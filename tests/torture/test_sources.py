"""Folders of images, VOC trees and sets of torchvision as accidents and strangers make them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.data.image_files import bitmap
from tests.data.sources.test_torchvision_sets import pets
from tests.paper.detection.test_boxes import ANNOTATION, annotated
from tests.torture.harness import Tally, outcome

#: What is tried: (its name, what makes it in a folder and returns the name of the source, what a look at it says).
Case = tuple[str, Callable[[Path], object], str]


def _two(root: Path) -> None:
    for number, name in enumerate("ab"):
        (root / name).mkdir()
        (root / name / f"{number}.bmp").write_bytes(bitmap(number))


def _not_files(root: Path) -> None:
    """Special files called like images, links to them, and links that lead in circles."""
    os.mkfifo(root / "a" / "x.jpg")
    (root / "a" / "y.jpg").symlink_to("x.jpg")
    (root / "b" / "x.bmp").symlink_to("/dev/zero")
    (root / "loop").symlink_to("loop")
    (root / "a" / "up").symlink_to(root)
    here = Path.cwd()
    os.chdir(root / "a")  # the names of sockets are short
    socket.socket(socket.AF_UNIX).bind("x.png")
    os.chdir(here)


def _not_images(root: Path) -> None:
    (root / "a" / "x.jpg").symlink_to("nowhere")
    (root / "a" / "y.jpg").symlink_to("y.jpg")
    (root / "b" / "x.bmp").touch()
    (root / "b" / "y.tif").write_text("not an image")
    with (root / "a" / "z.bmp").open("wb") as file:
        file.truncate(100 << 30)  # it has holes and takes no room


def _odd_names(root: Path) -> None:
    folder = os.path.join(os.fsencode(root), b"\xff")
    os.mkdir(folder)
    for name in (b"\xe9.bmp", b"line\nbreak.bmp"):
        Path(os.fsdecode(os.path.join(folder, name))).write_bytes(bitmap())


def _folder(change: Callable[[Path], None], root: Path) -> str:
    _two(root)
    change(root)
    return f"folder:{root}"


def _voc(change: Callable[[Path], object], root: Path) -> str:
    kit = annotated(root)
    change(kit / "VOC2007")
    return f"voc:{kit}"


def pipe(name: str, root: Path) -> None:
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)


def _boxes(text: str) -> Callable[[Path], str]:
    return partial(_voc, lambda root: (root / "Annotations" / "trainval1.xml").write_text(text))


def _no_lists(root: Path) -> None:
    for file in (root / "ImageSets" / "Main").glob("*_*.txt"):
        file.unlink()


def _set(
    make: Callable[[Path], object], name: str, file: str, content: bytes
) -> Callable[[Path], str]:
    """A set of torchvision, one of whose lists is another."""

    def made(root: Path) -> str:
        make(root)
        (root / file).write_bytes(content)
        return f"{name}:{root}"

    return made


_LAUGHS = "".join(f'<!ENTITY n{k} "{f"&n{k - 1};" * 10}">' for k in range(1, 12))
_DTD = "<!DOCTYPE x [{}]><annotation><size>{}</size></annotation>"
_NOT_VALID = "boxes refused: .*not a valid VOC annotation"
FOLDERS: list[Case] = [
    (
        "not files",
        partial(_folder, _not_files),
        r"^2 images, 0 unreadable, labels \[0, 1\] of \['a', 'b'\]$",
    ),
    ("not images", partial(_folder, _not_images), "^7 images, 5 unreadable"),
    (
        "names that are not text",
        partial(_folder, _odd_names),
        r"^4 images, 0 .* of \['a', 'b', '\\udcff'\]",
    ),
    (
        "a name that is too long",
        lambda root: f"folder:{root}/{'x' * 5000}",
        "^refused: .*File name too long",
    ),
    (
        "a label of two billion",
        _set(
            pets,
            "pets",
            "oxford-iiit-pet/annotations/trainval.txt",
            b"Boxer_1 2000000001 1 1\nRagdoll_1 2 1 1\n",
        ),
        "^refused: .*the label 2000000000 .* is not a class number",
    ),
    (
        "boxes: a billion laughs",
        _boxes(_DTD.format(f'<!ENTITY n0 "laugh">{_LAUGHS}', "&n11;")),
        _NOT_VALID,
    ),
    ("boxes: elements in elements", _boxes("<a>" * 200_000 + "</a>" * 200_000), _NOT_VALID),
    (
        "boxes: an infinite number",
        _boxes(ANNOTATION.replace("<xmax>12<", "<xmax>1e400<")),
        "extends beyond the image",
    ),
    (
        "boxes: a pipe",
        partial(_voc, partial(pipe, "Annotations/trainval0.xml")),
        "boxes refused: .*regular file",
    ),
    (
        "VOC: an image is a pipe",
        partial(_voc, partial(pipe, "JPEGImages/trainval0.jpg")),
        "1 listed images",
    ),
    ("VOC: no lists", partial(_voc, _no_lists), "^refused: .*has no split"),
]


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("make", "said"), [pytest.param(*rest, id=name) for name, *rest in cases]
    )


def check(group: str, spec: object, said: str, tally: Tally) -> None:
    """A look at a source says this, in a child process that lives on and takes little."""
    found, wrong = outcome(str(spec))
    tally.input(group, wrong is None and re.search(said, found), wrong or found)


@each(FOLDERS)
def test_hostile_image_folders(
    make: Callable[[Path], object], said: str, tmp_path: Path, tally: Tally
) -> None:
    check("folders of images", make(tmp_path), said, tally)
