"""The commands `visualize` and `report`."""

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
    progress_bar,
    say,
    whole,
)
from hexa.cli.training import experiment_of

if TYPE_CHECKING:
    from hexa.recipes.experiment import Experiment


@command(
    "draw clean views, perturbations, adversarial and cut-mixed views side by side",
    option("TARGET", "draw a run, or a recipe with random weights", metavar="RUN|RECIPE"),
    DATA_OF_RUN,
    option("--domain NAME", DOMAINS + "; only for a recipe"),
    option("--out FILE.png", "write the figure to this file", required=True),
    option("--num-images N", "draw N rows (default: 8)", type=whole(1, 256), default=8),
    TRUST_IMAGES,
    SEED,
    open=True,
)
def visualize(given: Given, extra: Fields) -> None:
    from hexa.config import UserError
    from hexa.runtime import files

    out = files.check_target(given.out, (".png",))
    import_networks()
    from hexa.run.visualize import visualize as run

    target: Path | Experiment = Path(given.target)
    if Path(given.target).is_dir():
        if extra or given.domain:
            option = next(iter(extra), "domain")
            raise UserError(
                f"--{option}: the fields of a run are fixed; give a recipe to set fields"
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
            opens_own=given.trust,
            notes=notes,
            progress=progress,
        )
    say(*(f"note: {note}" for note in notes), f"written to {path}")


@command(
    "write an HTML report on one or several runs: curves, tables, hard examples",
    option(
        "RUNS",
        "report these run folders, or JSON files of hexa evaluate --out",
        nargs="+",
        metavar="RUN",
    ),
    option(
        "--out FILE.html", "write the report to this file, which needs no other file", required=True
    ),
    option(
        "--data SOURCE",
        "draw the hard examples of the runs on these images (default: existing figures of the runs)",
    ),
)
def report(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    out = files.check_target(given.out, (".html",))
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
    """Import the Python file that a run names if --trust is given."""
    if given.trust:
        from hexa.recipes import plugins

        target = Path(given.target)
        plugins.load(target / "config.yaml", trust=True, within=target)
