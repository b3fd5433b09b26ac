"""Named streams: functions of seed and name alone."""

from __future__ import annotations

import torch

from hexa.runtime.random import Stream


def test_stream_names() -> None:
    """The same name gives the same numbers, another name others; the global generator stays."""
    before = torch.get_rng_state()
    same = (
        Stream(3).child("views", 2),
        Stream(3, ("views", 2)),
        Stream(3).child("views").child(2),
    )
    drawn = [torch.rand(4, generator=stream.generator()).tolist() for stream in same]
    assert drawn[0] == drawn[1] == drawn[2]
    others = (
        Stream(3, ("views", 3)),
        Stream(4, ("views", 2)),
        Stream(3, ("2",)),
        Stream(3, (2,)),
    )
    assert len({stream.integer() for stream in (*others, same[0])}) == 5
    assert torch.equal(before, torch.get_rng_state())


def test_stream_stability() -> None:
    """A stored run must be reproducible by a later version."""
    assert Stream(0).integer() == 5254295370254170289
