"""`hexa adapt`, and what `hexa harden` shares: look at images, plan, train, compare, export the better backbone."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from hexa.adaptation import wording
from hexa.adaptation.looking import FEWEST, all_whole, look
from hexa.adaptation.plan import Budget, Given, Plan, Say, first_draft, plan
from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import Judge, can_judge, labels_of, take_groups
from hexa.config import UserError
from hexa.data import Source, draw_part, open_source
from hexa.data.loading.loaders import check_batch_size
from hexa.data.sources.opening import SOURCES
from hexa.evaluation.collective import from_main
from hexa.evaluation.features import transform_of
from hexa.recipes import domains, experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.reporting.comparison import options
from hexa.reporting.tables import Table
from hexa.run.build import open_images
from hexa.run.folder import ADAPTATION, BACKBONE, CONFIG, REPORT, WINNER, is_ours, mine, way_on
from hexa.run.run import pretrain, resume
from hexa.runtime import parsing, precision, processes
from hexa.runtime.console import Console
from hexa.runtime.files import describe, write_text
from hexa.runtime.output import one_line
from hexa.runtime.progress import Progress, ProgressBar
from hexa.runtime.signals import Interrupted
from hexa.weights import start as starts
from hexa.weights.export import export
from hexa.weights.pretrained import Backbone, load_backbone

#: Options on which only the verdict depends: for other values the verdict is made anew.
_JUDGING = {"--labelled", "--groups", "--price"}
#: Number of images by which a verdict is made anew, at most.
_MOST = 2000
#: Fields with which labels choose the best state or end the run; a verdict is then not made anew.
_DECIDING = {"monitor.keep_best", "monitor.until"}
#: What ADAPTATION holds.
Record = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A run that has ended, with what start and result are compared on."""

    experiment: Experiment
    out: Path
    start: Backbone
    result: Backbone
    data: Source
    judging: Source
    """Labelled images, or `data` itself."""
    how: Extraction
    native: bool = True
    """Whether the start's features are taken at its own image size; else at the result's."""

    def sides(self) -> tuple[Backbone, Backbone]:
        """Start and result as they are compared."""
        if self.native:
            return self.start, self.result
        return self.start.prepared(size=self.result.image_size), self.result


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, with the better of start and result."""

    winner: Backbone
    verdict: str
    table: Table
    notes: Sequence[str]
    judged: bool
    """Whether labels were used."""
    record: Mapping[str, Any]
    """All numbers, for JSON."""


@dataclass(frozen=True)
class AdaptRequest:
    """What the user asks for; an output folder can only be continued with the same request."""

    backbone: str
    data: str
    labelled: str | None = None
    seconds: float = 1800.0
    domain: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    groups: str | None = None
    """Which of the labelled images were taken together, as for `CompareRequest`."""

    recipe: ClassVar = "adapt"
    command: ClassVar = "adapt"
    larger: ClassVar = 7 / 5
    """A result is for images of up to this many times the size of the views."""

    def __post_init__(self) -> None:
        if self.backbone.startswith("random:"):
            remedy = "give trained weights, or begin from random ones with hexa pretrain"
            raise UserError(
                f"{self.backbone}: random weights have no features to begin from; {remedy}"
            )
        if self.groups is not None and "monitor.data" in self.fields:
            raise UserError(
                "--groups are of the images of --labelled; give these instead of --monitor.data"
            )

    @property
    def record(self) -> dict[str, Any]:
        """The request as stored in the folder."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return given | {
            "command": self.command,
            "fields": {name: str(value) for name, value in self.fields.items()},
        }

    def of_domain(self, name: str) -> dict[str, Any]:
        """The fields of an experiment that a domain of images sets."""
        return domains.changes(name, self.fields)

    def plan(self, given: Given) -> Plan:
        """What fits the time; see `plan.plan`."""
        return plan(given)

    def outcome(self, trained: Trained, progress: Progress) -> Outcome:
        """Which of start and result is better on the images."""
        from hexa.comparison import page, verdict  # scipy and matplotlib, which a plan does without
        from hexa.comparison.compare import of_backbones
        from hexa.reporting.runs import read_run

        chosen = trained.experiment.monitor.keep_best == "knn"
        trials = max(1, chosen * sum("knn" in line for line in read_run(trained.out).monitor))
        start, result = trained.sides()
        sides = {"start": start, "result": result}
        found = of_backbones(sides, trained.data, trained.judging, trained.how, progress, trials)
        better = found.verdict.best == 1
        conclusion = f"{'it helped' if better else 'the start is kept'} "
        conclusion += f"({wording.sizes(start, result)}): {found.verdict.sentence}"
        table = verdict.table(found.sides, found.verdict)
        winner = trained.result if better else trained.start
        notes = list(found.notes)
        if not trained.native:
            notes.append(
                f"there was no time to compare the start at its own {trained.start.image_size} px"
            )
        if trained.experiment.training.report:  # the plan has time for pictures
            progress("drawing the comparison", 0, 0)
            try:
                notes.append(f"the nearest images: {page.write(found, trained.how, trained.out)}")
            except Exception as error:  # what is only for looking costs no verdict
                notes.append(
                    f"no page of the comparison: {type(error).__name__}: {one_line(str(error))}"
                )
        elif "training.report" not in self.fields:
            notes.append("no page of the comparison: --time was too short; hexa compare draws one")
        return Outcome(winner, conclusion, table, notes, found.judge is not None, found.record)


