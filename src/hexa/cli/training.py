"""The commands `pretrain`, `resume`, `demo` and `recipes`."""

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
    from hexa.runtime.console import Console


@command(
    "list the recipes with method, hard examples, expected result and cost",
    option(
        "RECIPE",
        "list only recipes with this text in their name; a whole name, with modifiers and fields such as "
        "--batch-size 512, also prints the memory",
        nargs="?",
    ),
    JSON,
    open=True,
)
def recipes(given: Given, extra: Fields) -> None:
    from hexa.cli import fields
    from hexa.recipes import listing

    listed = listing.read()
    rows = listed.recipes
    if not listed.complete:
        import_networks()
        from hexa.recipes import describe

        rows = describe()
    from hexa.config import UserError
    from hexa.runtime.console import Console

    name = given.recipe or ""
    if not name:
        remedy = "fields follow a recipe: `hexa recipes RECIPE --FIELD VALUE`"
        fields.check_names(extra, [], given.options, remedy)
    described = [row for row in rows if name in row["name"]]
    is_changed = bool(extra) or "+" in name or ":" in name
    if is_changed:
        described = [_changed(given, extra, rows)]
    if not described:
        raise UserError(f"no recipe has '{name}' in its name; `hexa recipes` lists all")
    if given.json:
        print(json.dumps(described, indent=2))
        return
    console = Console()
    for row in described:
        _print(row, console)
        if is_changed or row["name"] == name:
            gpus = 8 if "torchrun" in row["command"] else 1
            memory = _memory(experiment_of(given, extra), gpus)
            console.print(f"  memory per GPU, estimated: {memory}")
    console.print("\nEvery recipe takes modifiers, as in cifar10-simclr+small+adversarial:")
    for name, text in listed.modifiers.items():
        console.print(f"  +{name}: {text}")
    console.print("\n`hexa pretrain RECIPE --help` lists the fields of a recipe.")


def _changed(given: Given, extra: Fields, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe a recipe with modifiers or fields, or a recipe in a file of the user."""
    from hexa.recipes import facts_of

    facts = facts_of(experiment_of(given, extra)) | {"expected": "", "cost": ""}
    base = given.recipe.partition("+")[0]
    row = next((row for row in rows if row["name"] == base), {"command": f"hexa pretrain {base}"})
    options = [shlex.join([f"--{field}", value]) for field, value in extra.items()]
    facts["command"] = " ".join([row["command"].replace(base, given.recipe), *options])
    return row | facts


def _print(row: dict[str, Any], console: Console) -> None:
    from rich.padding import Padding

    parts = [row["method"], *row["hard_examples"]]
    console.print(row["name"], style="bold")
    console.print(f"  {' + '.join(parts)} on {row['data']}, {row['epochs']} epochs")
    for label in filter(row.get, ("expected", "cost")):
        text = f"{label}: {row[label]}"
        # outside a terminal one line each, for grep
        console.print(Padding(text, (0, 0, 0, 2)) if console.is_terminal else f"  {text}")


def _memory(experiment: Experiment, gpus: int) -> str:
    """The memory of a training on each of some GPUs."""
    import torch

    from hexa.measure.activations import memory_of

    images = experiment.batch_size // gpus
    part = images // experiment.training.accumulate
    bf16, fp32 = (memory_of(experiment, part, d) / 1e9 for d in (torch.bfloat16, torch.float32))
    each = f"{images} images on each of {gpus} GPUs" if gpus > 1 else f"{images} images"
    return f"{bf16:.3g} GB in bf16, {fp32:.3g} GB in fp32 ({each})"


@command(
    "pre-train a backbone without labels",
    option(
        "RECIPE",
        "train this recipe: a name from `hexa recipes`, or ./my_method.py:FUNCTION",
        nargs="?",
    ),
    option(
        "--config FILE.yaml",
        "read the experiment from this config.yaml of a run, instead of a recipe",
    ),
    option("--data SOURCE", f"train on these images: {SOURCES} (default: set by the recipe)"),
    option("--out RUN", "write the run to this folder (default: runs/RECIPE)"),
    option(
        "--start BACKBONE",
        "start from these weights: a run folder · a file of weights · timm:NAME (default: random weights)",
    ),
    IMAGES,
    option("--epochs N", "pass N times over the data (default: set by the recipe)"),
    option(
        "--time TIME",
        "choose the number of passes so that training fits this time, such as 90s, 20m or 2h",
        type=duration,
    ),
    option("--domain NAME", DOMAINS + "; fields that you set take precedence"),
    *MACHINE,
    flag(
        "--compile",
        "compile the networks (short for --training.compile true)",
        action="store_const",
        const="true",
    ),
    TRUST,
    description="Pre-train a backbone without labels. Every field of the experiment is an option, such as --batch-size 256 "
    "or --method.temperature=0.1. `hexa pretrain RECIPE --help` lists the fields with their values in the recipe.",
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
    """Return the experiment with the number of epochs that fits --time, by a few timed steps.

    During training, the clock adjusts the length. Raises UserError if the time is too short for one epoch.
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
    # a tenth of the time is for the results at the end
    room = 0.9 * given.time - (time.perf_counter() - given.begun) - costs.setup
    if room < epoch:
        least = format_duration(given.time - room + 1.1 * epoch)
        raise UserError(
            f"--time: one epoch alone takes {format_duration(epoch)}; give {least} or more"
        )
    epochs = int(room / epoch)
    say(f"{counted(epochs, 'epoch')} of {len(source):,} images fit into the time")
    return override(experiment, {"epochs": epochs, "training.max_seconds": room})


def describe_fields(given: Given, extra: Fields, everything: bool) -> int:
    """Print `hexa pretrain RECIPE --help` or, if `everything`, `--help-all`; return the exit status."""
    from hexa.cli import fields
    from hexa.runtime.console import one_line, printable

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
        "\nA modifier such as +cutmix adds a hard example with its fields; `hexa recipes` lists the modifiers."
    )
    return 0


