"""A comparison by two processes, each of which extracts a share of the features, is that of one, bit for bit."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hexa.comparison.compare import CompareRequest, compare
from tests.distributed.together import run_together
from tests.evaluation.given import QUIET

BACKBONES = ("random:small-resnet-8-8-16", "random:small-resnet-4-8")


def compared(labels: bool) -> str:
    """The record, as JSON."""
    how: dict[str, Any] = QUIET | {
        "size": 8,
        "seconds": math.inf,
        "num_workers": 0,
    }
    request = CompareRequest(
        backbones=BACKBONES, data="digits#test" if labels else "digits#train", **how
    )
    with pytest.MonkeyPatch.context() as patch:
        if not labels:
            patch.setattr("hexa.data.sources.source.Source.classes", None)
        return json.dumps(compare(request).record)


@pytest.mark.parametrize("labels", [True, False])
def test_two_processes_compare_as_one_does(labels: bool) -> None:
    one, two = (json.loads(run_together(count, compared, labels)[0]) for count in (1, 2))
    assert one["images"] > 256  # two batches or more
    assert one == two
    assert bool(one["backbones"][0]["free"]) != labels
