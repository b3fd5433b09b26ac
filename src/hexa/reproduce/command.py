"""`hexa reproduce`, once its arguments are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from hexa.config import UserError
from hexa.reporting.tables import counted
from hexa.reproduce import together
from hexa.reproduce.costs import Progress, origin_of
from hexa.reproduce.printing import table_of_parts
from hexa.reproduce.session import Session
from hexa.reproduce.whole import Whole
from hexa.reproduce.writing import sentence
from hexa.runtime import targets
from hexa.runtime.console import Console
from hexa.runtime.signals import Interrupted

_OPTIONS = ("scale", "method", "out", "seeds", "epochs", "rates", "data_voc", "label_lists", "until", "workers")
_FROM = {None: None, "one-run": True, "several-runs": False}


def run(
    given: argparse.Namespace, fields: Mapping[str, str], console: Console, bar: AbstractContextManager[Progress]
) -> int:
    """Print the plan with its cost, then carry it out. Returns the exit status."""
    options = {name: getattr(given, name) for name in _OPTIONS} | {"evaluate_on": given.evaluate_on or ()}
    options["one_run"] = _FROM[getattr(given, "from")]
    if given.experiment == "all":
        return _run_all(Whole.begin(given.data, time=given.time, fields=fields, **options), given.plan, console, bar)
    if given.time is not None:
        raise UserError(f"--time: is for all experiments together; for {given.experiment} give --epochs")
    session = Session.begin(given.experiment, given.data, fields=fields, **options)
    study = session.study
    if not given.plan or study.scale != "full":  # that plan alone writes nothing
        targets.check_folder(session.out)
    console.print(f"{study.name}, {study.method}, {study.scale} scale: {sentence(study.question)}")
    try:
        with bar as progress:
            costs = session.costs(progress)
    except KeyboardInterrupt:
        console.print("stopped while measuring: the same command measures again, and continues")
        raise
    console.print(session.table(costs))
    if session.joined:
        seeds = ", ".join(map(str, session.joined))
        console.print(f"with seeds {seeds}, of which {session.out} has results already")
    console.print(f"measured by {', '.join(dict.fromkeys(session.measures()))}")
    for note in study.notes:
        console.print(note)
    if costs is None:
        console.print("image passes: images times terms. Each run, wherever there are GPUs:")
        for line in session.commands():
            console.print(line)
    else:
        console.print("time left: of pre-training, one run after another; evaluations on top")
        console.print(f"it follows from {origin_of(session.out)}")
    if given.plan:
        return 0
    return _carried_out(lambda: session.carry_out(console), "table.md", console)


def _run_all(whole: Whole, only_plan: bool, console: Console, bar: AbstractContextManager[Progress]) -> int:
    targets.check_folder(whole.out)
    with bar as progress:
        costs = whole.costs(progress)
    epochs = whole.decide(costs)
    console.print(table_of_parts(whole.lines(epochs, costs)))
    seeds = ", ".join(map(str, whole.request.seeds))
    console.print(
        f"{counted(epochs, 'epoch')} for every run, seeds {seeds}; runs that several parts have are made once"
    )
    for reason in dict.fromkeys(whole.left_out.values()):
        these = [name for name, why in whole.left_out.items() if why == reason]
        console.print(f"left out: {', '.join(these)}: {reason}")
    for title, passes in whole.passes(epochs).items():
        console.print(f"{title}: passes over its training images: {passes}")
    return 0 if only_plan else _carried_out(lambda: together.carry_out(whole, console), together.PAGE, console)


def _carried_out(work: Callable[[], Path], page: str, console: Console) -> int:
    try:
        out = work()
    except (Interrupted, KeyboardInterrupt) as stop:
        console.print("stopped; nothing finished is lost: the same command continues from here")
        if isinstance(stop, Interrupted):
            return stop.exit_code
        raise
    console.print((out / page).read_text())
    console.print(f"tables and figures: {out}")
    return 0
