"""Freed memory is kept for the next step: page faults are counted, not seconds."""

from __future__ import annotations

import ctypes
import resource

import pytest
import torch

from hexa.runtime.allocator import _MMAP_THRESHOLD, _TRIM_THRESHOLD, keep_freed_memory
from tests.torture.harness import forked


def faults(keep: bool) -> int:
    """Faults of the last four of eight steps, each of which fills four tensors of 8 MB and frees them."""
    for parameter, _ in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        ctypes.CDLL(None).mallopt(parameter, 128 << 10)  # as glibc begins
    assert not keep or keep_freed_memory.__wrapped__()
    counts = []
    for _ in range(9):
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        [torch.ones(2 << 20) for _ in range(4)]
    return counts[-1] - counts[4]


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc, or malloc was set by the user")
def test_pages_of_freed_tensors_are_used_again() -> None:
    kept, plain = (forked(lambda keep=keep: faults(keep)).value for keep in (True, False))
    assert 4 * kept < plain


def test_the_users_settings_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    assert not keep_freed_memory.__wrapped__()
