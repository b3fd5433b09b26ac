"""`hexa adapt`: look, plan, train, compare, hand over."""

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

from hexa import experiment as experiments
from hexa.adaptation import verdict
from hexa.adaptation.looking import Seen, look
from hexa.adaptation.plan import Plan, first_draft, plan
from hexa.assembly.build import Machine
from hexa.config import UserError
from hexa.core import Method
from hexa.data import Source, open_source
from hexa.experiment import Experiment, override
from hexa.nn import start as starts
from hexa.nn.export import export
from hexa.nn.pretrained import Backbone, load_backbone
from hexa.reporting.report import report
from hexa.runtime import parsing
from hexa.runtime.console import Console
from hexa.runtime.files import write_whole
from hexa.session.folder import ADAPTATION, BACKBONE, CONFIG, REPORT, is_ours
from hexa.session.knn_monitor import KnnMonitor, without_holdout
from hexa.session.run import pretrain, resume

#: The better of start and result, as timm reads it.
WINNER = "winner.safetensors"
#: Labelled images in the comparison, at most and at least, and the share of the time that one pass over them may take.
_MOST, _LEAST, _SHARE = 2000, 200, 0.02
#: Images kept for the scores, and the largest share of all.
_HELD, _HELD_SHARE = 500, 0.2
#: Seconds to import torch before and to write the report after all that is measured.
_END = 8.0


@dataclass(frozen=True)
class Request:
    """What the user asked for; a folder goes on with the same request only."""

    backbone: str
    data: str
    labelled: str | None = None
    seconds: float = 1800.0
    domain: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """As it is kept in the folder."""
        return {name: getattr(self, name) for name in ("backbone", "data", "labelled", "seconds", "domain")} | {
            "fields": {name: str(value) for name, value in self.fields.items()}
        }


def adapt(request: Request, out: Path, *, only_plan: bool = False, console: Console | None = None) -> dict[str, Any]:
    """Train `request.backbone` further on its images within its time, and say whether it helped.

    `out` becomes a run folder, with ADAPTATION (plan, both sides' scores, verdict) beside what a run holds, the
    comparison first in its report, and WINNER, the better of the two for timm. Interrupted, the same command goes on.
    only_plan: say the plan, and write nothing. Returns what ADAPTATION holds. Raises UserError.
    """
    console = console or Console(stderr=True)
    say: Callable[[str], None] = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731
    kept = _kept(out, request)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("hexa adapt runs in one process; on several use hexa pretrain adapt --start BACKBONE")
    if kept is None and out.exists():
        is_ours(out)  # refuses what is in the way, before the work
    if kept is None:
        begin = time.perf_counter()
        prepared = _Prepared.of(request)
        planned, kept = prepared.plan(begin)
        for line in planned.lines:
            say(line)
        if only_plan:
            return kept
        out.mkdir(parents=True, exist_ok=True)
        _write(out, kept)
        experiment = planned.experiment
        pretrain(experiment, out, console=console)
    else:
        if "verdict" in kept:
            say(f"{out} is finished: {kept['verdict']}")
            return kept
        if (out / CONFIG).is_file():
            experiment = experiments.load(out / CONFIG)
            resume(out, console=console)
        else:
            experiment = experiments.validate(kept["experiment"])
            pretrain(experiment, out, console=console)
    return _compared(experiment, out, kept, say)


@dataclass(frozen=True)
class _Prepared:
    """A request with its images looked at and its weights read."""

    request: Request
    draft: Experiment
    source: Source
    seen: Seen
    scored: bool
    """Whether there are labels to score by."""

    @classmethod
    def of(cls, request: Request) -> _Prepared:
        given = request.fields.get("training.max_image_pixels")
        most, channels = None if given is None else int(given), int(request.fields.get("network.channels", 3))
        source = open_source(request.data, None if "#" in request.data else "train", most, channels)
        seen = look(source)
        draft = first_draft(request.backbone, request.data, seen, request.domain, request.fields)
        scored = request.labelled or (request.data if seen.classes > 1 else None)
        changes: dict[str, Any] = {"monitor.holdout": round(min(_HELD_SHARE, _HELD / len(source)), 4)}
        if scored is not None:
            changes |= {"monitor.keep_best": "knn"}
        if request.labelled is not None:
            changes |= {"monitor.data": request.labelled}
            verdict.labelled_images(_opened(draft, request.labelled), _MOST, [])  # says now what is wrong with it
        changes = {name: value for name, value in changes.items() if name not in request.fields}
        return cls(request, override(draft, changes), source, seen, scored is not None)

    def plan(self, begin: float) -> tuple[Plan, dict[str, Any]]:
        """The plan, and what is to be kept. The start is scored once to know what a score takes."""
        images, _ = without_holdout(self.draft, self.source)
        labelled = 3 * _SHARE * self.request.seconds if self.scored else 0.0  # both sides, twice if of two sizes
        spent = time.perf_counter() - begin + labelled + _END
        planned = plan(self.draft, images, self.seen, self.request.seconds, spent, _start_scored, self.request.fields)
        record = {
            "request": self.request.record,
            "plan": list(planned.lines),
            "experiment": planned.experiment.model_dump(mode="json"),
        }
        return planned, record