@command(
    "resume a run exactly where it stopped", option("RUN", "resume the run in this folder"), TRUST
)
def resume(given: Given, extra: Fields) -> None:
    from hexa.config import UserError
    from hexa.run.names import CONFIG

    run = Path(given.run)
    if not (run / CONFIG).exists():
        raise UserError(
            f"{run}: no run to resume ({CONFIG} is missing); give the run folder of hexa pretrain"
        )
    import_networks()
    from hexa.recipes import plugins
    from hexa.run.run import resume as go_on
    from hexa.runtime.console import Console

    experiment = plugins.load(run / CONFIG, given.trust, within=run)
    _finished(go_on(run, console=Console()), experiment.data)


@command(
    "train MoCo-v2 and HEXA-MoCo on embedded images and compare them, in minutes on two cores",
    option(
        "--out FOLDER",
        "write the runs and the report to this folder (default: runs/demo)",
        default="runs/demo",
    ),
    EPOCHS,
)
def demo(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    out = files.check_target_folder(given.out)
    from hexa.cli.demo import demo as run

    run(out, epochs=given.epochs)


#: Short options, and the fields that they set.
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
    """Return the experiment of a recipe or file, with the fields of the command line. Raises UserError."""
    from hexa.config import UserError
    from hexa.recipes import check, listing

    config = getattr(given, "config", None)
    if (given.recipe is None) == (config is None):
        raise UserError(
            "give either a recipe or --config FILE.yaml; `hexa recipes` lists the recipes"
        )
    if given.recipe is not None:
        listed = listing.read()
        # an unknown recipe is refused before torch is imported, if all recipes are listed
        if listed.complete and not given.recipe.endswith(".py") and ".py:" not in given.recipe:
            check(given.recipe.partition("+")[0], listed.names)
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
        # views.recipe comes first, because it replaces fields at their defaults, also those of a domain
        views = {path: value for path, value in changes.items() if path == "views.recipe"}
        experiment = override(experiment, views)
        changes |= domains.changes(domain, changes)
    fields.check_names(changes, fields.of_experiment(experiment), getattr(given, "options", ()))
    return begin_from_weights(override(experiment, changes), changes)


def shorthand(given: Given) -> dict[str, Any]:
    """Return the fields that short options set, by dotted path."""
    values = {path: getattr(given, name, None) for name, path in SHORT.items()}
    return {path: value for path, value in values.items() if value is not None}


def _finished(run: Path, data: str) -> None:
    say(f"run: {run}", f"next: {_next(run, data)}")


def _next(run: Path, data: str) -> str:
    """Return the next useful command for these images."""
    from hexa.config import UserError
    from hexa.data import open_source
    from hexa.reporting.runs import read_run
    from hexa.run.names import ADAPTATION, REPORT

    if (run / ADAPTATION).is_file():
        if read_run(run).adaptation is not None:
            return f"the verdict is in {run / REPORT}"
        return "repeat the same hexa adapt or harden command to get its verdict"
    command = ["hexa", "evaluate", "knn", str(run), "--data", data]
    with contextlib.suppress(UserError):
        source = open_source(data, "train")
        if source.labels is None:
            command = ["hexa", "embed", str(run), "--data", data, "--out", "features.npz"]
        elif not source.has_test:
            command += ["--holdout", "0.2"]
    return shlex.join(command)
