"""Loaders: every image once, the same batches however they are made, and unreadable images accounted for."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hexa.config import UserError
from hexa.data import ArraySource, Source, open_source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.data.loading.workers import WorkerEnded
from hexa.data.views.config import ViewsConfig
from hexa.data.views.crops import cut_crops
from hexa.data.views.making import Views
from hexa.runtime.random import Stream
from hexa.runtime.signals import Interrupts
from tests.data.batches import (
    SIZE,
    SMALL,
    array,
    assert_share,
    each_process,
    flat,
    loader_of,
    photographs,
    same,
)
from tests.data.image_files import exif
from tests.refusals import one_line


def test_epoch_images_once(source: Source) -> None:
    """An epoch shows every image once and drops the rest."""
    loader = loader_of(source)
    assert loader.steps_per_epoch == 3
    assert loader.wait_seconds == 0
    epochs = [list(loader.epoch(number)) for number in range(2)]
    for batches in epochs:
        assert len(batches) == 3
        seen = torch.cat([batch.index for batch in batches]).tolist()
        assert len(set(seen)) == 48
        assert set(seen) <= set(range(50))
        for batch in batches:
            assert [crop.shape for crop in batch.crops] == [(16, 3, SIZE, SIZE)] * 2
            assert all(
                crop.dtype == torch.float32 and crop.min() >= 0 and crop.max() <= 1
                for crop in batch.crops
            )
    assert not torch.equal(epochs[0][0].index, epochs[1][0].index)
    assert not torch.equal(epochs[0][0].index, next(loader_of(source, seed=1).epoch(0)).index)
    assert len({batch.stream for batches in epochs for batch in batches}) == 6
    assert loader.wait_seconds > 0


def test_loader_any_first_step(source: Source) -> None:
    """Any step can be the first, and the same step can come again."""
    loader = loader_of(source)
    whole = [batch for epoch in range(2) for batch in loader.epoch(epoch)]
    assert [batch.step for batch in whole] == [0, 1, 2, 3, 4, 5]
    again = [
        *loader.epoch(0),
        *itertools.islice(loader.epoch(1), 1),
        *loader_of(source).epoch(1, 1),
    ]
    assert all(same(left, right) for left, right in zip(whole, again, strict=True))


def test_global_batch_shares(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes share a global batch."""
    options = {"extra_crops": SMALL}
    whole = list(loader_of(source, **options).epoch(1))
    for rank in each_process(2, monkeypatch):
        for ours, all_of_it in zip(loader_of(source, **options).epoch(1), whole, strict=True):
            assert_share(ours, all_of_it, slice(8 * rank, 8 * rank + 8))


def test_worker_batches(tmp_path: Path) -> None:
    """Workers give the batches that are made without workers."""
    source = photographs(tmp_path / "photographs", 50, broken=(7,))
    options: dict[str, Any] = {"tolerance": 0.1, "extra_crops": SMALL}
    alone = loader_of(source, **options)
    loader = loader_of(source, num_workers=2, **options)
    assert not loader.resident
    for epoch in range(2):
        assert all(
            same(left, right)
            for left, right in zip(alone.epoch(epoch), loader.epoch(epoch), strict=True)
        )
    assert alone.problems == loader.problems != []
    loader.close()


TURNED = {
    "vertical_flip_probability": 0.5,
    "quarter_turn_probability": 0.75,
    "magnification": (0.8, 2.0),
}


