"""Protocols of the literature for any backbone. Each is one file in `hexa.evaluation.protocols`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.console import Progress
    from hexa.weights.pretrained import Backbone


def evaluate(
    protocol: str,
    backbone: str | Path | Backbone,
    data: str,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measure a backbone by a published protocol; the result carries its protocol id, backbone, data, seed, versions.

    Fits on the split `train` of `data` and scores its split `test` (or `test_data`). options: those of every protocol
    (`hexa.evaluation.request.EvaluationRequest`) and those of this protocol; deviations from its preset are recorded.
    holdout: score this share of the training images instead, drawn class by class from the seed, and fit on the rest,
    for searches that must not touch the test split; the protocol id says so, and it also names mean, std, size, crop
    and interpolation where they are given. out: a JSON file; a run folder collects the result in results.json
    too. progress: called with (what is done, done, total).

    The processes that `hexa.runtime.processes.initialize` has joined all call it alike and return the result: each
    extracts a share of the features, and in the protocol linear decodes and learns from a share of every batch. The
    first does the rest.

    Raises UserError; NotWritten, which has the result, if it cannot be written in the end.
    """
    from hexa.evaluation.measure import measure
    from hexa.runtime.console import silent

    return measure(protocol, backbone, data, options, progress or silent)