def _compared(experiment: Experiment, out: Path, kept: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Start and result side by side; the winner exported; all of it written down."""
    start = starts.read(experiment.start.weights or "")
    # both resized alike: that alone is worth a point on small images
    result = load_backbone(out / BACKBONE, crop=start.preparation.crop, interpolation=start.preparation.interpolation)
    sides = {"start": _start_scored(experiment), "result": _monitor(result.network, experiment)()}
    notes: list[str] = []
    best = _by_labels(experiment, start, result, kept["request"]["seconds"], notes)
    labels = None if best is None else (best[0].labels, best[1].labels)
    if labels is not None:
        better, said = verdict.by_labels(*labels)
    else:
        better, said = verdict.without_labels(sides["start"], sides["result"])
    rows = verdict.table(sides["start"], sides["result"], labels)
    winner = (start, result)[better] if best is None else best[better].backbone
    checked = export(winner, "timm", out / WINNER)
    kept = {
        **{name: value for name, value in kept.items() if name != "experiment"},
        "verdict": said,
        "kept": "result" if better else "start",
        "table": {"header": ["", "start", "result", f"difference ({verdict.INTERVAL})"], "rows": rows},
        "scores": sides,
        "notes": notes,
        "winner": {"file": WINNER, "load": str(checked["load"])},
    }
    _write(out, kept)
    for row in [kept["table"]["header"], *rows]:
        say(f"{row[0]:28} {row[1]:>14} {row[2]:>14} {row[3]:>18}")
    for line in [*notes, said, f"the winner, for timm: {out / WINNER}"]:
        say(line)
    report([out], out / REPORT)
    return kept


def _by_labels(
    experiment: Experiment, start: Backbone, result: Backbone, seconds: float, notes: list[str]
) -> tuple[_Side, _Side] | None:
    """Both sides on labelled images that had no part in choosing the state; None where there are none.

    Both are measured at the size that the start was trained at and at that of the run, and stand with the better.
    """
    if _opened(experiment, experiment.monitor.data or experiment.data).classes is None:
        return None
    machine = Machine.of(experiment)
    sizes = sorted({start.image_size, result.image_size})
    voting, _ = _monitor(start.network, experiment).parts()
    rate = _images_per_second(next(_at(start, sizes[::-1])), machine.device)
    images = verdict.labelled_images(voting, int(min(_MOST, max(_LEAST, _SHARE * seconds * rate))), notes)

    def side(backbone: Backbone) -> _Side:
        found = [
            _Side(fed, verdict.measured(fed, images, machine.device, experiment.seed)) for fed in _at(backbone, sizes)
        ]
        return max(found, key=lambda one: one.labels.knn)

    sides = side(start), side(result)
    if len(sizes) > 1:
        best = " and ".join(f"{one.backbone.image_size} px" for one in sides)
        notes.append(f"measured at {' and '.join(map(str, sizes))} px: start and result do best at {best}")
    return sides


@dataclass(frozen=True)
class _Side:
    """Start or result, fed with images of the size that suits it best."""

    backbone: Backbone
    labels: verdict.Labelled


def _at(backbone: Backbone, sizes: list[int]) -> Iterator[Backbone]:
    """The backbone fed with images of each of these sizes; of those that it takes."""
    for size in sizes:
        with contextlib.suppress(UserError):  # a ViT of one size
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


def _start_scored(experiment: Experiment) -> dict[str, float]:
    """What the monitor of the run says of its start, at the size of the run."""
    return _monitor(starts.begun(experiment.network, experiment.start), experiment)()


def _monitor(network: nn.Module, experiment: Experiment) -> KnnMonitor:
    machine = Machine.of(experiment)
    network = network.to(machine.device)
    images, held = without_holdout(experiment, _opened(experiment, experiment.data))
    method = cast(Method, SimpleNamespace(backbone=network, eval=network.eval))
    made = KnnMonitor.of(experiment, images, method, machine, held)
    assert made is not None, "an adaptation measures without labels at least"
    return made


def _opened(experiment: Experiment, name: str) -> Source:
    split = None if "#" in name else "train"
    return open_source(name, split, experiment.training.max_image_pixels, experiment.network.channels)


def _write(out: Path, kept: Mapping[str, Any]) -> None:
    text = json.dumps(kept, indent=1) + "\n"
    write_whole(out / ADAPTATION, lambda file: file.write(text.encode()))


def _kept(out: Path, request: Request) -> dict[str, Any] | None:
    """What an adaptation in `out` has come to; None if there is none. Raises UserError for one of another request."""
    path = out / ADAPTATION
    if not path.is_file():
        return None
    try:
        found = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
        record, before, _ = request.record, found["request"], found.get("verdict") or found["experiment"]
        other = [name for name in record if record[name] != before.get(name)]
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give another --out") from None
    if other:
        raise UserError(
            f"{out} holds an adaptation with another {', '.join(other)}; repeat its command, or give another --out"
        )
    return cast(dict[str, Any], found)