def adapt(
    request: AdaptRequest,
    out: Path,
    *,
    only_plan: bool = False,
    console: Console | None = None,
    begun: float | None = None,
    go_on: str = "the same command",
) -> Record:
    """Train `request.backbone` further on the images within the time, and say whether it helped.

    `out` becomes a run folder that also has ADAPTATION (plan, scores of start and result, verdict), the comparison at
    the top of its report, and WINNER, the better of the two for timm. If the time is not enough it has ADAPTATION
    alone. After an interruption, the same command continues. Under torchrun every process calls it; the main one plans
    and compares. only_plan: print the plan and write nothing. begun: when the time began, by `time.perf_counter`; now
    if not given. go_on: what an interruption says to do. Returns the contents of ADAPTATION, in other processes the
    plan. Raises UserError.
    """
    now = time.perf_counter()
    budget = (
        Budget(request.seconds, now, 0.0)
        if begun is None
        else Budget(request.seconds, begun, now - begun)
    )
    console = console or Console(stderr=True)
    processes.initialize(precision.pick_device(str(request.fields.get("training.device", "auto"))))
    main = processes.is_main()
    failed = True
    try:
        record, has_begun = from_main(lambda: _begin(request, out, only_plan, console, budget))
        if only_plan or "verdict" in record:
            return record
        if has_begun and "experiment" in record:  # else it is trained, and its verdict is made anew
            resume(out, console=console)  # the group of processes ends with it
        elif not has_begun:
            pretrain(experiments.validate(record["experiment"]), out, console=console)
        failed = False
    except UserError as error:
        error.speaks = main  # type: ignore[attr-defined]
        raise
    except Interrupted as stop:  # `hexa resume` would train, but not compare
        again = Interrupted(stop.number, stop.step, None, go_on)
        again.speaks = main
        raise again from None
    finally:
        processes.shutdown(failed)
    if not main:
        return record
    with mine(out):
        try:
            return _conclude(request, experiments.load(out / CONFIG), out, record, console)
        except (UserError, OSError) as error:
            why = describe(error) if isinstance(error, OSError) else str(error)
            kept = "the trained weights are kept; repeat the same command"
            raise UserError(f"{why}; {kept if out.is_dir() else way_on(out)}") from error


def _begin(
    request: AdaptRequest, out: Path, only_plan: bool, console: Console, budget: Budget
) -> tuple[Record, bool]:
    """The record so far, and whether training has begun. In the main process; says what was planned or found."""
    record = _read_record(out, request, only_plan)
    if record is None:
        if out.exists() and not only_plan:
            is_ours(out)  # raises, before the work, if something else is in the way
        with processes.alone(), starts.read_once():
            record = _planned(request, budget)
        console.print("\n".join(record["plan"]))
        if not only_plan:
            with mine(out):  # unless a training there is about to begin
                is_ours(out)  # raises if one has begun since
                _write(out, record)
    elif "verdict" in record:
        console.print(f"{out} is finished:")
        _say_verdict(record, out, console)
    elif only_plan:
        console.print("\n".join([f"{out} was begun by this plan:", *record["plan"]]))
    else:  # raises now if the start or the images that judge, perhaps others than before, are unsuitable
        experiment = experiments.load(out / CONFIG)
        starts.unchanged(experiment.start)
        _judging(request, open_images(experiment), experiment)
        with mine(out):
            _write(out, record)
    return record, (out / CONFIG).is_file()


