"""The record of an adaptation in its run folder: request, plan, scores of start and result, verdict."""

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

#: Options on which only the verdict depends: for other values the verdict is made again.
_JUDGING = {"labelled", "groups", "price"}
#: Fields with which labels choose the best state or end the run; other labels then need another training.
_DECIDING = {"monitor.keep_best", "monitor.until"}
#: Number of images by which a verdict is made again, at most.
_MOST = 2000


class _Begun(pydantic.BaseModel):
    """What every record holds."""

    request: dict[str, Any]
    plan: list[str]
    domain: str
    compared: int


def read(out: Path, request: AdaptRequest, only_plan: bool) -> Record | None:
    """The record in `out`; None if nothing was trained there.

    It is without its verdict if this request judges in another way. A record of another request raises UserError, or,
    if this one is only to be planned, counts as none.
    """
    path = out / ADAPTATION
    if not path.is_file():
        return None
    record = parsing.read_json(path, "give another --out")
    try:
        _Begun.model_validate(record)
        if "table" in record:
            Adaptation.model_validate(record)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); give another --out") from None
    if (
        "table" not in record and not (out / CONFIG).is_file()
    ):  # not trained: perhaps with more time, or other options
        return None
    theirs = _options(record["request"])
    ours = _options(request.record)
    other = [name for name in dict.fromkeys([*theirs, *ours]) if theirs.get(name) != ours.get(name)]
    if not other:
        return dict(record)
    if set(other) <= _JUDGING and not ("labelled" in other and _DECIDING & request.fields.keys()):
        return _to_judge(record, request, by_price=other == ["price"])
    if only_plan:
        return None
    if "command" in other:
        raise UserError(
            f"{out} is of hexa {theirs['command']}, not {request.command}; give another --out"
        )
    listed = "; ".join(f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in other)
    raise UserError(
        f"{out} is of another command: {listed}; repeat that one, or give another --out"
    )


def _options(request: Record) -> Record:
    """All options of a request by name, with those of the experiment."""
    fields = request.get("fields")
    return request | {"fields": None} | (fields if isinstance(fields, dict) else {})


def _to_judge(record: Record, request: AdaptRequest, by_price: bool) -> Record:
    """The record of a trained run without its verdict. by_price: the images that judge are the same."""
    names = ("plan", "domain", "experiment", "compared")
    kept = {name: record[name] for name in names if name in record}
    if not by_price:
        kept["plan"] = [line for line in record["plan"] if not str(line).startswith("labels:")]
        kept["compared"] = _MOST
    return kept | {"request": request.record}


def write(out: Path, record: Mapping[str, Any]) -> None:
    """Store the record, atomically."""
    write_text(out / ADAPTATION, json.dumps(record, indent=1) + "\n")
