"""The commands `check` and `doctor`."""

from __future__ import annotations

import json
import os

from hexa.cli.declare import (
    JSON,
    Fields,
    Given,
    command,
    option,
    say,
)


@command(
    "check a method or hard example of your own against the laws of the library",
    option("RECIPE", "check this recipe: FILE.py:FUNCTION, or the name of a recipe"),
    JSON,
    description="Check the laws of every method and hard example on 8 small images: state changes, losses that follow "
    "their images, valid pixels, exact shared gradients, checkpoints, two processes. The exit status is 1 if a law is "
    "broken.",
)
def check(given: Given, extra: Fields) -> int:
    from hexa.recipes import plugins
    from hexa.testing.check import check as run, looks_wrong, tried

    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # laws fork, which autograd refuses if it sees a GPU
    verdicts = []
    experiment = plugins.experiment_of(given.recipe)
    if not given.json:
        say(tried(experiment))
    for verdict in run(experiment):
        verdicts.append(verdict)
        if not given.json:
            say(f"{'BROKEN' if verdict.said else 'ok':7}{verdict.meaning}")
            say(f"       {verdict.said}" if verdict.said else "")
    broken = any(verdict.said for verdict in verdicts)
    if given.json:
        print(json.dumps([vars(verdict) for verdict in verdicts], indent=2))
    elif not broken and (warning := looks_wrong(experiment)):
        say(f"warning: {warning}")
    return int(broken)


@command("print versions, extras, threads, devices and shared memory of this machine", JSON)
def doctor(given: Given, extra: Fields) -> None:
    from hexa.measure.doctor import facts

    found = facts()
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        say(*(f"{name}: {text}" for name, text in found.items()))
