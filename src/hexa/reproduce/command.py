"""`hexa reproduce`, once its arguments are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager

from hexa.reproduce.costs import Progress, origin_of
from hexa.reproduce.session import Session
from hexa.reproduce.writing import sentence
from hexa.runtime import targets
from hexa.runtime.console import Console
from hexa.runtime.signals import Interrupted

_OPTIONS = ("scale", "method", "out", "seeds", "epochs", "rates", "data_voc", "workers")
_FROM = {None: None, "one-run": True, "several-runs": False}


def run(
    given: argparse.Namespace, fields: Mapping[str, str], console: Console, bar: AbstractContextManager[Progress]
) -> int:
    """Print the plan with its cost, then carry it out. Returns the exit status."""
    options = {name: getattr(given, name) for name in _OPTIONS} | {"evaluate_on": given.evaluate_on or ()}
    options["one_run"] = _FROM[getattr(given, "from")]
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
    try:
        out = session.carry_out(console)
    except (Interrupted, KeyboardInterrupt) as stop:
        console.print("stopped; nothing finished is lost: the same command continues from here")
        if isinstance(stop, Interrupted):
            return stop.exit_code
        raise
    console.print((out / "table.md").read_text())
    console.print(f"tables and figures: {out}")
    return 0