def _planned(request: AdaptRequest, budget: Budget) -> Record:
    """Inspect the images, read the weights, measure and plan: the record to store."""
    say: Say = lambda line: Console(stderr=True).print(f"{line} …", style="dim")  # noqa: E731
    most, channels = map(request.fields.get, ("training.max_image_pixels", "network.channels"))
    say("looking at the images")
    source = open_source(
        request.data, "train", None if most is None else int(most), int(channels or 3)
    )
    images, seed = (int(request.fields.get(name) or 0) for name in ("images", "seed"))
    source = draw_part(source, images or None, seed)
    if len(source) < FEWEST:
        raise UserError(f"{source!r}: too few images to learn from; give at least {FEWEST}")
    draft = first_draft(request.recipe, request.backbone, request.data, len(source), request.fields)
    check_batch_size(draft.batch_size, len(source), repr(source))
    backbone = starts.of(draft.start)
    seen, pixels = look(source, backbone.image_size, limit=draft.training.max_corrupt_share)
    seen = replace(seen, domain=request.domain or seen.domain)
    changes = request.of_domain(seen.domain)
    judging = _judging(request, source, draft)
    changes |= {} if judging is source else {"monitor.data": draft.monitor.data or request.labelled}
    labelled = judging if can_judge(judging.classes) else None
    given = Given(
        override(draft, changes), source, seen, pixels, labelled, budget, request.fields, say
    )
    made = request.plan(
        replace(given, larger=request.larger if given.may_shrink(backbone) else 1.0)
    )
    record: Record = {
        "request": request.record,
        "plan": [*made.lines, *dict.fromkeys([*source.notes(), *judging.notes()])],
        "compared": made.compared,
        "native": made.native,
        "fingerprints": {"--data": source.fingerprint, "--labelled": judging.fingerprint},
    }
    record["domain"] = seen.domain
    if made.experiment is None:
        return record | {"verdict": made.lines[-1], "kept": "start"}
    return record | {"experiment": made.experiment.model_dump(mode="json")}


def _conclude(
    request: AdaptRequest, experiment: Experiment, out: Path, record: Record, console: Console
) -> Record:
    """Compare start and result, export the winner, and write the record and the report."""
    start = starts.unchanged(experiment.start)
    result = load_backbone(out / BACKBONE)
    data = open_images(experiment)
    judging = _judging(request, data, experiment)
    most = record["compared"]
    settings = Extraction(seconds=math.inf, most=most, seed=experiment.seed)
    settings = replace(
        settings, device=experiment.training.device, num_workers=experiment.training.num_workers
    )
    with ProgressBar(Console(stderr=True)) as progress:
        found = request.outcome(
            Trained(experiment, out, start, result, data, judging, settings, record["native"]),
            progress,
        )
    notes = [*found.notes, *_changed(record, data, judging)]
    done = int(result.info["step"])
    clock = experiment.training.max_seconds and not experiment.monitor.knn_every
    if clock and done < 0.9 * (experiment.max_steps or 0):
        notes.append(
            f"only {done:,} of {experiment.max_steps:,} planned steps fitted: they were slower than timed"
        )
    if found.judged and judging is data:
        notes.append(
            "the images that judge were also learned from, which overstates a gain; --labelled gives others"
        )
    if not (out / CONFIG).is_file():  # which export would make again
        raise UserError(f"{out / CONFIG}: no such file")
    # timm would cut the edges of images off that were taken whole
    winner = found.winner.prepared(
        crop=1.0 if all_whole(transform_of(found.winner), data, judging) else None
    )
    winner.preparation = replace(winner.preparation, origins={})  # from here on its file's own
    load = str(export(winner, "timm", (out / WINNER).resolve())["load"])
    record = {
        **{name: value for name, value in record.items() if name != "experiment"},
        "verdict": found.verdict,
        "kept": "start" if found.winner is start else "result",
        "table": {"header": found.table.header, "rows": found.table.rows},
        "comparison": found.record,
        "notes": notes,
        "winner": {"file": WINNER, "load": load, "size": found.winner.image_size},
    }
    (out / REPORT).unlink(missing_ok=True)  # the training's own
    _write(out, record)
    Console().print(found.table.terminal())
    for line in notes:
        console.print(line)
    _say_verdict(record, out, console)
    return record


