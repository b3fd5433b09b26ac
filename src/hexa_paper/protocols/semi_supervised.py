"""The whole network trained on `--percent` of the labels, on `--labels N`, or on those of `--list_file FILE` (SimCLR's
lists). Presets `hexa` and `swav` are the rates of the paper and of SwAV's code. With `--learner fixmatch` (or another:
pseudo-label, vat, s4l, uda) also on the images whose labels are hidden.

F26.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hexa.config import UserError, some
from hexa.core import HardExample
from hexa.data import Source
from hexa.data.sources.source import Labels, Subset
from hexa.evaluation.few_labels import over_scores
from hexa.evaluation.protocol import Outcome, Protocol, Task, named_changes
from hexa.evaluation.split import draw_per_class, shuffled
from hexa.evaluation.supervised import Plan, tuned
from hexa.runtime.random import Stream
from hexa_paper.semi_supervised.options import WHICH, SemiSupervisedOptions
from hexa_paper.semi_supervised.training import train

#: (largest percentage, rate of the network, rate of the classifier): the paper's, and those of SwAV's code. (D25, D26)
RATES = {
    "hexa": ((5.0, 0.01, 1.0), (100.0, 0.01, 0.1)),
    "swav": ((5.0, 0.02, 5.0), (100.0, 0.01, 0.2)),
}


def run(task: Task, options: SemiSupervisedOptions) -> Outcome:
    """Accuracy after training network and classifier, batch-norms included; of several draws their mean."""
    outcomes = [_one(task, options, number) for number in range(options.draws)]
    if options.draws == 1:
        return outcomes[0]
    metrics: dict[str, float] = {}
    for name in outcomes[0].metrics:
        metrics |= over_scores(name, [outcome.metrics[name] for outcome in outcomes])
    notes = list(dict.fromkeys(note for outcome in outcomes for note in outcome.notes))
    details = {"draws": [outcome.details | {"metrics": outcome.metrics} for outcome in outcomes]}
    return Outcome(metrics, details, notes, outcomes[0].effective)


def _one(task: Task, options: SemiSupervisedOptions, number: int) -> Outcome:
    """One training on labels of its own."""
    stream = Stream(task.seed).child("semi-supervised", *([number] if number else []))
    rows = _labelled(task, options, number, stream)
    fit = task.fit if rows is None else Subset(task.fit, rows)
    if options.learner == "supervised":
        outcome = _supervised(task, fit, options, stream)
    elif task.num_classes < 2:
        raise UserError("there is only one class; give images of two or more classes")
    else:
        outcome = train(task, np.arange(len(fit)) if rows is None else rows, options, stream)
    outcome.details = {
        "labelled_images": len(fit),
        "fingerprint": fit.fingerprint,
    } | outcome.details
    share = 100 * len(fit) / len(task.fit)
    if (
        options.labels is None
        and options.list_file is None
        and abs(share - options.percent) > 0.1 * options.percent
    ):
        differs = (
            f"{len(fit)} of {len(task.fit)} images are {share:.1f} %, not {options.percent:g} %"
        )
        outcome.notes.append(f"{differs}: each class has at least one, and only whole images")
    return outcome


def _supervised(task: Task, fit: Source, options: SemiSupervisedOptions, stream: Stream) -> Outcome:
    """The labelled images alone: best epoch and last. SGD, momentum 0.9, crops and flips."""
    share = 100 * len(fit) / len(task.fit)
    trunk, head = next(rates for most, *rates in RATES[options.rates_of] if share <= most + 1e-9)
    trunk = options.trunk_rate or trunk
    head = options.head_rate or head
    sgd = partial(torch.optim.SGD, momentum=0.9, weight_decay=options.weight_decay)
    plan = Plan(options.epochs, options.batch_size, sgd, trunk, head, 0.2, (0.6, 0.8))
    outcome = tuned(task, fit, task.test, plan, stream, "fine-tuning", options.score_every)
    outcome.effective |= {"trunk_rate": trunk, "head_rate": head}
    return outcome


def _labelled(
    task: Task, options: SemiSupervisedOptions, number: int, stream: Stream
) -> Labels | None:
    """The positions of the images whose labels are used; None for all. Raises UserError."""
    assert task.fit.classes is not None, "a task for this has one label per image"
    if options.labels is not None:
        each, rest = divmod(options.labels, task.num_classes)
        if rest or not each:
            fits = [count * task.num_classes for count in (each, each + 1) if count]
            use = f"{task.num_classes} classes; use {' or '.join(map(str, fits))}"
            raise UserError(f"labels: {options.labels} cannot be shared equally by {use}")
        draw = Stream(task.seed).child("labels", number)
        return draw_per_class(task.fit.classes, each, draw, task.class_names)
    if options.list_file is not None:
        return rows_of(task.fit, Path(options.list_file))
    if options.percent < 100:
        return draw_share(task.fit.classes, options.percent / 100, stream.child("labels"))
    return None


def rows_of(source: Source, file: Path) -> Labels:
    """The positions of the images whose file names the list holds. Raises UserError for names of none or several."""
    try:
        names = [Path(line.strip()).name for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list_file {file}: cannot be read ({error})") from None
    place = {Path(path).name: position for position, path in enumerate(source.paths)}
    times = Counter(Path(path).name for path in source.paths)
    unfit = [name for name in names if times[name] != 1]
    if unfit or not names:
        told = f"{len(unfit)} of its {len(names)} names are not in {source!r}, or of several images: {some(unfit)}"
        raise UserError(f"list_file {file}: {told}")
    return np.array([place[name] for name in names], dtype=np.int64)


def draw_share(labels: Labels, share: float, stream: Stream) -> Labels:
    """Positions of a part of `share` of every class, at least one image of each, in order."""
    parts = []
    for rows in shuffled(labels, stream).values():
        count = max(1, round(share * len(rows)))
        parts.append(rows[:count])
    return np.sort(np.concatenate(parts))


def _identity(preset: str, options: SemiSupervisedOptions) -> str:
    part = f"{options.percent:g}%" if options.list_file is None else Path(options.list_file).stem
    part = part if options.labels is None else f"{options.labels}-labels"
    part += f"-{options.draws}-draws" if options.draws > 1 else ""
    unnamed = {
        *WHICH,
        "labels",
        "draws",
        "learner",
        "epochs",
        "trunk_rate",
        "head_rate",
        "steps",
        "hard",
    }
    if options.learner == "supervised":
        changed = named_changes(PROTOCOL.presets[preset], options, unnamed)
        rates = ",".join(
            "published" if r is None else f"{r:g}" for r in (options.trunk_rate, options.head_rate)
        )
        return f"{preset}-{part}-{options.epochs}ep-lr{rates}{changed}"
    changed = named_changes(
        SemiSupervisedOptions(learner=options.learner).resolved, options.resolved, unnamed
    )
    hard = "".join(f"-{_said(hard)}" for hard in options.hard)
    return f"{options.learner}-{part}-{options.steps}steps{changed}{hard}"


def _said(hard: HardExample) -> str:
    changed = hard.model_dump(exclude_defaults=True)
    return hard.kind + "".join(
        f"-{name}={value}" for name, value in changed.items() if name != "kind"
    )


PROTOCOL = Protocol(
    run=run,
    presets={
        "hexa": SemiSupervisedOptions(),
        "swav": SemiSupervisedOptions(rates_of="swav", weight_decay=0.0),
    },
    identity=_identity,
    extracts=lambda options: (),
)
