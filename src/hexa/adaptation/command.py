"""`hexa adapt`: inspects images, plans, trains, compares, and exports the better backbone."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from hexa.adaptation import verdict
from hexa.adaptation.looking import Seen, look
from hexa.adaptation.plan import Plan, first_draft, plan
from hexa.config import UserError
from hexa.core import Method
from hexa.data import Source, open_source
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.comparison import adaptation
from hexa.reporting.report import report
from hexa.run.build import Machine
from hexa.run.folder import ADAPTATION, BACKBONE, CONFIG, REPORT, is_ours
from hexa.run.monitor import KnnMonitor, without_holdout
from hexa.run.run import pretrain, resume
from hexa.runtime import parsing
from hexa.runtime.console import Console
from hexa.runtime.files import write_text
from hexa.runtime.signals import Interrupted
from hexa.weights import start as starts
from hexa.weights.export import export
from hexa.weights.pretrained import Backbone, load_backbone

#: The better of start and result, for timm.
WINNER = "winner.safetensors"
#: Most and fewest labelled images in the comparison, and the share of the time that one pass over them may take.
_MOST, _LEAST, _SHARE = 2000, 200, 0.02
#: Images held out for scores, and their largest share of all images.
_HELD, _HELD_SHARE = 500, 0.2
#: Seconds to import torch and to write the report, which are not measured.
_END = 8.0


@dataclass(frozen=True)
class AdaptRequest:
    """What the user asks for; an output folder can only be continued with the same request."""

    backbone: str
    data: str
    labelled: str | None = None
    seconds: float = 1800.0
    domain: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The request as stored in the folder."""
        return {name: getattr(self, name) for name in ("backbone", "data", "labelled", "seconds", "domain")} | {
            "fields": {name: str(value) for name, value in self.fields.items()}
        }


