"""`hexa adapt` and `hexa harden`: inspect images, plan, train, evaluate, export the better backbone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.adaptation import record as records, wording
from hexa.adaptation.given import Budget, Given, Say, first_draft
from hexa.adaptation.looking import FEWEST, all_whole, look
from hexa.adaptation.record import Record
from hexa.adaptation.request import AdaptRequest, Outcome, Trained
from hexa.comparison.extraction import Extraction
from hexa.comparison.labelled import Judge, can_judge, labels_of, take_groups
from hexa.config import UserError
from hexa.data import Source, open_source
from hexa.data.loading.loaders import check_batch_size
from hexa.data.sources.source import digest
from hexa.evaluation.features import transform_of
from hexa.recipes import experiment as experiments
from hexa.recipes.experiment import Experiment, override
from hexa.run.build import open_images
from hexa.run.folder import is_ours, mine, way_on
from hexa.run.names import BACKBONE, CONFIG, REPORT, WINNER
from hexa.run.run import pretrain, resume
from hexa.runtime import precision, processes
from hexa.runtime.console import Console, ProgressBar
from hexa.runtime.files import describe
from hexa.runtime.processes import from_main
from hexa.runtime.signals import Interrupted
from hexa.weights import start as starts
from hexa.weights.export import export, is_own
from hexa.weights.pretrained import load_backbone

#: A note warns about slow steps if fewer than this share of the planned steps was done.
_SLOW = 0.9


def adapt(
    request: AdaptRequest,
    out: Path,
    *,
    only_plan: bool = False,
    console: Console | None = None,
    begun: float | None = None,
    go_on: str = "the same command",
) -> Record:
    """Continue training `request.backbone` on the images within the time limit, and evaluate the result.

    `out` becomes a run folder with three additions: ADAPTATION (plan, scores, verdict), WINNER (the better weights, for
    timm), and the comparison at the top of the report. If the time is too short, the folder has ADAPTATION alone. After
    an interruption, the same command continues. Under torchrun, every process calls this function; rank 0 plans and
    evaluates.
    only_plan: print the plan and write nothing. begun: start of the time limit, by `time.perf_counter` (default: now).
    go_on: the command that an interruption names. Returns the contents of ADAPTATION on rank 0 and the plan on other
    ranks. Raises UserError.
    """
    budget = Budget(request.seconds, time.perf_counter() if begun is None else begun)
    console = console or Console(stderr=True)
    processes.initialize(precision.pick_device(str(request.fields.get("training.device", "auto"))))
    main = processes.is_main()
    failed = True
    try:
        record, has_begun = from_main(lambda: _begin(request, out, only_plan, console, budget))
        if only_plan or "verdict" in record:
            return record
        if has_begun and "experiment" in record:  # without it, training has ended
            resume(out, console=console)  # ends the group of processes
        elif not has_begun:
            pretrain(experiments.validate(record["experiment"]), out, console=console)
        failed = False
    except UserError as error:
        error.speaks = main  # type: ignore[attr-defined]
        raise
    except Interrupted as stop:  # `hexa resume` would train without a verdict
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
    """Read or make the record, print its plan or verdict, and return it; the second value is True if training has begun.

    Runs on rank 0 alone.
    """
    record = records.read(out, request, only_plan)
    if (
        record is not None
        and "verdict" in record
        and not only_plan
        and _has_new_labels(request, out, record, console)
    ):
        record = records.to_judge(record, request)
    if record is None:
        if out.exists() and not only_plan:
            is_ours(out)  # raises before the work if the folder holds something else
        with processes.alone(), starts.read_once():
            record = _planned(request, budget)
        console.print("\n".join(record["plan"]))
        if not only_plan:
            with mine(out):  # unless a training there is about to begin
                is_ours(out)  # raises if one has begun since
                records.write(out, record)
    elif "verdict" in record:
        console.print(f"{out} is finished:")
        _say_verdict(record, out, console)
    elif only_plan:
        console.print("\n".join([f"{out} has begun with this plan:", *record["plan"]]))
    else:  # raises now if the initial weights or the labelled images, which may be new, are unsuitable
        experiment = experiments.load(out / CONFIG)
        starts.unchanged(experiment.start)
        _judging(request, open_images(experiment), experiment)
        with mine(out):
            records.write(out, record)
    return record, (out / CONFIG).is_file()


def _has_new_labels(request: AdaptRequest, out: Path, record: Record, console: Console) -> bool:
    """Return True if the labelled images of a finished run have changed since its verdict, and print other changes."""
    try:
        experiment = experiments.load(out / CONFIG)
        data = open_images(experiment)
        judging = _judging(request, data, experiment)
    except (UserError, OSError):  # without images, the verdict stands
        return False
    prints = record.get("fingerprints", {})
    content = _content(judging)
    if can_judge(judging.classes) and prints.get("--labelled", content) != content:
        console.print(
            "the labelled images or their groups have changed: computing the verdict again"
        )
        return True
    if prints.get("--data", data.fingerprint) != data.fingerprint:
        console.print(
            "the images of --data have changed; to train on the current ones, give another --out"
        )
    return False


def _content(judging: Source) -> str:
    """Return a digest of the labelled images and their groups."""
    groups = judging.groups()
    return judging.fingerprint if groups is None else digest(judging.fingerprint, groups.tobytes())


def _planned(request: AdaptRequest, budget: Budget) -> Record:
    """Inspect the images, read the weights, time some steps, plan, and return the record to store."""
    say: Say = lambda line: Console(stderr=True).print(f"{line} …", style="dim")  # noqa: E731
    fields = request.fields
    say("looking at the images")
    source = _images(request)
    draft = first_draft(request.recipe, request.backbone, request.data, len(source), fields)
    check_batch_size(draft.batch_size, len(source), repr(source))
    backbone = starts.of(draft.start)
    seen, pixels = look(source, backbone.image_size, limit=draft.training.max_corrupt_share)
    seen = replace(seen, domain=request.domain or seen.domain)
    changes = request.of_domain(seen.domain)
    judging = _judging(request, source, draft)
    if judging is not source:
        changes["monitor.data"] = draft.monitor.data or request.labelled
    labelled = judging if can_judge(judging.classes) else None
    draft = override(draft, changes)
    given = Given(draft, source, seen, pixels, labelled, budget, fields, say)
    if given.may_shrink(backbone):
        given = replace(given, larger=request.larger)
    made = request.plan(given)
    record: Record = {
        "request": request.record,
        "plan": [*made.lines, *dict.fromkeys([*source.notes(), *judging.notes()])],
        "compared": made.compared,
        "domain": seen.domain,
        "fingerprints": {"--data": source.fingerprint, "--labelled": _content(judging)},
    }
    if made.experiment is None:
        return record | {"verdict": made.lines[-1], "kept": "start"}
    return record | {"experiment": made.experiment.model_dump(mode="json")}


def _images(request: AdaptRequest) -> Source:
    """Return the training images. Raises UserError if there are too few."""
    given = {"data": request.data, "start.weights": request.backbone, **request.fields}
    source = open_images(override(recipes.get(request.recipe), given))
    if len(source) < FEWEST:
        raise UserError(f"{source!r}: too few images to learn from; give at least {FEWEST}")
    return source


def _conclude(
    request: AdaptRequest, experiment: Experiment, out: Path, record: Record, console: Console
) -> Record:
    """Evaluate initial weights and result, export the better weights, and write the record and the report."""
    training = experiment.training
    data = open_images(experiment)
    how = Extraction(
        seconds=math.inf,
        most=record["compared"],
        seed=experiment.seed,
        device=training.device,
        num_workers=training.num_workers,
    )
    trained = Trained(
        experiment,
        out,
        start=starts.unchanged(experiment.start),
        result=load_backbone(out / BACKBONE),
        data=data,
        judging=_judging(request, data, experiment),
        how=how,
    )
    with ProgressBar(Console(stderr=True)) as progress:
        found = request.outcome(trained, progress)
    if not (out / CONFIG).is_file():  # export would create the folder again
        raise UserError(f"{out / CONFIG}: no such file")
    notes = [*found.notes, *_notes(trained, found, record)]
    prints = record.get("fingerprints", {}) | {"--labelled": _content(trained.judging)}
    record = {
        **{name: value for name, value in record.items() if name != "experiment"},
        "plan": _with_labels(record, trained),
        "fingerprints": prints,
        "verdict": found.verdict,
        "kept": "start" if found.winner is trained.start else "result",
        "table": {"header": found.table.header, "rows": found.table.rows},
        "comparison": found.record,
        "notes": notes,
        "winner": _export(trained, found),
    }
    (out / REPORT).unlink(missing_ok=True)  # written by the training
    records.write(out, record)
    Console().print(found.table.terminal())
    for line in notes:
        console.print(line)
    _say_verdict(record, out, console)
    return record


def _with_labels(record: Record, trained: Trained) -> list[str]:
    """Return the lines of the plan, with a line on the labelled images if they are not those of the plan."""
    plan: list[str] = record["plan"]
    if any(line.startswith(records.LABELS) for line in plan):
        return plan
    judging = trained.judging
    if not can_judge(judging.classes):
        return [*plan, f"{records.LABELS} none"]
    compared = min(record["compared"], len(judging))
    new = [note for note in judging.notes() if note not in plan]
    return [*plan, wording.labels(judging, trained.data, compared), *new]


def _notes(trained: Trained, found: Outcome, record: Record) -> list[str]:
    """Return notes on slow steps, on labelled images that were also trained on, and on images that have changed."""
    experiment = trained.experiment
    notes = []
    done = int(trained.result.info["step"])
    planned = experiment.max_steps or 0
    by_clock = experiment.training.max_seconds and not experiment.monitor.knn_every
    if by_clock and done < _SLOW * planned:
        notes.append(
            f"{done:,} of {planned:,} planned steps fitted into the time: steps took longer than in the plan"
        )
    if found.judged and trained.judging is trained.data:
        notes.append(
            "the labelled images were also trained on, which overstates a gain; give other images by --labelled"
        )
    prints = record.get("fingerprints", {})
    for source, name in {trained.judging: "--labelled", trained.data: "--data"}.items():
        content = _content(source) if name == "--labelled" else source.fingerprint
        if prints.get(name, content) != content:
            notes.append(
                f"the images of {name} changed after the plan; the scores are for the "
                f"{len(source):,} current images"
            )
    return notes


def _export(trained: Trained, found: Outcome) -> Record:
    """Write the better backbone, for timm if timm has it, and return its file, the line that loads it, and its image size."""
    whole = all_whole(transform_of(found.winner), trained.data, trained.judging)
    # if images were taken whole, timm must not crop their edges
    winner = found.winner.prepared(crop=1.0 if whole else None)
    winner.preparation = replace(
        winner.preparation, origins={}
    )  # the file itself is the origin from now on
    to = "safetensors" if is_own(winner.network_config) else "timm"
    load = export(winner, to, (trained.out / WINNER).resolve())["load"]
    return {"file": WINNER, "load": str(load), "size": found.winner.image_size}


def _say_verdict(record: Mapping[str, Any], out: Path, console: Console) -> None:
    """Print the verdict, the path of the report, and the line that loads the better weights."""
    console.print(record["verdict"], style="bold")
    if "winner" not in record:  # the time was too short to train
        return
    winner = record["winner"]
    if not (out / REPORT).exists():
        from hexa.reporting.report import report  # imports matplotlib, which a plan does not need

        report([out], out / REPORT)
    console.print(f"report: {out / REPORT}")
    console.print(
        f"to load the better weights ({out / WINNER}, for images of {winner['size']} px):"
    )
    console.print(winner["load"])
    if "pretrained=True" in winner["load"]:
        console.print("to fine-tune, replace the first num_classes=0 with your number of classes")


def _judging(request: AdaptRequest, data: Source, experiment: Experiment) -> Source:
    """Return the labelled images with their groups: --labelled, or else --data. Raises UserError."""
    named = experiment.monitor.data if "monitor.data" in request.fields else request.labelled
    judging = data
    if named is not None and named != request.data:
        most = experiment.training.max_image_pixels
        judging = open_source(named, "train", most, experiment.network.channels)
    if request.labelled is not None:
        Judge(labels_of(judging))
    take_groups(judging, request.groups)
    return judging
