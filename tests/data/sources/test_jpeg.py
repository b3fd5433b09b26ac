"""The header of a JPEG against what decoders make of it."""

from __future__ import annotations

import random

import pytest
import torch
import torchvision.io

from hexa.data.sources import jpeg
from tests.data.image_files import every_format, photograph, saved

JPEGS = {name: data for name, data in every_format().items() if name.startswith("JPEG")}


@pytest.mark.parametrize("name", JPEGS)
def test_the_size_and_the_scans_are_those_of_the_image(name: str) -> None:
    channels = 1 if " L" in name else 4 if "CMYK" in name else 3
    height, width = (200, 300) if "large" in name else (23, 31)
    assert jpeg.frame_of(JPEGS[name]) == (height, width, channels, "progressive" in name)


def test_a_scan_of_some_channels_is_not_the_only_one() -> None:
    data = bytearray(JPEGS["JPEG baseline"])
    data[data.index(b"\xff\xda") + 4] = 1
    assert jpeg.frame_of(bytes(data)).scans


@pytest.mark.parametrize("name", ["PNG of type 2, 8 bits", "WEBP lossy", "JP2 RGB"])
def test_other_files_have_no_frame(name: str) -> None:
    assert jpeg.frame_of(every_format()[name]) is None


def test_where_a_damaged_header_has_a_size_decoders_see_the_same() -> None:
    """The size decides whether a file is decoded at all, so no decoder may find another one in it."""
    generator, agreed = random.Random(0), 0
    files = [*JPEGS.values(), saved(photograph(9, 5), "JPEG", comment=b"words")]
    for _ in range(1500):
        header = bytearray(generator.choice(files))
        for _ in range(generator.choice((1, 2, 4))):
            header[generator.randrange(2, min(len(header), 700))] = generator.choice(
                (0, 1, 192, 194, 218, 255)
            )
        whole = generator.random() < 0.7
        data = (
            bytes(header)
            if whole
            else bytes(header[: generator.randrange(len(header))]) + generator.choice(files)
        )
        frame = jpeg.frame_of(data)
        if frame is None or frame.height * frame.width > 10**6:
            continue
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            image = torchvision.io.decode_image(raw, torchvision.io.ImageReadMode.UNCHANGED)
        except RuntimeError:
            continue
        assert image.shape == (frame.channels, frame.height, frame.width)
        agreed += 1
    assert agreed > 200
