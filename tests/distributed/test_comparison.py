"""A comparison by two processes, each of which extracts a share of the features, is that of one, bit for bit."""

from __future__ import annotations

import json
import math
from typing import Any

from hexa.comparison.compare import CompareRequest, compare
from tests.distributed.together import run_together
from tests.evaluation.given import QUIET

BACKBONES = ("random:small-resnet-8-8-16", "random:small-resnet-4-8")


def compared() -> str:
    """The record, as JSON."""
    how: dict[str, Any] = QUIET | {"size": 8, "seconds": math.inf, "num_workers": 0}
    request = CompareRequest(backbones=BACKBONES, data="digits#test", **how)
    return json.dumps(compare(request).record)


def test_two_process_compare() -> None:
    """Two processes give the comparison of one process."""
    one = json.loads(run_together(1, compared)[0])
    two = json.loads(run_together(2, compared)[0])
    assert one["images"] > 256  # two batches or more
    assert one == two
