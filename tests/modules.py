"""How tests look at networks and methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hexa.testing.laws import differing, state


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """What is done inside leaves all parameters and buffers as they were, to the bit."""
    before = state(module)
    yield
    assert not differing(before, state(module))
