"""The whole network trained on `--percent` of the labels, or on those of `--list_file FILE` (SimCLR's lists).
Presets `hexa` and `swav` are the rates of the paper and of SwAV's code.

REFERENCE §7.7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pydantic

from hexa.config import Config, UserError
from hexa.data import Source
from hexa.data.source import Subset
from hexa.evaluation.protocol import Outcome, Protocol, Task, best_and_last, named_changes
from hexa.evaluation.split import Labels, draw_share
from hexa.evaluation.supervised import Plan, tune
from hexa.runtime.random import Stream

#: (largest percentage, rate of the network, rate of the classifier): the paper's, and those of SwAV's code. (D25, D26)
RATES = {"hexa": ((5.0, 0.01, 1.0), (100.0, 0.01, 0.1)), "swav": ((5.0, 0.02, 5.0), (100.0, 0.01, 0.2))}


class SemiSupervisedOptions(Config):
    """Options of the protocol `semi-supervised`. The defaults are the paper's."""

    percent: float = pydantic.Field(default=10.0, gt=0, le=100)
    """Share of the labels that is used, a part of every class, drawn from the seed."""
    list_file: str | None = None
    """File with the names of the labelled images instead, one a line (SimCLR's lists for ImageNet)."""
    rates_of: Literal["hexa", "swav"] = "hexa"
    """Whose rates to take; a classifier on about 1 % of the labels learns faster than on 10 %."""
    trunk_rate: float | None = pydantic.Field(default=None, gt=0)
    """Learning rate of the network; none is as published for the share of labels."""
    head_rate: float | None = pydantic.Field(default=None, gt=0)
    """Learning rate of the classifier; none is as published for the share of labels."""
    epochs: int = pydantic.Field(default=20, gt=0)
    """Passes over the labelled images; rates are ×0.2 at 60 % and 80 % of them (12 and 16 of 20)."""
    batch_size: int = pydantic.Field(default=256, gt=1)
    """Images a step."""
    weight_decay: float = pydantic.Field(default=5e-4, ge=0)
    """For network and classifier."""
    score_every: int = pydantic.Field(default=1, gt=0)
    """Epochs between two scorings; top1 is the best of them."""


def run(task: Task, options: SemiSupervisedOptions) -> Outcome:
    """Accuracy after training network and classifier on the labelled part, batch-norms included: best epoch and last.

    SGD, momentum 0.9, crops and flips.
    """
    stream = Stream(task.seed).child("semi-supervised")
    fit = task.fit
    if options.list_file is not None:
        fit = Subset(fit, rows_of(fit, Path(options.list_file)))
    elif options.percent < 100:
        assert fit.labels is not None
        fit = Subset(fit, draw_share(fit.labels, options.percent / 100, stream.child("labels")))
    share = 100 * len(fit) / len(task.fit)
    trunk, head = next(rates for most, *rates in RATES[options.rates_of] if share <= most + 1e-9)
    trunk, head = options.trunk_rate or trunk, options.head_rate or head
    plan = Plan(options.epochs, options.batch_size, "sgd", trunk, head, 0.2, (0.6, 0.8), options.weight_decay)
    tuned = tune(task, fit, task.test, plan, stream, "fine-tuning", options.score_every)
    notes = list(tuned.notes)
    if options.list_file is None and abs(share - options.percent) > 0.1 * options.percent:
        notes.append(
            f"{len(fit)} of {len(task.fit)} images are {share:.1f} %, not {options.percent:g} %: each class has "
            "at least one, and only whole images"
        )
    details = {"labelled_images": len(fit), "fingerprint": fit.fingerprint, "curve": tuned.curve}
    used = {"trunk_rate": trunk, "head_rate": head, "batch_size": tuned.batch_size}
    return Outcome(best_and_last(tuned.curve), details, notes, used)


def rows_of(source: Source, file: Path) -> Labels:
    """The positions of the images whose file names the list holds. Raises UserError for names that are not there."""
    try:
        names = [Path(line.strip()).name for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"list_file {file}: cannot be read ({error})") from None
    place = {Path(path).name: position for position, path in enumerate(source.paths)}
    missing = [name for name in names if name not in place]
    if missing or not names:
        some = ", ".join(missing[:3]) + (" …" if missing[3:] else "")
        raise UserError(f"list_file {file}: {len(missing)} of its {len(names)} names are not in {source!r}: {some}")
    return np.array([place[name] for name in names], dtype=np.int64)


def _identity(preset: str, options: SemiSupervisedOptions) -> str:
    part = f"{options.percent:g}%" if options.list_file is None else Path(options.list_file).stem
    unnamed = ("percent", "list_file", "epochs", "trunk_rate", "head_rate")
    changed = named_changes(PROTOCOL.presets[preset], options, unnamed)
    rates = ",".join("published" if r is None else f"{r:g}" for r in (options.trunk_rate, options.head_rate))
    return f"{preset}-{part}-{options.epochs}ep-lr{rates}{changed}"


PROTOCOL = Protocol(
    run=run,
    presets={"hexa": SemiSupervisedOptions(), "swav": SemiSupervisedOptions(rates_of="swav", weight_decay=0.0)},
    identity=_identity,
    extracts=lambda options: (),
)
