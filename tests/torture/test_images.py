"""Damaged and hostile image files: refused in one line or decoded, in bounded time and memory, never a dead process."""

from __future__ import annotations

import io
import random
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from PIL import Image

from hexa.data import bands
from hexa.data.decode import MAX_IMAGE_PIXELS, DecodeError, decode, decode_with_pil, jpeg_size, quiet
from tests.torture import image_bombs
from tests.torture.harness import Forked, Tally, damaged, forked
from tests.torture.image_files import bands_of, every_format

#: Damaged files in the slow test, and in the fast one.
MANY, FEW = 10_000, 400
_TOGETHER = 50
#: What a file may take: seconds on a busy machine and MB, for itself, for each million pixels that its header declares
#: (up to the limit on pixels), and for each MB of it.
_SECONDS, _SECONDS_PER_MEGAPIXEL, _SECONDS_PER_MB = 30.0, 2.0, 20.0
_MB, _MB_PER_MEGAPIXEL, _MB_PER_MB = 300.0, 40.0, 8.0

FILES = every_format()
FORMATS = sorted({name.split()[0] for name in FILES})


@dataclass(frozen=True)
class Outcome:
    """What became of a file. complaint: why this is no good end; None if it is."""

    complaint: str | None
    megapixels: float
    seconds: float
    size: float


def _damaged_file(seed: int, files: Mapping[str, bytes] = FILES) -> tuple[str, bytes]:
    """A file of `files`, damaged one to three times: its name and what is left of it."""
    generator = random.Random(seed)
    kind = generator.choice(sorted({name.split()[0] for name in files}))
    names = sorted(name for name in files if name.split()[0] == kind)
    name = generator.choice(names)
    data, others = files[name], [files[other] for other in names]
    for _ in range(generator.choice((1, 1, 2, 3))):
        if generator.random() < 0.4:  # where headers are, and by numbers that hurt
            flipped = bytearray(data)
            for _ in range(generator.choice((1, 2, 4))):
                at = generator.randrange(min(len(data), generator.choice((64, 200, 600))))
                flipped[at] = generator.choice((0, 1, 127, 128, 255, generator.randrange(256)))
            data = bytes(flipped)
        else:
            data = damaged(data, generator, others) or b"\0"
    return name, data


def _decoded(data: bytes, channels: int | None) -> Outcome:
    begin, complaint = time.monotonic(), None
    try:
        if channels is not None:
            bands.decode(data, channels=channels)
        else:
            if jpeg_size(data) is not None:  # as training crops are cut of large ones
                decode_with_pil(data, 4)
            decode(data)
    except DecodeError as error:
        message = str(error)
        complaint = None if message and "\n" not in message and " at 0x" not in message else f"says {message!r}"
    except BaseException as error:
        complaint = f"raises {error!r}"
    return Outcome(complaint, _declared(data) / 1e6, time.monotonic() - begin, len(data) / 1e6)


def _declared(data: bytes) -> int:
    """The pixels that the header declares, up to the limit."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return min(image.width * image.height, MAX_IMAGE_PIXELS)
    except Exception:
        return 0


def _complaints(found: Forked, files: int) -> list[str]:
    """What is wrong about `files` files that a child decoded."""
    if found.signal is not None or found.raised is not None:
        return [f"the child died of signal {found.signal}, {found.raised!r}"]
    outcomes: list[Outcome] = found.value
    assert len(outcomes) == files
    wrong = [outcome.complaint for outcome in outcomes if outcome.complaint is not None]
    for outcome in outcomes:
        seconds = _SECONDS + _SECONDS_PER_MEGAPIXEL * outcome.megapixels + _SECONDS_PER_MB * outcome.size
        wrong += [f"takes {outcome.seconds:.0f} s"] if outcome.seconds > seconds else []
    megabytes = max(_MB + _MB_PER_MEGAPIXEL * one.megapixels + _MB_PER_MB * one.size for one in outcomes)
    wrong += [f"takes {found.megabytes:.0f} MB"] if found.megabytes > megabytes else []
    return wrong


def _try(files: list[bytes], channels: int | None = None) -> Forked:
    def work() -> list[Outcome]:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_decoded(data, channels) for data in files]

    return forked(work, seconds=300)


def _try_damaged(count: int, tally: Tally, files: Mapping[str, bytes] = FILES, channels: int | None = None) -> None:
    """Decode damaged files, some to a child; each by itself where something is wrong with a child."""
    wrong = []
    for start in range(0, count, _TOGETHER):
        batch = [(seed, *_damaged_file(seed, files)) for seed in range(start, min(start + _TOGETHER, count))]
        fine = not _complaints(_try([data for _, _, data in batch], channels), len(batch))
        for seed, name, data in batch:
            complaints = [] if fine else _complaints(_try([data], channels), 1)
            tally.input(f"damaged {name.split()[0]} files", not complaints)
            wrong += [f"seed {seed} ({name}): {complaint}" for complaint in complaints]
    assert not wrong, "\n".join(wrong[:20])


def test_every_format_is_read(tally: Tally) -> None:
    shapes = {}
    for name, data in FILES.items():
        shapes[name] = tuple(decode(data).shape)
        tally.input("image files of every format", shapes[name][0] == 3)
    assert set(shapes.values()) == {(3, 23, 31), (3, 31, 23), (3, 200, 300)}
    assert FORMATS == ["BMP", "GIF", "JP2", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]


def test_damaged_files_are_read_or_refused(tally: Tally) -> None:
    _try_damaged(FEW, tally)


@pytest.mark.slow
def test_many_damaged_files_are_read_or_refused(tally: Tally) -> None:
    _try_damaged(MANY, tally)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_damaged_arrays_and_bands_are_read_or_refused(channels: int, tally: Tally) -> None:
    files = bands_of(channels)
    for data in files.values():
        assert bands.decode(data, channels=channels).shape[0] == channels
    _try_damaged(FEW, tally, files, channels)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 4])
def test_many_damaged_arrays_and_bands_are_read_or_refused(channels: int, tally: Tally) -> None:
    _try_damaged(MANY // 2, tally, bands_of(channels), channels)


TOO_LARGE = image_bombs.too_large()


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_by_its_header(name: str, tally: Tally) -> None:
    found = forked(lambda: decode(TOO_LARGE[name]))
    refused = isinstance(found.raised, DecodeError) and found.megabytes < 200
    tally.input("image files that declare gigabytes", refused)
    assert refused, found
    assert "limit of" in str(found.raised)


BOMBS = image_bombs.unfolding()


@pytest.mark.parametrize("name", BOMBS)
def test_what_unfolds_is_cheap(name: str, tally: Tally) -> None:
    complaints = _complaints(_try([BOMBS[name]]), 1)
    tally.input("image files that unfold in memory or time", not complaints)
    assert not complaints
