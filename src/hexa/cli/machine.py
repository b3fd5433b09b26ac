"""Commands about this machine."""

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
    whole,
)
from hexa.cli.training import experiment_of


@command(
    "images per second of this machine for each scheme, the data path and the step apart",
    option("RECIPE", "%(default)s if not given", nargs="?", default="cifar10-moco-v2+adversarial"),
    JSON,
    option(
        "--repeats N",
        "rounds over all schemes; at most 5 within two minutes if not given",
        type=whole(1, 1000),
    ),
    description="Measure this machine: each scheme of hard examples relative to the plain step, the naive adversarial "
    "step beside the shared-gradient one, the data path alone, the whole. Fields of the recipe are options here too; "
    "without --batch-size a smaller batch is used if that is needed to finish in two minutes.",
    open=True,
)
def benchmark(given: Given, extra: Fields) -> None:
    experiment = experiment_of(given, extra)
    from hexa.measure.benchmark import benchmark as run, fitted, table
    from hexa.runtime.console import Console
    from hexa.runtime.progress import ProgressBar

    log = Console(stderr=True)
    with ProgressBar(log) as progress:
        chosen = experiment if "batch_size" in extra else fitted(experiment)
        log.print(
            f"{chosen.recipe}: batches of {chosen.batch_size}, the recipe's own {experiment.batch_size}"
        )
        measured = run(chosen, given.repeats, progress=progress, say=log.print)
    if given.json:
        print(json.dumps(measured, indent=2))
    else:
        Console().print(table(measured))


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


@command("versions, extras, threads, devices and shared memory of this machine", JSON)
def doctor(given: Given, extra: Fields) -> None:
    from hexa.measure.doctor import facts

    found = facts()
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        say(*(f"{name}: {text}" for name, text in found.items()))
