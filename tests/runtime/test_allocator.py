"""Freed memory is kept for the next step: page faults are counted, not seconds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hexa.runtime.allocator import keep_freed_memory

#: Faults of twenty steps, each of which fills tensors of 8 MB, of 84 MB, and frees them.
SCRIPT = """
import resource, sys, torch
from hexa.runtime.precision import pick_device
sys.argv[1:] and pick_device("cpu")
def step():
    return [torch.ones(2 << 20) for _ in range(16)], [torch.ones(20 << 20) for _ in range(2)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*given: str, **environment: str) -> int:
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, "-c", SCRIPT, *given]
    return int(
        subprocess.run(command, env=variables | environment, check=True, capture_output=True).stdout
    )


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc, or malloc was set by the user")
def test_pages_of_freed_tensors_are_used_again() -> None:
    plain = _faults()
    assert 4 * _faults("kept") < plain
    assert 4 * _faults("kept", MALLOC_TOP_PAD_="0") > plain  # the user's settings stand
