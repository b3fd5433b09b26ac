"""Commands about this machine."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from hexa.cli.declare import (
    ANY_SEED,
    JSON,
    PLAN,
    Fields,
    Given,
    command,
    flag,
    import_networks,
    option,
    say,
)


@command(
    "seconds of one core from images on disk to an accuracy: the present record of a track, or your attempt",
    option(
        "TRACK", "A-60, A-70, B, C-63, C-70 or D; all of them are listed if not given", nargs="?"
    ),
    option(
        "--data SOURCE",
        "the images of the track as published: CIFAR-10 or Omniglot, such as parquet:cifar10",
    ),
    option("--start BACKBONE", "weights to begin from, in tracks C and D"),
    option(
        "--seeds N", "0 1 2 3 4 if not given", type=ANY_SEED, nargs="+", default=[0, 1, 2, 3, 4]
    ),
    option("--recipe RECIPE", "another recipe than the record's"),
    flag(
        "--held-out",
        "score training images instead of test images, as a search for a better attempt must",
    ),
    option("--out FOLDER", "runs/speedrun-TRACK if not given"),
    PLAN,
    description="Train the present record of a track once for each seed, on one core, and score it by the rules of the "
    "track. Any field of the recipe is an option here too, which makes it an attempt of your own. An interrupted "
    "command continues with the first seed that was not finished.",
    open=True,
)
def speedrun(given: Given, extra: Fields) -> None:
    import_networks()
    from hexa.config import UserError
    from hexa.measure import speedrun as runs

    if given.track is None:
        say(*(f"{name}: {one.goal}; {runs.standing(one)}" for name, one in runs.tracks().items()))
        return
    one, fields = (
        runs.track(given.track),
        dict(extra) | ({"recipe": given.recipe} if given.recipe else {}),
    )
    if given.data is None and not given.plan:
        raise UserError(f"--data is missing; give the images of {one.data}, such as parquet:PATH")
    recipe, changes = runs.attempt(one, fields)
    changed = ", ".join(f"{path} {value}" for path, value in changes.items())
    say(
        f"{one.goal}; {runs.standing(one)}",
        f"{recipe} for each of the seeds {given.seeds}, {changed or 'unchanged'}",
    )
    if given.plan:
        say(
            runs.foreseen(given.track, given.data, given.start, fields)
            if given.data is not None
            else ""
        )
        return
    from hexa.runtime.console import Console

    out = Path(given.out or f"runs/speedrun-{given.track}")
    settings = {
        "start": given.start,
        "seeds": given.seeds,
        "fields": fields,
        "held_out": given.held_out,
    }
    result = runs.speedrun(given.track, given.data, out, **settings)
    Console().print(runs.table(one, result).terminal())
    say(runs.said(one, result), f"result: {out / runs.RESULT}")


@command(
    "try the laws on a method or a hard example of your own",
    option("RECIPE", "FILE.py:recipe, or a recipe's name"),
    JSON,
    description="Try on 8 small images what every method and hard example promises: what may change and when, losses "
    "that follow their images, valid pixels, exact shared gradients, checkpoints, two processes. Ends with status 1 if "
    "a law is broken.",
)
def check(given: Given, extra: Fields) -> int:
    from hexa.recipes import plugins
    from hexa.testing.check import check as run, tried

    os.environ["CUDA_VISIBLE_DEVICES"] = (
        ""  # laws fork, which autograd refuses if it sees a GPU; they need none
    )
    verdicts = []
    experiment = plugins.experiment_of(given.recipe)
    if not given.json:
        say(tried(experiment))
    for verdict in run(experiment):
        verdicts.append(verdict)
        if not given.json:
            say(f"{'BROKEN' if verdict.said else 'ok':7}{verdict.meaning}")
            say(f"       {verdict.said}" * bool(verdict.said))
    if given.json:
        print(json.dumps([vars(verdict) for verdict in verdicts], indent=2))
    return int(any(verdict.said for verdict in verdicts))


@command("versions, devices, precision, decoders; what is wrong and how to fix it", JSON)
def doctor(given: Given, extra: Fields) -> int:
    from rich.text import Text

    from hexa.measure.doctor import diagnose, failed
    from hexa.runtime.console import Console

    with suppress(Exception):  # what cannot be imported is a finding
        import_networks()
    findings = diagnose(Path.cwd())
    if given.json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        marks = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failure": ("FAIL", "red")}
        console = Console()
        for finding in findings:
            mark, colour = marks[finding.status]
            console.print(
                Text(f"{mark:5} ", colour), Text(f"{finding.name}: {finding.found}"), sep=""
            )
            if finding.remedy:
                console.print(f"      → {finding.remedy}")
    return 1 if failed(findings) else 0
