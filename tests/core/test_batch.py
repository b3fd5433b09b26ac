"""Batches with mistakes of a user's own training loop: each is refused with a one-line error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexa.config import UserError
from hexa.core import Batch, Setting
from hexa.methods.moco import MoCo, MoCoConfig
from hexa.methods.swav import SwAV, SwAVConfig
from hexa.nn.backbones import NetworkConfig, build
from hexa.objective import Objective
from hexa.runtime.random import Stream
from tests.laws.cases import one_step
from tests.modules import unchanged


def network() -> nn.Module:
    return build(NetworkConfig(name="small-resnet", widths=(4, 8)))


def moco() -> MoCo:
    return MoCo(MoCoConfig(queue_size=16, dim=8), network(), Setting(32, 8))


def swav() -> SwAV:
    config = SwAVConfig(queue_size=16, queue_start_epoch=0, num_prototypes=4, dim=8, hidden=8)
    return SwAV(config, network(), Setting(32, 8))


def batch(crops: Tensor | None = None, size: int = 8) -> Batch:
    crops = torch.rand(size, 3, 8, 8, generator=Stream(0).generator()) if crops is None else crops
    return Batch((crops, crops.flip(0)), torch.arange(size), Stream(0).child("step", 0))


def train(method: Any, data: Batch, objective: Objective | None = None) -> None:
    learned = [p for p in method.parameters() if p.requires_grad]
    one_step(objective or Objective(method), torch.optim.SGD(learned, lr=0.1), data)


def test_grey_batch_channels() -> None:
    """Grey images are not broadcast to a network of three channels."""
    with pytest.raises(UserError, match=r"shape \[8, 1, 8, 8\] for a network of 3 channels"):
        train(moco(), batch(torch.rand(8, 1, 8, 8)))


RISING = torch.linspace(0, 1, 8 * 3 * 8 * 8).view(8, 3, 8, 8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            RISING * 255,
            r"pixels range from 0.* to 25.*; expected 0 to 1",
        ),
        (torch.full((8, 3, 8, 8), torch.nan), "pixels range from nan to nan"),
    ],
)
def test_pixel_range_refusal(wrong: Tensor, said: str) -> None:
    """Pixels outside 0 and 1 are refused before the first step."""
    method = moco()
    with unchanged(method), pytest.raises(UserError, match=said):
        train(method, batch(wrong))


def test_moco_queue_wraparound() -> None:
    """A shorter last batch continues at the beginning of MoCo's queue."""
    method = moco()
    before = method.queue.clone()
    for size in (8, 6, 4):  # 18 keys in a queue of 16
        train(method, batch(size=size))
    assert not bool((method.queue == before).all(1).any())
    assert int(method.queue_pointer) == 2


def test_first_step_value_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixel values are checked in the first step only."""
    looked: list[int] = []
    monkeypatch.setattr(Batch, "check_values", lambda data: looked.append(data.step))
    method = moco()
    objective = Objective(method)
    for _ in range(3):
        train(method, batch(), objective)
    assert len(looked) == 1


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (moco, 24),
        (swav, 6),
        (swav, 24),
    ],
)
def test_queue_batch_size_mismatch(make: Any, size: int) -> None:
    """A batch of another size than the method was built for does not reach the queue."""
    method = make()
    before = method.queue.clone()
    with pytest.raises(
        UserError,
        match=rf"{size} entries.* queue of 16.*Setting.batch_size",
    ):
        train(method, batch(size=size))
    assert torch.equal(method.queue, before)
