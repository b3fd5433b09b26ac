"""The record of an adaptation in its run folder: request, plan, scores, verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from hexa.adaptation.request import AdaptRequest
from hexa.config import UserError, reason
from hexa.reporting.runs import Adaptation
from hexa.run.names import ADAPTATION, CONFIG
from hexa.runtime import parsing
from hexa.runtime.files import write_text

Record = dict[str, Any]

#: Start of the plan's line on the labelled images.
LABELS = "labels:"
#: Changing only these options recomputes the verdict without training.
_JUDGING = {"labelled", "groups", "price"}
#: If one of these fields is set, labels influence the training, so that other labels need a new training.
_DECIDING = {"monitor.keep_best", "monitor.until"}
#: Options on the command line whose names differ from those in the record.
_SPELLED = {"backbone": "BACKBONE", "seconds": "--time in seconds"}
#: Maximum number of images for a recomputed verdict.
_MOST = 2000


class _Begun(pydantic.BaseModel):
    """Fields of every record."""

    request: dict[str, Any]
    plan: list[str]
    domain: str
    compared: int
    fingerprints: dict[str, str] = {}


def read(out: Path, request: AdaptRequest, only_plan: bool) -> Record | None:
    """Return the record in `out`; None if nothing was trained there.

    If the request differs only in options of the evaluation, the record is returned without its verdict. If it differs
    in other options, UserError is raised, or None is returned for `only_plan`.
    """
    path = out / ADAPTATION
    if not path.is_file():
        return None
    record = parsing.read_json(path, "give another --out", within=out)
    try:
        _Begun.model_validate(record)
        if "table" in record:
            Adaptation.model_validate(record)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); give another --out") from None
    if (
        "table" not in record and not (out / CONFIG).is_file()
    ):  # not trained: another request may use the folder
        return None
    theirs = _options(record["request"])
    ours = _options(request.record)
    other = [name for name in dict.fromkeys([*theirs, *ours]) if theirs.get(name) != ours.get(name)]
    if not other:
        return dict(record)
    if set(other) <= _JUDGING and not ("labelled" in other and _DECIDING & request.fields.keys()):
        return to_judge(record, request, by_price=other == ["price"])
    if only_plan:
        return None
    if "command" in other:
        raise UserError(
            f"{out} belongs to hexa {theirs['command']}, not to hexa {request.command}; give another --out"
        )
    needs = [name for name in other if name not in _JUDGING] or other
    listed = "; ".join(
        f"{_SPELLED.get(name, f'--{name}')} {_said(theirs.get(name))}, not {_said(ours.get(name))}"
        for name in needs
    )
    raise UserError(
        f"{out} belongs to a command with other options: {listed}; repeat that command, or give another --out"
    )


def _said(value: object) -> object:
    """Return the value of an option, or "not given" for None."""
    return "not given" if value is None else value


def _options(request: Record) -> Record:
    """Return all options of a request by name, including fields of the experiment."""
    fields = request.get("fields")
    return request | {"fields": None} | (fields if isinstance(fields, dict) else {})


def to_judge(record: Record, request: AdaptRequest, by_price: bool = False) -> Record:
    """Return the record of a trained run without its verdict and without facts about the labelled images.

    by_price: only --price has changed.
    """
    names = ("domain", "experiment", "compared")
    kept = {name: record[name] for name in names if name in record}
    kept["plan"] = [line for line in record["plan"] if not line.startswith(LABELS)]
    prints = record.get("fingerprints", {})
    kept["fingerprints"] = {name: prints[name] for name in prints if name == "--data"}
    if not by_price:
        kept["compared"] = _MOST
    return kept | {"request": request.record}


def write(out: Path, record: Mapping[str, Any]) -> None:
    """Write the record atomically."""
    write_text(out / ADAPTATION, json.dumps(record, indent=1) + "\n")
