"""Loaders: every image once, the same batches however they are made, and unreadable images accounted for."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.config import UserError
from hexa.core import Batch
from hexa.data import ArraySource, Source, open_source
from hexa.data.loading.evaluation_stream import EvaluationTransform, evaluation_batches
from hexa.data.loading.loaders import PretrainLoader
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
from tests.data.image_files import exif, photograph, saved
from tests.refusals import one_line


def test_epoch_images_once(source: Source) -> None:
    """An epoch shows every image once and drops the rest."""
    loader = loader_of(source)
    assert loader.steps_per_epoch == 3
    epochs = [list(loader.epoch(number)) for number in range(2)]
    for batches in epochs:
        assert len(batches) == 3
        seen = torch.cat([batch.index for batch in batches]).tolist()
        assert len(set(seen)) == 48
        assert set(seen) <= set(range(50))
        for batch in batches:
            assert [crop.shape for crop in batch.crops] == [(16, 3, SIZE, SIZE)] * 2
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
    source = photographs(tmp_path, broken=(7,))
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
        assert (left.stream, left.step) == (right.stream, right.step)
        assert_share(left, right, slice(None), atol=1.01 / 255)


@pytest.mark.parametrize("extra_crops", [(), ({"count": 4, "size": 24, "scale": (0.05, 0.14)},)])
def test_large_photograph_shrunken_decoding(tmp_path: Path, extra_crops: Any) -> None:
    """A large photograph, stored lying on its side, is decoded small and looks the same."""
    data = saved(photograph(1200, 1600), "JPEG", quality=95, exif=exif())
    (tmp_path / "large.jpg").write_bytes(data)
    large = open_source(f"folder:{tmp_path}")
    whole = ArraySource(large.decode(0)[None])
    assert whole.uniform_size == (1600, 1200)
    fields = {"recipe": "moco-v2", "size": 64, "extra_crops": extra_crops}
    views = Views(ViewsConfig.model_validate(fields))
    numbers = views.draw(Stream(0), slice(0, 1))[:, 0]
    small, exact = (cut_crops(source, 0, views, numbers) for source in (large, whole))
    for left, right in zip(small, exact, strict=True):
        assert 0 < (left.float() - right.float()).abs().mean() < 2.5


@pytest.mark.parametrize("one_size", [True, False], ids=["resident", "workers"])
def test_unreadable_image_replacement(tmp_path: Path, one_size: bool) -> None:
    """Unreadable images are replaced by their neighbours and listed."""
    loader = loader_of(
        flat(tmp_path, 20, (4, 5, 19), one_size), 20, tolerance=0.2, recipe="crop-flip"
    )
    assert loader.resident == one_size
    batch = next(loader.epoch(0))
    counts = torch.bincount(batch.index, minlength=20).tolist()
    assert counts == [2, 1, 1, 1, 0, 0, 3, *[1] * 12, 0]
    assert torch.equal((batch.crops[0][:, 0, 5, 5] * 25.5).round().long(), batch.index)
    assert [line.split(":")[0] for line in loader.problems] == ["04.png", "05.png", "19.png"]
    assert "not an image" in loader.problems[0]


SECOND = range(1, 24, 2)
TOO_MANY = r"at least \d+ of 24 images cannot be read, more than 1 %"


@pytest.mark.parametrize(
    ("broken", "one_size", "num_workers", "tolerance", "said"),
    [
        (SECOND, True, 0, 0.01, TOO_MANY),
        (SECOND, False, 1, 0.01, TOO_MANY),
        (range(24), True, 0, 1.0, "cannot be read"),
    ],
)
def test_unreadable_image_tolerance(
    tmp_path: Path, broken: range, one_size: bool, num_workers: int, tolerance: float, said: str
) -> None:
    """Too many unreadable images stop the run."""
    source = flat(tmp_path, 24, tuple(broken), one_size)
    with one_line(rf"{said}.*\.png: not an image"):
        list(loader_of(source, 24, num_workers=num_workers, tolerance=tolerance).epoch(0))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_batch_order(tmp_path: Path, num_workers: int) -> None:
    """Evaluation shows every readable image once, in order."""
    source = photographs(tmp_path, 21, broken=(3, 20))
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
        assert torch.equal(image, transform(source.decode(position)))
    with pytest.raises(UserError, match="cannot be read"):
        list(evaluation_batches(source, transform, 5, num_workers=num_workers))


def with_workers(folder: Path, count: int) -> tuple[PretrainLoader, Iterator[Batch], set[Any]]:
    """A loader, the batches of its first epoch, of which one was taken, and its workers."""
    before = set(multiprocessing.active_children())
    loader = loader_of(photographs(folder), num_workers=count)
    batches = loader.epoch(0)
    next(batches)
    return loader, batches, set(multiprocessing.active_children()) - before


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def test_worker_group_signals(
    tmp_path: Path,
) -> None:
    """Ctrl-C, a scheduler's SIGTERM and a closed terminal reach every process; the main one saves."""
    loader, batches, workers = with_workers(tmp_path, 2)
    expected = list(loader_of(loader.source).epoch(0))[1:]
    assert len(workers) == 2
    for worker in workers:
        for number in STOPS:
            os.kill(worker.pid, number)
    assert all(same(left, right) for left, right in zip(batches, expected, strict=True))
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []).isdisjoint(STOPS)


def test_dead_worker_error(tmp_path: Path) -> None:
    """A dead worker gives one clear error at the next batch; torch would raise at any point, such
    as during a checkpoint."""
    loader, batches, (worker,) = with_workers(tmp_path, 1)
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
    loader = loader_of(photographs(tmp_path), num_workers=1)
    with one_line(r"worker process .* ended .*num_workers 0 .*--shm-size", WorkerEnded):
        next(loader.epoch(0))
    said = capfd.readouterr().err
    assert said == "hexa: a worker process cannot hand an image over: Too many open files\n"
    loader.close()


def test_stuck_worker_second_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal ends the wait for a worker that is stuck."""
    monkeypatch.setattr("hexa.runtime.signals.COPIES_SECONDS", 0.2)
    loader, batches, (worker,) = with_workers(tmp_path, 1)
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
