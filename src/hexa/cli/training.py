"""Commands that train, and those that list what can be trained."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.cli.declare import (
    DOMAINS,
    EPOCHS,
    IMAGES,
    JSON,
    MACHINE,
    SOURCES,
    TRUST,
    Fields,
    Given,
    command,
    duration,
    flag,
    import_networks,
    option,
    say,
)

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment


@command(
    "what can be run: name, method, hard examples, expected result and cost",
    option("WORDS", "only recipes with this in their name", metavar="WORD", nargs="?", default=""),
    JSON,
)
def recipes(given: Given, extra: Fields) -> None:
    from hexa.recipes import listing

    listed = listing.read()
    rows = listed.recipes
    if not listed.complete:
        import_networks()
        from hexa.recipes import describe

        rows = describe()
    from rich.padding import Padding

    from hexa.config import UserError
    from hexa.runtime.console import Console

    described = [row for row in rows if given.words in row["name"]]
    if not described:
        raise UserError(f"no recipe has '{given.words}' in its name; `hexa recipes` lists all")
    if given.json:
        print(json.dumps(described, indent=2))
        return
    console = Console()
    for row in described:
        parts = [row["method"], *row["hard_examples"]]
        console.print(row["name"], style="bold")
        console.print(f"  {' + '.join(parts)} on {row['data']}, {row['epochs']} epochs")
        for label in filter(row.get, ("expected", "cost")):
            text = f"{label}: {row[label]}"
            # outside a terminal one line each, for grep
            console.print(Padding(text, (0, 0, 0, 2)) if console.is_terminal else f"  {text}")
    console.print("\nAny recipe takes modifiers, as in cifar10-simclr+small+adversarial:")
    for name, text in listed.modifiers.items():
        console.print(f"  +{name}: {text}")
    console.print("\nhexa pretrain RECIPE --help  lists the fields of a recipe")


@command(
    "pre-train a backbone without labels",
    option("RECIPE", "a name from `hexa recipes`, or ./my_method.py:function", nargs="?"),
    option("--config FILE.yaml", "instead of a recipe: the config.yaml of a run, or one like it"),
    option("--data SOURCE", SOURCES),
    option("--out RUN", "the run folder (default: runs/RECIPE)"),
    option(
        "--start BACKBONE",
        "weights to begin from: a run · a file · timm:NAME",
    ),
    IMAGES,
    option("--epochs N", "passes over the data"),
    option(
        "--time TIME",
        "instead: as many passes as fit this time here, such as 90s, 20m or 2h",
        type=duration,
    ),
    option("--domain NAME", DOMAINS + "; fields given win"),
    *MACHINE,
    flag("--compile", "short for --training.compile true", action="store_const", const="true"),
    TRUST,
    description="Pre-train a backbone without labels. Any field of the experiment is an option: --batch-size 256, "
    "--method.temperature=0.1. `hexa pretrain RECIPE --help` lists them with their values in that recipe.",
    open=True,
)
def pretrain(given: Given, extra: Fields) -> None:
    experiment = experiment_of(given, extra)
    if given.time is not None:
        experiment = _within(experiment, given, extra)
    from hexa.run.run import pretrain as train
    from hexa.runtime.console import Console

    _finished(train(experiment, given.out, console=Console()), experiment.data)


def _within(experiment: Experiment, given: Given, extra: Fields) -> Experiment:
    """The experiment with as many epochs as fit --time, by a few timed steps; from there its length follows the clock.

    Raises UserError where there is no time for one epoch.
    """
    from hexa.config import UserError
    from hexa.measure.costs import measure
    from hexa.recipes.experiment import override
    from hexa.reporting.tables import counted, format_duration
    from hexa.run.build import open_images

    if given.epochs is not None or {"epochs", "max_steps", "training.max_seconds"} & set(extra):
        raise UserError(
            "--time chooses the length; leave out --epochs, --max_steps and --training.max_seconds"
        )
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("--time is for one process; under torchrun give --epochs")
    source = open_images(experiment)
    say("timing a few steps")
    costs = measure(experiment, source, extra, partly=False)
    epoch = len(source) * costs.train(experiment.views.size, max(costs.steps))
    # a tenth is for what is written at the end
    room = 0.9 * given.time - (time.perf_counter() - given.begun) - costs.setup
    if room < epoch:
        least = format_duration(given.time - room + 1.1 * epoch)
        raise UserError(
            f"--time: one epoch alone takes {format_duration(epoch)}; give {least} or more"
        )
    epochs = int(room / epoch)
    say(f"{counted(epochs, 'epoch')} of {len(source):,} images, by the speed of these steps")
    return override(experiment, {"epochs": epochs, "training.max_seconds": room})


def describe_fields(given: Given, extra: Fields, everything: bool) -> int:
    """`hexa pretrain RECIPE --help` and, if everything, `--help-all`."""
    from hexa.cli import fields
    from hexa.runtime.output import one_line, printable

    recipe = one_line(given.recipe or "--config FILE")
    own = list(fields.of_experiment(experiment_of(given, extra)))
    listed = own if everything else [field for field in own if field.is_common]
    print(f"usage: hexa pretrain {recipe} [--out RUN] [--any.field VALUE …]\n")
    print("Fields with their values in this recipe:\n")
    print(printable(fields.describe(listed)))
    if not everything:
        left = len(own) - len(listed)
        print(f"\n`hexa pretrain {recipe} --help-all` lists {left} more fields.")
    print(
        "\nA modifier such as +cutmix adds a hard example with its fields; `hexa recipes` lists them."
    )
    return 0


@command("continue a run exactly where it stopped", option("RUN", "a run folder"), TRUST)
def resume(given: Given, extra: Fields) -> None:
    from hexa.config import UserError
    from hexa.run.names import CONFIG

    run = Path(given.run)
    if not (run / CONFIG).exists():
        raise UserError(
            f"{run}: no run to resume ({CONFIG} is missing); give the folder that hexa pretrain wrote"
        )
    import_networks()
    from hexa.recipes import plugins
    from hexa.run.run import resume as go_on
    from hexa.runtime.console import Console

    experiment = plugins.load(run / CONFIG, given.trust)
    _finished(go_on(run, console=Console()), experiment.data)


@command(
    "MoCo-v2 against HEXA-MoCo on embedded images, in one to three minutes on two cores",
    option("--out FOLDER", "runs/demo if not given", default="runs/demo"),
    EPOCHS,
)
def demo(given: Given, extra: Fields) -> None:
    from hexa.runtime import targets

    out = targets.check_folder(given.out)
    from hexa.cli.demo import demo as run

    run(out, epochs=given.epochs)


#: Short options and their fields.
SHORT = {
    "data": "data",
    "start": "start.weights",
    "images": "images",
    "epochs": "epochs",
    "device": "training.device",
    "precision": "training.precision",
    "compile": "training.compile",
}


def experiment_of(given: Given, extra: Fields) -> Experiment:
    """The experiment of a recipe or file with the fields of the command line. Raises UserError."""
    from hexa.config import UserError

    config = getattr(given, "config", None)
    if (given.recipe is None) == (config is None):
        raise UserError(
            "give either a recipe or --config FILE.yaml; `hexa recipes` lists the recipes"
        )
    if given.recipe is not None:
        _check_recipe(given.recipe)
    import_networks()
    from hexa.cli import fields
    from hexa.recipes import domains, plugins
    from hexa.recipes.experiment import override
    from hexa.run.start import begin_from_weights

    if config is None:
        experiment = plugins.experiment_of(given.recipe)
    else:
        experiment = plugins.load(Path(config), given.trust)
    changes = {**extra, **shorthand(given)}
    if domain := getattr(given, "domain", None):
        # first, since a recipe of views replaces fields at their defaults, which many of a domain's are
        views = {path: value for path, value in changes.items() if path == "views.recipe"}
        experiment = override(experiment, views)
        changes |= domains.changes(domain, changes)
    fields.check_names(changes, fields.of_experiment(experiment), getattr(given, "options", ()))
    return begin_from_weights(override(experiment, changes), changes)


def shorthand(given: Given) -> dict[str, Any]:
    """The fields that were given by a short option, by dotted path."""
    values = {path: getattr(given, name, None) for name, path in SHORT.items()}
    return {path: value for path, value in values.items() if value is not None}


def _check_recipe(spec: str) -> None:
    """Raise UserError for a mistyped recipe before torch is imported, if all recipes are listed."""
    from hexa.recipes import check, listing

    listed = listing.read()
    if listed.complete and not spec.endswith(".py") and ".py:" not in spec:
        check(spec.partition("+")[0], listed.names)


def _finished(run: Path, data: str) -> None:
    say(f"run: {run}", f"next: {_next(run, data)}")


def _next(run: Path, data: str) -> str:
    """A command that works with these images."""
    from hexa.config import UserError
    from hexa.data import open_source
    from hexa.run.names import ADAPTATION

    if (run / ADAPTATION).is_file():
        return "the same hexa adapt or harden command, which compares it with the start"
    command = ["hexa", "evaluate", "knn", str(run), "--data", data]
    with contextlib.suppress(UserError):
        source = open_source(data, "train")
        if source.labels is None:
            command = ["hexa", "embed", str(run), "--data", data, "--out", "features.npz"]
        elif "test" not in source.splits():
            command += ["--holdout", "0.2"]
    return shlex.join(command)
