"""A comparison by two processes, each of which extracts a share of the features, is that of one, bit for bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hexa.comparison.compare import CompareRequest, compare
from hexa.comparison.tuning import PLAN
from hexa.runtime import processes
from tests.distributed.together import run_together

BACKBONES = ("random:small-resnet-8-8-16", "random:small-resnet-4-8")


def compared(out: str, labels: bool) -> None:
    processes.initialize(torch.device("cpu"))
    request = CompareRequest(
        backbones=BACKBONES,
        data="digits#test" if labels else "digits#train",
        labelled=None,
        size=8,
        seconds=math.inf,
        fine_tune=labels,
        device="cpu",
        precision="fp32",
        num_workers=0,
    )
    with pytest.MonkeyPatch.context() as patch:
        if not labels:
            patch.setattr("hexa.data.sources.source.Source.classes", None)
        patch.setattr("hexa.comparison.tuning.PLAN", replace(PLAN, epochs=1))
        patch.setattr("hexa.comparison.tuning.format_duration", lambda _: "a while")
        record = compare(request).record
    if processes.is_main():
        Path(out).write_text(json.dumps(record))


@pytest.mark.parametrize("labels", [True, False])
def test_two_processes_compare_as_one_does(tmp_path: Path, labels: bool) -> None:
    for count in (1, 2):
        run_together(count, compared, str(tmp_path / f"{count}.json"), labels)
    one, two = (json.loads((tmp_path / f"{count}.json").read_text()) for count in (1, 2))
    assert one["images"] > 256  # two batches or more
    assert one == two
    assert bool(one["backbones"][0]["free"]) != labels
