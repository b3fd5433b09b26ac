"""Commands whose result is looked at: pictures of hard examples, and the report of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hexa.cli.declare import (
    DATA_OF_RUN,
    DOMAINS,
    SEED,
    TRUST_IMAGES,
    Fields,
    Given,
    command,
    import_networks,
    option,
    positive,
    progress_bar,
    say,
    whole,
)
from hexa.cli.training import experiment_of

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment


@command(
    "a picture: clean | perturbation | adversarial | cut-mixed, side by side",
    option("TARGET", "a run folder, or a recipe with fresh weights", metavar="RUN|RECIPE"),
    DATA_OF_RUN,
    option("--domain NAME", "for a recipe: " + DOMAINS),
    option("--out FILE.png", required=True),
    option("--num-images N", "rows of the picture (default: 8)", type=whole(1, 256), default=8),
    TRUST_IMAGES,
    option("--gain X", "how many times the perturbation is magnified", type=positive),
    SEED,
    open=True,
)
def visualize(given: Given, extra: Fields) -> None:
    from hexa.config import UserError
    from hexa.runtime import targets

    out = targets.check(given.out, (".png",))
    import_networks()
    from hexa.run.visualize import visualize as run

    target: Path | Experiment = Path(given.target)
    if Path(given.target).is_dir():
        if extra or given.domain:
            option = next(iter(extra), "domain")
            raise UserError(
                f"--{option}: the fields of a run are fixed; only those of a recipe can be set"
            )
        import_if_trusted(given)
    else:
        given.recipe = given.target
        target = experiment_of(given, extra)
    notes: list[str] = []
    with progress_bar() as progress:
        path = run(
            target,
            given.data,
            out,
            num_images=given.num_images,
            seed=given.seed,
            gain=given.gain,
            opens_own=given.trust,
            notes=notes,
            progress=progress,
        )
    say(*(f"note: {note}" for note in notes), f"written to {path}")


@command(
    "one self-contained HTML file on one or several runs: curves, tables, hard examples",
    option("RUNS", "run folders, or JSON files of hexa evaluate --out", nargs="+", metavar="RUN"),
    option("--out FILE.html", required=True),
    option(
        "--data SOURCE",
        "images to make the pictures of the runs from (default: the pictures they have)",
    ),
)
def report(given: Given, extra: Fields) -> None:
    from hexa.runtime import targets

    out = targets.check(given.out, (".html",))
    import_networks()
    from hexa.reporting.report import report as run
    from hexa.run.visualize import store_pictures

    folders = [Path(folder) for folder in given.runs]
    if given.data is not None:
        for folder in folders:
            if folder.is_dir():
                say(*store_pictures(folder, given.data))
    say(f"written to {run(folders, out)}")


def import_if_trusted(given: Given) -> None:
    """Import the file that a run names, only with --trust."""
    if given.trust:
        from hexa.recipes import plugins

        plugins.load(Path(given.target) / "config.yaml", trust=True)
