"""Folders of images, VOC trees and names of sources as accidents and strangers make them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from hexa.config import UserError
from hexa.data.voc_boxes import read
from tests.data.test_torchvision_sets import aircraft, dtd, food101, pets
from tests.data.test_voc_boxes import ANNOTATION, annotated
from tests.torture.harness import Tally, damaged, hexa
from tests.torture.looking import Zoo, bitmap, outcome

folders, trees = Zoo(), Zoo()
READABLE = r"^2 images, 0 unreadable, labels \[0, 1\] of \['a', 'b'\]$"


def two(root: Path) -> str:
    for number, name in enumerate("ab"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{number}.bmp").write_bytes(bitmap(number))
    return f"folder:{root}"


@folders(READABLE)
def a_pipe_that_is_called_like_an_image(root: Path) -> str:
    spec = two(root)
    os.mkfifo(root / "a" / "x.jpg")
    return spec


@folders(READABLE)
def a_link_to_a_pipe(root: Path) -> str:
    spec = two(root)
    os.mkfifo(root / "pipe")
    (root / "a" / "x.jpg").symlink_to(root / "pipe")
    return spec


@folders(READABLE)
def a_socket_that_is_called_like_an_image(root: Path) -> str:
    spec, here = two(root), Path.cwd()
    os.chdir(root / "a")  # the names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind("x.png")
    finally:
        os.chdir(here)
    return spec


@folders(READABLE)
def a_device_without_end(root: Path) -> str:
    spec = two(root)
    (root / "b" / "x.bmp").symlink_to("/dev/zero")
    return spec


@folders(r"^3 images, 1 unreadable, labels \[0, 0, 1\]")
def a_link_to_nothing(root: Path) -> str:
    spec = two(root)
    (root / "a" / "x.jpg").symlink_to(root / "nowhere")
    return spec


@folders(r"^3 images, 1 unreadable, labels \[0, 0, 1\]")
def a_link_to_itself(root: Path) -> str:
    spec = two(root)
    (root / "a" / "x.jpg").symlink_to("x.jpg")
    return spec


@folders(READABLE)
def folders_that_are_links_to_themselves_and_upwards(root: Path) -> str:
    spec = two(root)
    (root / "loop").symlink_to("loop")
    (root / "a" / "up").symlink_to(root)
    return spec


@folders(r"^4 images, 2 unreadable, labels \[0, 0, 1, 1\]")
def a_file_of_a_hundred_gigabytes_and_one_of_nothing(root: Path) -> str:
    spec = two(root)
    with (root / "a" / "x.bmp").open("wb") as file:
        file.truncate(100 << 30)  # it has holes and takes no room
    (root / "b" / "x.bmp").touch()
    return spec


@folders(r"^4 images, 0 unreadable, labels \[0, 1, 2, 2\] of \['a', 'b', '\\udcff'\]")
def names_that_are_not_utf_8(root: Path) -> str:
    spec = two(root)
    folder = os.path.join(os.fsencode(root), b"\xff")
    os.mkdir(folder)
    for name in (b"\xe9.bmp", b"line\nbreak.bmp"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(bitmap())
    return spec


@folders(r"^3 images, 3 unreadable")
def images_that_are_something_else(root: Path) -> str:
    for name in ("a.jpg", "b.png", "c.tif"):
        (root / name).write_text("not an image")
    return f"folder:{root}"


@folders("^refused: .*cannot be read: .*File name too long")
def a_name_of_five_thousand_letters(root: Path) -> str:
    return f"folder:{root}/{'x' * 5000}"


@folders("^refused: .*no such folder")
def the_home_of_nobody(root: Path) -> str:
    return "folder:~nobody-of-this-name/photos"


@folders("^refused: .*zero byte")
def a_name_that_no_file_can_have(root: Path) -> str:
    return "folder:photos\0"


@pytest.mark.parametrize(("make", "said"), folders.cases)
def test_folders(tmp_path: Path, tally: Tally, make: Callable[[Path], str], said: str) -> None:
    assert re.search(said, outcome(make(tmp_path), "folders of images", tally))


def test_a_folder_that_may_not_be_read(tally: Tally) -> None:
    root = Path(tempfile.mkdtemp())  # tmp_path is shut to others as a whole
    try:
        spec = two(root)
        root.chmod(0o755)
        (root / "b").chmod(0)
        nobody = 65534

        def looked(spec: str) -> str:
            from tests.torture.looking import look

            if os.geteuid() == 0:
                os.seteuid(nobody)
            return look(spec)

        assert re.search(
            rf"^refused: .*{root}/b: Permission denied$", outcome(spec, "folders of images", tally, looked)
        )
    finally:
        (root / "b").chmod(0o700)
        shutil.rmtree(root)


@pytest.mark.parametrize("damage", ["absent", "binary", "json", "labels"])
def test_lists_of_torchvisions_sets(tmp_path: Path, tally: Tally, damage: str) -> None:
    if damage == "absent":
        dtd(tmp_path)
        (tmp_path / "dtd" / "dtd" / "labels" / "train1.txt").write_text("a/a_1.jpg\na/nothing.jpg\n")
        spec, said = f"dtd:{tmp_path}", "^2 images, 1 unreadable"
    elif damage == "binary":
        aircraft(tmp_path)
        (tmp_path / "fgvc-aircraft-2013b" / "data" / "images_variant_trainval.txt").write_bytes(b"\xff\xfe\n\0\n")
        spec, said = f"aircraft:{tmp_path}", "^refused: .*the lists of FGVCAircraft in .* are damaged"
    elif damage == "json":
        food101(tmp_path)
        (tmp_path / "food-101" / "meta" / "train.json").write_text("[" * 100_000)
        spec, said = f"food101:{tmp_path}", "^refused: "
    else:
        pets(tmp_path)
        file = tmp_path / "oxford-iiit-pet" / "annotations" / "trainval.txt"
        file.write_text("Boxer_1 2000000001 1 1\nRagdoll_1 2 1 1\n")
        spec, said = f"pets:{tmp_path}", "^refused: .*the label 2000000000 .* is not a class number"
    assert re.search(said, outcome(spec, "sets of torchvision", tally))


def entities(depth: int) -> str:
    """ "Billion laughs": ten names of ten names of ten names …"""
    named = "".join(f'<!ENTITY n{k} "{f"&n{k - 1};" * 10}">' for k in range(1, depth))
    return f'<!DOCTYPE x [<!ENTITY n0 "laugh">{named}]><annotation><size>&n{depth - 1};</size></annotation>'


@trees("boxes refused: .*not a valid VOC annotation .*amplification")
def entities_that_are_a_billion_letters(root: Path) -> str:
    return annotation(root, entities(12))


@trees("boxes refused: .*not a valid VOC annotation")
def an_entity_that_is_a_file(root: Path) -> str:
    text = '<!DOCTYPE x [<!ENTITY n SYSTEM "file:///etc/hostname">]><annotation><size>&n;</size></annotation>'
    return annotation(root, text)


@trees("boxes refused: .*not a valid VOC annotation")
def elements_in_elements(root: Path) -> str:
    return annotation(root, "<a>" * 200_000 + "</a>" * 200_000)


@trees("boxes refused: .*not a valid VOC annotation")
def an_encoding_that_nobody_knows(root: Path) -> str:
    return annotation(root, '<?xml version="1.0" encoding="klingon"?><annotation/>')


@trees("boxes refused: .*extends beyond the image")
def a_number_that_is_infinite(root: Path) -> str:
    return annotation(root, ANNOTATION.replace("<xmax>12<", "<xmax>1e400<"))


@trees("boxes refused: .*not a valid VOC annotation .an image of")
def an_image_that_is_wider_than_the_world(root: Path) -> str:
    return annotation(root, ANNOTATION.replace("<width>12<", f"<width>{'9' * 300}<"))


@trees("boxes refused: .*an image of 0 x 8 pixels")
def an_image_without_width(root: Path) -> str:
    return annotation(root, ANNOTATION.replace("<width>12<", "<width>0<"))


@trees("boxes refused: .*not a regular file")
def an_annotation_that_is_a_pipe(root: Path) -> str:
    spec = f"voc:{annotated(root)}"
    (root / "VOCdevkit" / "VOC2007" / "Annotations" / "trainval0.xml").unlink()
    os.mkfifo(root / "VOCdevkit" / "VOC2007" / "Annotations" / "trainval0.xml")
    return spec


@trees("^refused: .*1 listed images are not in")
def an_image_that_is_a_pipe(root: Path) -> str:
    spec = f"voc:{annotated(root)}"
    (root / "VOCdevkit" / "VOC2007" / "JPEGImages" / "trainval0.jpg").unlink()
    os.mkfifo(root / "VOCdevkit" / "VOC2007" / "JPEGImages" / "trainval0.jpg")
    return spec


@trees("^refused: .*cat_trainval.txt is not a list")
def a_label_beyond_all_numbers(root: Path) -> str:
    return listed(root, f"trainval0 {'9' * 5000}\n")


@trees("^refused: .*cat_trainval.txt is not a list")
def a_list_that_is_binary(root: Path) -> str:
    return listed(root, "\udcff\udcfe\0")


@trees("^refused: .*list different images")
def a_list_that_is_empty_beside_one_that_is_not(root: Path) -> str:
    return listed(root, "")


@trees("^refused: .*(File name too long|list different images)")
def an_image_of_five_thousand_letters(root: Path) -> str:
    return listed(root, f"{'x' * 5000} 1\n", both=True)


@trees("^refused: .*has no split")
def no_lists_of_classes(root: Path) -> str:
    spec = listed(root, "")
    for file in (root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main").glob("*_*.txt"):
        file.unlink()
    return spec


def annotation(root: Path, text: str) -> str:
    spec = f"voc:{annotated(root)}"
    (root / "VOCdevkit" / "VOC2007" / "Annotations" / "trainval1.xml").write_text(text)
    return spec


def listed(root: Path, text: str, both: bool = False) -> str:
    spec = f"voc:{annotated(root)}"
    for name in ("cat", "dog") if both else ("cat",):
        file = root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / f"{name}_trainval.txt"
        file.write_bytes(os.fsencode(text))
    return spec


@pytest.mark.parametrize(("make", "said"), trees.cases)
def test_voc_trees(tmp_path: Path, tally: Tally, make: Callable[[Path], str], said: str) -> None:
    assert re.search(said, outcome(make(tmp_path), "PASCAL VOC folders", tally))


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_annotations(tmp_path: Path, tally: Tally, count: int) -> None:
    generator, file = Random(count), tmp_path / "a.xml"
    complaints = []
    for _ in range(count):
        file.write_bytes(damaged(ANNOTATION.encode(), generator))
        try:
            wrong = None
            read(file, ["cat", "dog"])
        except UserError as error:
            wrong = repr(error) if "\n" in str(error) else None
        except Exception as error:
            wrong = repr(error)
        tally.input("PASCAL VOC folders", wrong is None)
        complaints += [] if wrong is None else [wrong]
    assert not complaints


@pytest.mark.slow
def test_the_command_line_says_it_in_a_line(tmp_path: Path, tally: Tally) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "b").mkdir()
        for name in ("a/1.jpg", "b/2.jpg"):
            (tmp_path / split / name).write_text(f"not an image {split}")
    ended = hexa("evaluate", "knn", "pixels:8", "--data", f"folder:{tmp_path}")
    tally.input("folders of images", ended.complaint is None)
    assert ended.complaint is None
    assert "cannot be read" in ended.err
