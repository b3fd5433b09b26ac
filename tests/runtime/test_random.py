"""Named streams: functions of seed and name alone."""

from __future__ import annotations

import torch

from hexa.runtime.random import Stream


def test_stream_names() -> None:
    """The same name gives the same numbers, another name others."""
    a = Stream(3).child("views", 2)
    b = Stream(3, ("views", 2))
    assert torch.equal(
        torch.rand(4, generator=a.generator()), torch.rand(4, generator=b.generator())
    )
    names = [
        Stream(3).child("views", 2),
        Stream(3).child("views", 3),
        Stream(4).child("views", 2),
        Stream(3, ("2",)),
    ]
    found = len({s.integer() for s in names} | {Stream(3, (2,)).integer()})
    assert found == 5


def test_stream_stability() -> None:
    """A stored run must be reproducible by a later version."""
    assert Stream(0).integer() == 5254295370254170289
    found = Stream(1, ("views", 7)).integer()
    expected = Stream(1).child("views").child(7).integer()
    assert found == expected


def test_stream_isolation() -> None:
    """Drawing leaves the global generator alone."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.rand(5, generator=Stream(0).child("x").generator())
    assert torch.equal(before, torch.get_rng_state())
