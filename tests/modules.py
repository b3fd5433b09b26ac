"""Checks of networks and methods for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hexa.testing.laws import differing, state


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Check that the code inside the context leaves all parameters and buffers bit-identical."""
    before = state(module)
    yield
    assert not differing(before, state(module))
