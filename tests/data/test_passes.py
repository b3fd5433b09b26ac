"""Passes between epochs: views that training never shows, and every image once whatever the number of processes."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.data.loading.evaluation_stream import EvaluationTransform
from hexa.data.loading.loaders import PretrainLoader
from tests.data.batches import SIZE, array, each_process, loader_of, photographs, same

COUNT = 37
BATCH = 8
VIEWS: dict[str, Any] = {
    "recipe": "swav",
    "extra_crops": [{"count": 2, "size": 7, "scale": (0.1, 0.3)}],
}


@pytest.fixture(params=["resident", "workers"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """make() is a loader of the same images each time, by one of the paths."""
    resident = request.param == "resident"
    source = array(COUNT) if resident else photographs(tmp_path, COUNT)
    loaders = []

    def made(seed: int = 0) -> PretrainLoader:
        loaders.append(loader_of(source, BATCH, seed, num_workers=not resident, **VIEWS))
        assert loaders[-1].resident == resident
        return loaders[-1]

    yield made
    for loader in loaders:
        loader.close()


def test_view_pass_independence(make: Any) -> None:
    """Views of a pass are none that another pass or training shows."""
    loader = make()
    passes = [list(loader.passes(epoch).views()) for epoch in (0, 1)]
    epochs = [list(loader.epoch(epoch)) for epoch in (0, 1)]
    for left, right in itertools.combinations(
        [*passes, *epochs, list(make(seed=1).passes(0).views())], 2
    ):
        assert not torch.equal(left[0].index, right[0].index)
    streams = [batch.stream for batches in (*passes, *epochs) for batch in batches]
    numbers = torch.stack([loader.views.draw(stream, slice(0, BATCH)) for stream in streams])
    assert len(numbers.flatten().unique()) > 0.99 * numbers.numel()


@pytest.mark.parametrize("world", [1, 4])
def test_image_pass_shares(make: Any, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    """Processes see every image once, as evaluation does."""
    shares = []
    for _ in each_process(world, monkeypatch):
        loader = make()
        batches = list(loader.passes(1).images())
        shares.append(torch.cat([batch.index for batch in batches]).tolist())
        transform = EvaluationTransform(SIZE)
        for batch in batches:
            (crops,) = batch.crops
            assert crops.dtype == torch.float32
            assert len(batch) <= BATCH // world
            for crop, position in zip(crops, batch.index.tolist(), strict=True):
                expected = transform(loader.source.decode(position)).float() / 255
                torch.testing.assert_close(crop, expected, atol=1e-6, rtol=0)
    assert [*itertools.chain(*shares)] == list(range(COUNT))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_pass_isolation(tmp_path: Path) -> None:
    """Passes leave the batches and workers of training alone."""
    source = photographs(tmp_path, COUNT)
    expected = list(loader_of(source, BATCH).epoch(0))
    before = set(multiprocessing.active_children())
    loader = loader_of(source, BATCH, num_workers=1)
    batches = loader.epoch(0)
    made = [next(batches)]
    training = set(multiprocessing.active_children()) - before
    passes = loader.passes(1)
    waited = loader.wait_seconds
    assert len(list(passes.views())) == 4
    assert len(list(passes.images())) == 5
    abandoned = passes.views()
    next(abandoned)
    assert len(set(multiprocessing.active_children()) - before) == 2
    abandoned.close()
    assert set(multiprocessing.active_children()) - before == training
    assert loader.wait_seconds == waited
    made += list(batches)
    assert all(same(left, right) for left, right in zip(made, expected, strict=True))
    assert set(multiprocessing.active_children()) - before == training
    loader.close()
