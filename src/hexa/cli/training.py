"""Commands that train, and those that list what can be trained."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.cli.declare import (
    DOMAINS,
    EPOCHS,
    GROUPS,
    IMAGES,
    JSON,
    MACHINE,
    PLAN,
    SOURCES,
    TRUST,
    Fields,
    Given,
    command,
    duration,
    flag,
    import_networks,
    in_unit,
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
    option("--out RUN", "the run folder; runs/RECIPE if not given"),
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

    experiment = experiment_of(given, extra)
    recipe = one_line(given.recipe or "--config FILE")
    own = list(fields.of_experiment(experiment))
    absent = fields.of_absent_hard_examples(experiment)
    listed = own if everything else [field for field in own if field.is_common]
    print(f"usage: hexa pretrain {recipe} [--out RUN] [--any.field VALUE …]\n")
    print("Fields with their values in this recipe:\n")
    print(printable(fields.describe(listed)))
    if not everything:
        kinds = sorted({field.path.split(".")[1] for field in absent})
        left = len(own) - len(listed) + len(absent)
        print(f"\nHard examples that this recipe lacks: {', '.join(kinds)}.")
        print(f"`hexa pretrain {recipe} --help-all` lists {left} more fields.")
    elif absent:
        print("\nHard examples that this recipe lacks. A field adds one:\n")
        print(fields.describe(absent))
    return 0


@command("continue a run exactly where it stopped", option("RUN", "a run folder"), TRUST)
def resume(given: Given, extra: Fields) -> None:
    from hexa.config import UserError

    run = Path(given.run)
    if not (run / "config.yaml").exists():
        raise UserError(
            f"{run}: no run to resume (config.yaml is missing); give the folder that hexa pretrain wrote"
        )
    import_networks()
    from hexa.recipes import plugins
    from hexa.run.run import resume as go_on
    from hexa.runtime.console import Console

    experiment = plugins.load(run / "config.yaml", given.trust)
    _finished(go_on(run, console=Console()), experiment.data)


#: Options that `adapt` and `harden` share.
_FROM_WEIGHTS = (
    option("BACKBONE", "weights to begin from: a run · a file of weights · timm:NAME"),
    option("--data SOURCE", "images to learn from: " + SOURCES, required=True),
    option("--labelled SOURCE", "labelled images to judge by; labels are never trained on"),
    GROUPS,
    option(
        "--time TIME",
        "for everything, such as 90s, 30m or 2h; 30m if not given",
        type=duration,
        default="30m",
    ),
)
_DESCRIBED = (
    "Look at the images, plan what fits the time, train, and compare start and result. Any field of the experiment is "
    "an option, as in `hexa pretrain {}`. After an interruption the same command continues."
)


@command(
    "train given weights further on your own images within a time, and say whether it helped",
    *_FROM_WEIGHTS,
    option("--out RUN", "the run folder; runs/adapt if not given", default="runs/adapt"),
    option("--domain NAME", DOMAINS + "; by their look if not given"),
    PLAN,
    *MACHINE,
    description=_DESCRIBED.format("adapt --help"),
    open=True,
)
def adapt(given: Given, extra: Fields) -> int:
    return _from_weights(given, extra)


@command(
    "make given weights robust against attacks on your own images within a time, and say what it gained and cost",
    *_FROM_WEIGHTS,
    option(
        "--strength EPSILON",
        "of the attacks, in grey levels; 4 if not given",
        type=in_unit("/255"),
        default=4.0,
    ),
    option(
        "--price POINTS",
        "of clean accuracy that may be lost; 2 if not given",
        type=in_unit("%"),
        default=2.0,
    ),
    option("--out RUN", "the run folder; runs/harden if not given", default="runs/harden"),
    option("--domain NAME", "kind of images: whether they may be mirrored"),
    PLAN,
    *MACHINE,
    description=_DESCRIBED.format("teacher --help"),
    open=True,
)
def harden(given: Given, extra: Fields) -> int:
    return _from_weights(given, extra, strength=given.strength, price=given.price)


def _from_weights(given: Given, extra: Fields, **more: Any) -> int:
    """more: what only `hexa harden` asks."""
    from hexa.config import UserError
    from hexa.runtime import targets

    out = targets.check_folder(given.out)
    for name in extra:  # before the slow imports, what is plainly a misspelt option
        if near := difflib.get_close_matches(f"--{name}", given.options, 1, cutoff=0.8):
            raise UserError(f"--{name}: no such option or field; did you mean '{near[0]}'?")
    import_networks()
    from hexa import recipes
    from hexa.adaptation.command import AdaptRequest, adapt
    from hexa.adaptation.harden import HardenRequest
    from hexa.cli import fields
    from hexa.runtime.console import Console

    kind = HardenRequest if more else AdaptRequest
    changes = dict(extra) | {
        _SHORT[name]: value for name in ("device", "precision") if (value := getattr(given, name))
    }
    made = recipes.get(kind.recipe)
    known = (*fields.of_experiment(made), *fields.of_absent_hard_examples(made))
    fields.check_names(changes, known, given.options)
    asked = (
        given.backbone,
        given.data,
        given.labelled,
        given.time,
        given.domain,
        changes,
        given.groups,
    )
    go_on = (
        shlex.join(["hexa", *given.arguments])
        if os.environ.get("WORLD_SIZE", "1") == "1"
        else "the same command"
    )
    done = adapt(
        kind(*asked, **more),
        out,
        only_plan=given.plan,
        console=Console(),
        begun=given.begun,
        go_on=go_on,
    )
    return (
        0 if given.plan or "winner" in done or "verdict" not in done else 2
    )  # the time was not enough to train


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

    experiment = (
        plugins.experiment_of(given.recipe)
        if config is None
        else plugins.load(Path(config), given.trust)
    )
    changes: dict[str, Any] = dict(extra)
    changes |= {
        path: value
        for name, path in _SHORT.items()
        if (value := getattr(given, name, None)) is not None
    }
    if domain := getattr(given, "domain", None):
        # first, since a recipe of views replaces fields at their defaults, which many of a domain's are
        experiment = override(
            experiment, {path: changes[path] for path in ("views.recipe",) if path in changes}
        )
        changes |= domains.changes(domain, changes)
    fields.check_names(changes, fields.of_experiment(experiment), getattr(given, "options", ()))
    return begin_from_weights(override(experiment, changes), changes)


def _check_recipe(spec: str) -> None:
    """Raise UserError for a mistyped recipe before torch is imported, if all recipes are listed."""
    from hexa.recipes import check, listing

    listed = listing.read()
    if listed.complete and not spec.endswith(".py") and ".py:" not in spec:
        check(spec.partition("+")[0], listed.names)


#: Short options of `hexa pretrain` and their fields.
_SHORT = {
    "data": "data",
    "start": "start.weights",
    "images": "images",
    "epochs": "epochs",
    "device": "training.device",
    "precision": "training.precision",
    "compile": "training.compile",
}


def _finished(run: Path, data: str) -> None:
    say(f"run: {run}", f"next: {_next(run, data)}")


def _next(run: Path, data: str) -> str:
    """A command that works with these images, as far as that can be told at once."""
    from hexa.config import UserError
    from hexa.data import open_source
    from hexa.run.folder import ADAPTATION
    from hexa.runtime import paths

    if (run / ADAPTATION).is_file():
        return "the same hexa adapt or harden command, which compares it with the start"
    command = ["hexa", "evaluate", "knn", str(run), "--data", data]
    if data.startswith(("folder:", "parquet:")) or Path(paths.parts(data).body).is_dir():
        with contextlib.suppress(UserError):
            source = open_source(data, "train")
            if source.labels is None:
                command = ["hexa", "embed", str(run), "--data", data, "--out", "features.npz"]
            elif "test" not in source.splits():
                command += ["--holdout", "0.2"]
    return shlex.join(command)
