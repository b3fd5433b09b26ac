"""The header of a JPEG as PIL reads it against what torchvision decodes."""

from __future__ import annotations

import io
import random

import torch
import torchvision.io
from PIL.JpegImagePlugin import JpegImageFile

from tests.data.image_files import every_format, photograph, saved

JPEGS = {name: data for name, data in every_format().items() if name.startswith("JPEG")}


def test_jpeg_damaged_header_size() -> None:
    """The size decides whether a file is decoded at all, so no decoder may find another one in it."""
    generator = random.Random(0)
    agreed = 0
    files = [*JPEGS.values(), saved(photograph(9, 5), "JPEG", comment=b"words")]
    for _ in range(1500):
        changed = bytearray(generator.choice(files))
        for _ in range(generator.choice((1, 2, 4))):
            changed[generator.randrange(2, min(len(changed), 700))] = generator.choice(
                (0, 1, 192, 194, 218, 255)
            )
        whole = generator.random() < 0.7
        data = (
            bytes(changed)
            if whole
            else bytes(changed[: generator.randrange(len(changed))]) + generator.choice(files)
        )
        try:
            header = JpegImageFile(io.BytesIO(data))
        except Exception:  # whatever PIL raises
            continue
        if header.mode not in ("L", "RGB") or header.width * header.height > 10**6:
            continue
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            image = torchvision.io.decode_image(raw, torchvision.io.ImageReadMode.UNCHANGED)
        except RuntimeError:
            continue
        assert image.shape == (len(header.mode), header.height, header.width)
        agreed += 1
    assert agreed > 200