def _changed(record: Record, data: Source, judging: Source) -> list[str]:
    """A note for --data and --labelled if their images are not those of the plan."""
    planned = record.get("fingerprints", {})
    sources = {"--data": data} if judging is data else {"--data": data, "--labelled": judging}
    return [
        f"the images of {name} changed after the plan; scores are those of the {len(one):,} current images"
        for name, one in sources.items()
        if planned.get(name, one.fingerprint) != one.fingerprint
    ]


def _say_verdict(record: Mapping[str, Any], out: Path, console: Console) -> None:
    """The verdict, and what to look at and load."""
    console.print(record["verdict"], style="bold")
    if "winner" not in record:  # the time was not enough to train
        return
    winner = record["winner"]
    if not (out / REPORT).exists():
        from hexa.reporting.report import report  # what a plan does without: matplotlib

        report([out], out / REPORT)
    console.print(f"report: {out / REPORT}")
    console.print(f"the winner, the {record['kept']} at {winner['size']} px, is loaded by")
    console.print(winner["load"])
    if "pretrained=True" in winner["load"]:
        console.print(
            "for fine-tuning, replace the first num_classes=0 with your number of classes"
        )


def _judging(request: AdaptRequest, data: Source, experiment: Experiment) -> Source:
    """The images that judge, perhaps those that are learned from, in their groups. Raises UserError."""
    named = experiment.monitor.data if "monitor.data" in request.fields else request.labelled
    judging = (
        data
        if named is None or _place(named) == _place(request.data)
        else _opened(experiment, named)
    )
    if request.labelled is not None:
        Judge(labels_of(judging))
    take_groups(judging, request.groups)
    return judging


def _opened(experiment: Experiment, name: str) -> Source:
    return open_source(
        name, "train", experiment.training.max_image_pixels, experiment.network.channels
    )


def _write(out: Path, record: Mapping[str, Any]) -> None:
    write_text(out / ADAPTATION, json.dumps(record, indent=1) + "\n")


def _place(value: str | None) -> str | None:
    """The real path of a folder or file, with folder: or without, so that spellings agree; other values as they are."""
    path = os.path.expanduser((value or "").removeprefix("folder:"))
    return os.path.realpath(path) if os.path.exists(path) and value not in SOURCES else value


def _read_record(out: Path, request: AdaptRequest, only_plan: bool) -> Record | None:
    """The record of an adaptation in `out`, or None; without its verdict where this request judges in another way. One
    of another request raises UserError, or, if this one is only to be planned, counts as none.
    """
    path = out / ADAPTATION
    if not path.is_file():
        return None
    try:
        record = parsing.from_json(parsing.read_text(path, parsing.MOST_JSON))
        if "table" in record:
            _ = (
                f"{record['winner']['size']:d}",
                record["winner"]["load"],
                record["kept"],
                record["verdict"].upper(),
            )
        plan = [line for line in record["plan"] if not line.startswith("labels:")]
        _ = record["domain"]
        _ = record["compared"], record["native"], record.get("fingerprints", {}).values()
        theirs = options(record["request"])
        ours = options(request.record)
        command = record["request"]["command"]
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give another --out") from None
    if (
        "table" not in record and not (out / CONFIG).is_file()
    ):  # not trained: perhaps with more time, or other options
        return None
    if command != request.command:
        raise UserError(
            f"{out} is of hexa {command}, not of hexa {request.command}; give another --out"
        )
    other = {
        name: f"{name} {theirs.get(name, 'none')}, not {ours.get(name, 'none')}"
        for name in dict.fromkeys((*theirs, *ours))
        if _place(theirs.get(name)) != _place(ours.get(name))
    }
    if other and other.keys() <= _JUDGING - (
        {"--labelled"} if _DECIDING & request.fields.keys() else set()
    ):
        kept = {
            name: record[name]
            for name in ("plan", "domain", "experiment", "compared", "native")
            if name in record
        }
        if other.keys() != {"--price"}:  # by other images
            kept = {**kept, "plan": plan, "compared": _MOST}
        return kept | {"request": request.record}
    if other and not only_plan:
        listed = "; ".join(other.values())
        raise UserError(
            f"{out} is of another command: {listed}; repeat that one, or give another --out"
        )
    return None if other else cast(Record, record)