def adapt(
    request: AdaptRequest, out: Path, *, only_plan: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Train `request.backbone` further on the images within the time, and say whether it helped.

    `out` becomes a run folder that also has ADAPTATION (plan, scores of start and result, verdict), the comparison at
    the top of its report, and WINNER, the better of the two for timm. After an interruption, the same command
    continues. only_plan: print the plan and write nothing. Returns the contents of ADAPTATION. Raises UserError.
    """
    console = console or Console(stderr=True)
    say: Callable[[str], None] = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731
    record = _read_record(out, request)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("hexa adapt runs in one process; for several use hexa pretrain adapt --start BACKBONE")
    if record is None:
        if out.exists():
            is_ours(out)  # raises, before the work, if something else is in the way
        begin = time.perf_counter()
        planned, record = _Prepared.of(request).plan(begin)
        for line in planned.lines:
            say(line)
        if only_plan:
            return record
        out.mkdir(parents=True, exist_ok=True)
        _write(out, record)
    elif "verdict" in record:
        say(f"{out} is finished: {record['verdict']}")
        return record
    begun = (out / CONFIG).is_file()
    experiment = experiments.load(out / CONFIG) if begun else experiments.validate(record["experiment"])
    try:
        if begun:
            resume(out, console=console)
        else:
            pretrain(experiment, out, console=console)
    except Interrupted as stop:  # `hexa resume` would train, but not compare
        raise Interrupted(stop.number, stop.step, None, "the same command") from None
    return _compare(experiment, out, record, say)


@dataclass(frozen=True)
class _Prepared:
    """A request whose images are inspected and whose weights are read."""

    request: AdaptRequest
    draft: Experiment
    source: Source
    seen: Seen
    scored: bool
    """Whether there are labels to score by."""

    @classmethod
    def of(cls, request: AdaptRequest) -> _Prepared:
        most = request.fields.get("training.max_image_pixels")
        channels = int(request.fields.get("network.channels", 3))
        source = open_source(request.data, "train", None if most is None else int(most), channels)
        seen = look(source)
        draft = first_draft(request.backbone, request.data, seen, request.domain, request.fields)
        scored = request.labelled or (request.data if seen.classes > 1 else None)
        changes: dict[str, Any] = {"monitor.holdout": round(min(_HELD_SHARE, _HELD / len(source)), 4)}
        if scored is not None:
            changes |= {"monitor.keep_best": "knn"}
        if request.labelled is not None:
            changes |= {"monitor.data": request.labelled}
            verdict.labelled_images(_opened(draft, request.labelled), _MOST, [])  # raises now if they are unsuitable
        changes = {name: value for name, value in changes.items() if name not in request.fields}
        return cls(request, override(draft, changes), source, seen, scored is not None)

    def plan(self, begin: float) -> tuple[Plan, dict[str, Any]]:
        """The plan, and the record to store. The start is scored once to measure how long a score takes."""
        images, _ = without_holdout(self.draft, self.source)
        labelled = 3 * _SHARE * self.request.seconds if self.scored else 0.0  # start and result, perhaps at two sizes
        spent = time.perf_counter() - begin + labelled + _END
        planned = plan(self.draft, images, self.seen, self.request.seconds, spent, _score_start, self.request.fields)
        record = {
            "request": self.request.record,
            "plan": list(planned.lines),
            "experiment": planned.experiment.model_dump(mode="json"),
        }
        return planned, record


def _compare(experiment: Experiment, out: Path, record: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Compare start and result, export the winner, and write the record and the report."""
    start = starts.read(experiment.start.weights or "")
    # both must resize images the same way: that alone is worth a point on small images
    result = load_backbone(out / BACKBONE, crop=start.preparation.crop, interpolation=start.preparation.interpolation)
    sides = {"start": _score_start(experiment), "result": _monitor(result.network, experiment)()}
    notes: list[str] = []
    best = _by_labels(experiment, start, result, record["request"]["seconds"], notes)
    labels = None if best is None else (best[0].labels, best[1].labels)
    if labels is not None:
        better, conclusion = verdict.by_labels(*labels)
    else:
        better, conclusion = verdict.without_labels(
            sides["start"], sides["result"], (start.image_size, result.image_size)
        )
    rows = verdict.table(sides["start"], sides["result"], labels)
    winner = (start, result)[better] if best is None else best[better].backbone
    checked = export(winner, "timm", out / WINNER)
    record = {
        **{name: value for name, value in record.items() if name != "experiment"},
        "verdict": conclusion,
        "kept": "result" if better else "start",
        "table": {"header": ["", "start", "result", f"difference ({verdict.INTERVAL})"], "rows": rows},
        "scores": sides,
        "notes": notes,
        "winner": {"file": WINNER, "load": str(checked["load"])},
    }
    _write(out, record)
    for row in [record["table"]["header"], *rows]:
        say(f"{row[0]:28} {row[1]:>14} {row[2]:>14} {row[3]:>18}")
    for line in [*notes, conclusion, f"the winner, for timm: {out / WINNER}"]:
        say(line)
    report([out], out / REPORT)
    return record


def _by_labels(
    experiment: Experiment, start: Backbone, result: Backbone, seconds: float, notes: list[str]
) -> tuple[_Side, _Side] | None:
    """Start and result on labelled images that had no part in choosing the state; None without labels.

    Both are measured at the size the start was trained at and at that of the run; the better one counts.
    """
    if _opened(experiment, experiment.monitor.data or experiment.data).classes is None:
        return None
    machine = Machine.of(experiment)
    sizes = sorted({start.image_size, result.image_size})
    voting, _ = _monitor(start.network, experiment).parts()
    rate = _images_per_second(next(_at_sizes(start, sizes[::-1])), machine.device)
    images = verdict.labelled_images(voting, int(min(_MOST, max(_LEAST, _SHARE * seconds * rate))), notes)

    def best_side(backbone: Backbone) -> _Side:
        at_sizes = _at_sizes(backbone, sizes)
        sides = [_Side(one, verdict.measured(one, images, machine.device, experiment.seed)) for one in at_sizes]
        return max(sides, key=lambda side: side.labels.knn)

    sides = best_side(start), best_side(result)
    if len(sizes) > 1:
        best = " and ".join(f"{side.backbone.image_size} px" for side in sides)
        notes.append(f"measured at {' and '.join(map(str, sizes))} px: start and result are best at {best}")
    return sides


@dataclass(frozen=True)
class _Side:
    """Start or result at its best image size."""

    backbone: Backbone
    labels: verdict.Labelled


def _at_sizes(backbone: Backbone, sizes: list[int]) -> Iterator[Backbone]:
    """The backbone at each of these image sizes that it supports."""
    for size in sizes:
        with contextlib.suppress(UserError):  # a ViT of a fixed size
            yield backbone if size == backbone.image_size else backbone.prepared(size=size)


def _images_per_second(backbone: Backbone, device: torch.device) -> float:
    size = backbone.image_size
    pixels = torch.rand(16, backbone.network_config.channels, size, size, device=device)
    backbone.to(device)
    with torch.no_grad():
        backbone(pixels)
        begin = time.perf_counter()
        backbone(pixels).sum().item()
    return len(pixels) / max(time.perf_counter() - begin, 1e-6)


def _score_start(experiment: Experiment) -> dict[str, float]:
    """The run's monitor, applied to its start at the size of the run."""
    return _monitor(starts.begun(experiment.network, experiment.start), experiment)()


def _monitor(network: nn.Module, experiment: Experiment) -> KnnMonitor:
    machine = Machine.of(experiment)
    network = network.to(machine.device)
    images, held = without_holdout(experiment, _opened(experiment, experiment.data))
    method = cast(Method, SimpleNamespace(backbone=network, eval=network.eval))
    monitor = KnnMonitor.of(experiment, images, method, machine, held)
    assert monitor is not None, "an adaptation always measures without labels"
    return monitor


def _opened(experiment: Experiment, name: str) -> Source:
    return open_source(name, "train", experiment.training.max_image_pixels, experiment.network.channels)


def _write(out: Path, record: Mapping[str, Any]) -> None:
    write_text(out / ADAPTATION, json.dumps(record, indent=1) + "\n")


def _read_record(out: Path, request: AdaptRequest) -> dict[str, Any] | None:
    """The record of an adaptation in `out`, or None. Raises UserError if it is of another request."""
    path = out / ADAPTATION
    if not path.is_file():
        return None
    try:
        record = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
        theirs, _ = record["request"], record.get("verdict") or record["experiment"]
        same, given = theirs == request.record, " ".join(adaptation(theirs))
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give another --out") from None
    if not same:
        raise UserError(f"{out} is of another command: {given} --out {out}; repeat that one, or give another --out")
    return cast(dict[str, Any], record)
