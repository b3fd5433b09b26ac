"""A look at a source in a child process: opened, every image read, and what came of it in a sentence."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hexa.config import UserError
from hexa.data import open_source
from hexa.data.decode import DecodeError
from hexa.data.voc_boxes import boxes_of
from tests.torture.harness import Tally, forked

_MEGABYTES = 400
"""More than a look at any of these small files may take."""


def look(spec: str) -> str:
    """Open a source, read all its images and boxes, and say what there was, or why it was refused."""
    try:
        source = open_source(spec)
    except UserError as error:
        return f"refused: {error}"
    wrong = 0
    for index in range(len(source)):
        try:
            assert source.decode(index).shape[0] == 3
        except DecodeError as error:
            if "\n" in str(error):
                raise
            wrong += 1
    assert len(source.version()) == len(source.fingerprint) == 16
    labels = "no labels" if source.labels is None else f"labels {source.labels.tolist()}"
    names = "" if source.class_names is None else f" of {source.class_names}"
    said = f"{len(source)} images, {wrong} unreadable, {labels}{names}"
    if spec.startswith("voc:"):
        try:
            boxes_of(source)
        except UserError as error:
            return f"{said}; boxes refused: {error}"
    return said


def outcome(spec: str, group: str, tally: Tally, looked: Callable[[str], str] = look) -> str:
    """What a look in a child process says. Fails if it ended the child, took too long, too much, or several lines."""
    found = forked(lambda: looked(spec), 20)
    wrong = None
    if found.signal is not None or found.raised is not None:
        wrong = f"signal {found.signal}, raised {found.raised!r}"
    elif "\n" in found.value:
        wrong = f"not one line: {found.value}"
    elif found.megabytes > _MEGABYTES:
        wrong = f"{found.megabytes:.0f} MB"
    tally.input(group, wrong is None)
    assert wrong is None, f"{spec}: {wrong}"
    return str(found.value)


def bitmap(value: int = 0) -> bytes:
    """A small picture, of a format that no decoder of a stranger's makes quicker."""
    written = io.BytesIO()
    Image.new("RGB", (4, 3), (value, value, value)).save(written, "BMP")
    return written.getvalue()


class Zoo:
    """Functions that make a hostile input in a folder and return the name of its source, with what is to come of it."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def __call__(self, said: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
        """A decorator: what a look says matches `said`."""

        def enter(make: Callable[[Path], str]) -> Callable[[Path], str]:
            self.cases.append(pytest.param(make, said, id=make.__name__))
            return make

        return enter