@pytest.mark.parametrize("further", [{}, TURNED])
def test_worker_device_crop_rounding(
    further: dict[str, Any],
) -> None:
    """Crops by workers and by the device differ only by rounding."""
    options: dict[str, Any] = {"recipe": "crop-flip", "extra_crops": SMALL, **further}
    limit = array().images.nbytes
    resident = loader_of(array(), resident_limit_bytes=limit, **options)
    decoded = loader_of(array(), resident_limit_bytes=limit - 1, **options)
    assert (resident.resident, decoded.resident) == (True, False)
    for left, right in zip(resident.epoch(1), decoded.epoch(1), strict=True):
        assert torch.equal(left.index, right.index)
        assert left.stream == right.stream
        assert left.step == right.step
        for ours, theirs in zip(left.crops, right.crops, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1.01 / 255, rtol=0)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A JPEG of 1200 × 1600 pixels that is stored lying on its side."""
    y, x = np.mgrid[0:1200, 0:1600] / 200
    waves = np.stack([np.sin(y * k) * np.cos(x * (k + 1)) for k in (1, 2, 3)], 2) * 110 + 128
    noise = np.random.default_rng(0).normal(0, 12, waves.shape)
    picture = Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))
    folder = tmp_path_factory.mktemp("large")
    picture.save(folder / "large.jpg", quality=95, exif=exif())
    assert (folder / "large.jpg").stat().st_size > 200_000
    return open_source(f"folder:{folder}")


@pytest.mark.parametrize("extra_crops", [(), ({"count": 4, "size": 24, "scale": (0.05, 0.14)},)])
def test_large_photograph_shrunken_decoding(large: Source, extra_crops: Any) -> None:
    """A large photograph is decoded small and looks the same."""
    whole = ArraySource(large.decode(0)[None])
    assert whole.uniform_size == (1600, 1200)
    views = Views(
        ViewsConfig.model_validate({"recipe": "moco-v2", "size": 64, "extra_crops": extra_crops})
    )
    numbers = views.draw(Stream(0), slice(0, 1))[:, 0]
    for small, exact in zip(
        cut_crops(large, 0, views, numbers), cut_crops(whole, 0, views, numbers), strict=True
    ):
        assert 0 < (small.float() - exact.float()).abs().mean() < 2.5


@pytest.mark.parametrize("one_size", [True, False], ids=["resident", "workers"])
def test_unreadable_image_replacement(tmp_path: Path, one_size: bool) -> None:
    """Unreadable images are replaced by their neighbours and listed."""
    loader = loader_of(
        flat(tmp_path, 20, (4, 5, 19), one_size), 20, tolerance=0.2, recipe="crop-flip"
    )
    assert loader.resident == one_size
    batch = next(loader.epoch(0))
    assert sorted(batch.index.tolist()) == sorted(
        [*(n for n in range(20) if n not in (4, 5, 19)), 6, 6, 0]
    )
    assert torch.equal((batch.crops[0][:, 0, 5, 5] * 25.5).round().long(), batch.index)
    assert [line.split(":")[0] for line in loader.problems] == ["04.png", "05.png", "19.png"]
    assert "not an image" in loader.problems[0]


@pytest.mark.parametrize(
    ("readable", "num_workers"), [("of one size", 0), ("of several sizes", 1), ("none", 0)]
)
def test_unreadable_image_tolerance(tmp_path: Path, readable: str, num_workers: int) -> None:
    """Too many unreadable images stop the run."""
    source = flat(
        tmp_path,
        24,
        tuple(range(24) if readable == "none" else range(1, 24, 2)),
        readable == "of one size",
    )
    tolerance, said = (
        (1.0, "cannot be read")
        if readable == "none"
        else (0.01, "images cannot be read, more than 1 %")
    )
    with one_line(rf"{said}.*\.png: not an image"):
        list(loader_of(source, 24, num_workers=num_workers, tolerance=tolerance).epoch(0))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_batch_order(tmp_path: Path, num_workers: int) -> None:
    """Evaluation shows every readable image once, in order."""
    source = photographs(tmp_path / "photographs", 21, broken=(3, 20))
    problems: dict[int, str] = {}
    transform = EvaluationTransform(SIZE)
    batches = list(
        evaluation_batches(
            source, transform, 5, num_workers=num_workers, problems=problems, tolerance=0.2
        )
    )
    index = torch.cat([positions for _, positions in batches])
    assert index.tolist() == [number for number in range(21) if number not in (3, 20)]
    assert set(problems) == {3, 20}
    images = torch.cat([images for images, _ in batches])
    for image, position in zip(images, index.tolist(), strict=True):
        assert torch.equal(
            (image * 255).round().to(torch.uint8), transform(source.decode(position))
        )
    with pytest.raises(UserError, match="cannot be read"):
        list(evaluation_batches(source, transform, 5, num_workers=num_workers))


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def test_worker_group_signals(
    tmp_path: Path,
) -> None:
    """Ctrl-C, a scheduler's SIGTERM and a closed terminal reach every process; the main one saves."""
    source = photographs(tmp_path / "photographs", 50)
    before = set(multiprocessing.active_children())
    loader = loader_of(source, num_workers=2)
    expected = list(loader_of(source).epoch(0))
    batches = loader.epoch(0)
    made = [next(batches)]
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    for worker in workers:
        for number in STOPS:
            os.kill(worker.pid, number)
    made += list(batches)
    assert all(same(left, right) for left, right in zip(made, expected, strict=True))
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []).isdisjoint(STOPS)


def test_dead_worker_error(tmp_path: Path) -> None:
    """A dead worker gives one clear error at the next batch; torch would raise at any point, such
    as during a checkpoint."""
    before = set(multiprocessing.active_children())
    loader = loader_of(photographs(tmp_path / "photographs", 50), num_workers=1)
    batches = loader.epoch(0)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    worker.kill()
    worker.join()
    with one_line(r"a worker process that decodes images ended .*num_workers", WorkerEnded):
        list(batches)
    loader.close()


def test_unsendable_image_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that cannot be sent is an error; the queue would drop it, and this process would
    wait forever."""

    def refused(tensor: torch.Tensor) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr("hexa.data.loading.workers.reduce_tensor", refused)
    loader = loader_of(photographs(tmp_path / "photographs", 50), num_workers=1)
    with one_line(r"worker process .* ended .*num_workers 0 .*--shm-size", WorkerEnded):
        next(loader.epoch(0))
    said = capfd.readouterr().err
    assert said == "hexa: a worker process cannot hand an image over: Too many open files\n"
    loader.close()


def test_stuck_worker_second_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal ends the wait for a worker that is stuck."""
    before = set(multiprocessing.active_children())
    monkeypatch.setattr("hexa.runtime.signals.COPIES_SECONDS", 0.2)
    loader = loader_of(photographs(tmp_path / "photographs", 50), num_workers=1)
    batches = loader.epoch(0)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    os.kill(worker.pid, signal.SIGSTOP)
    me = os.getpid()
    timers = [threading.Timer(delay, os.kill, (me, signal.SIGTERM)) for delay in (0.5, 0.6, 1.0)]
    began = time.monotonic()
    with Interrupts(lambda _: None) as interrupts:
        for timer in timers:
            timer.start()
        with one_line("a second signal ended the wait", WorkerEnded):
            list(itertools.chain(batches, *map(loader.epoch, range(1, 9))))
    assert time.monotonic() - began >= 0.9
    assert interrupts.received == signal.SIGTERM
    loader.close()
    worker.join(10)
    assert not worker.is_alive()
