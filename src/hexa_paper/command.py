"""The commands of the paper. Nothing slow is imported at the top, so that help is fast."""

from __future__ import annotations

import json
from pathlib import Path

from hexa.cli.declare import (
    ANY_SEED,
    DATA,
    DATA_OF_RUN,
    EPOCHS,
    JSON,
    PLAN,
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
from hexa.cli.pictures import import_if_trusted
from hexa.cli.training import experiment_of

_OPTIONS = (
    "scale",
    "method",
    "out",
    "seeds",
    "epochs",
    "rates",
    "data_voc",
    "label_lists",
    "processes",
)


@command(
    "the paper's experiments as one command: plan, runs, tables, figures; continues wherever it was stopped",
    option(
        "EXPERIMENT",
        "ablation, attack-grid, beta-study, learning-curves, low-shot-curve, table1, table2, table3, table4, table5, "
        "robust, or all (all but robust)",
    ),
    DATA,
    option("--scale NAME", "small, or full: as published (default: small)", default="small"),
    option(
        "--method NAME",
        "moco or dcluster; in tables also swav or compared (default: the published one)",
    ),
    option("--out FOLDER", "write to this folder (default: runs/EXPERIMENT-METHOD-SCALE)"),
    option(
        "--seeds N",
        "train every arm with each seed (default: 0 1 2)",
        type=ANY_SEED,
        nargs="+",
        default=[0, 1, 2],
    ),
    EPOCHS,
    option(
        "--rates X",
        "let each arm choose from these learning rates; a single one is used without a search "
        "(default: half to four times the recipe's)",
        type=float,
        nargs="+",
    ),
    option(
        "--evaluate-on SOURCE",
        "measure on these labelled images (default: those of --data)",
        nargs="+",
    ),
    option(
        "--data-voc SOURCE",
        "VOC2007, for tables 2 and 4, the low-shot curve and a column of table 1",
    ),
    option(
        "--label-lists FOLDER",
        "SimCLR's lists 1percent.txt and 10percent.txt: the labelled images of table 3",
    ),
    option(
        "--processes N",
        "train each run in N processes of torchrun (default: one for each visible GPU at --scale full, else 1)",
        type=whole(1, 1024),
    ),
    option("--slurm FILE", "also write the trainings that are missing as an sbatch array"),
    PLAN,
    description="Plan an experiment of the paper, run or continue it, and write tables and figures into one folder. "
    "Any field of an experiment is an option here too and holds for every arm.",
    open=True,
)
def reproduce(given: Given, extra: Fields) -> int:
    from hexa.runtime.console import Console
    from hexa.runtime.signals import Interrupted
    from hexa_paper.loop import begin, make, show
    from hexa_paper.request import Request
    from hexa_paper.slurm import write_script

    console = Console()
    options = {name: getattr(given, name) for name in _OPTIONS}
    options["evaluate_on"] = given.evaluate_on or ()
    plans = begin(given.experiment, Request(given.data, fields=extra, **options), console)
    for line in (line for plan in plans for line in show(plan)):
        console.print(line)
    if given.slurm:
        write_script(plans, Path(given.slurm))
        console.print(f"for SLURM: sbatch {given.slurm}")
    if given.plan:
        return 0
    try:
        out = make(plans, console)
    except (Interrupted, KeyboardInterrupt) as stop:
        console.print("stopped; nothing finished is lost: the same command continues from here")
        if isinstance(stop, Interrupted):
            return stop.exit_code
        raise
    for plan in plans:
        console.print((plan.tables / "table.md").read_text())
    console.print(f"tables and figures: {out}")
    return 0


@command(
    "a figure of a run or backbone as PNG or SVG: view-space, clusters",
    option("KIND", "view-space or clusters"),
    option(
        "TARGET",
        "a run or a recipe; for clusters a run or any backbone",
        metavar="RUN",
    ),
    DATA_OF_RUN,
    option("--out FILE", "write to this .png or .svg file", required=True),
    TRUST_IMAGES,
    SEED,
    description="view-space: clean, adversarial and mixed views in two dimensions. clusters: which images a backbone "
    "finds similar.",
)
def figure(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    out = files.check_target(given.out, (".png", ".svg"))
    import_networks()
    from hexa import named
    from hexa_paper.figures.figure import CLUSTERS, figure as run

    target = given.target
    if Path(target).is_dir():
        target = Path(target)
        import_if_trusted(given)
    elif given.kind == CLUSTERS:
        target = named(target, given.seed)
    with progress_bar() as progress:
        path = run(
            given.kind,
            target,
            given.data,
            out,
            seed=given.seed,
            opens_own=given.trust,
            progress=progress,
        )
    say(f"written to {path}")


@command(
    "images per second of this machine for each scheme, the data path and the step apart",
    option(
        "RECIPE",
        "the recipe (default: %(default)s)",
        nargs="?",
        default="cifar10-moco-v2+adversarial",
    ),
    JSON,
    option("--repeats N", "time all schemes N times", type=whole(1, 1000), default=3),
    description="Measure this machine: each scheme of hard examples relative to the plain step, the naive adversarial "
    "step and the shared-gradient one, the data path alone, the whole. Fields of the recipe are options here too; "
    "without --batch-size a CPU measures batches of 32.",
    open=True,
)
def benchmark(given: Given, extra: Fields) -> None:
    experiment = experiment_of(given, extra)
    from hexa.runtime.console import Console, ProgressBar
    from hexa_paper.benchmark import benchmark as run, fitted, table

    log = Console(stderr=True)
    with ProgressBar(log) as progress:
        chosen = experiment if "batch_size" in extra else fitted(experiment)
        log.print(
            f"{chosen.recipe}: batches of {chosen.batch_size}, the recipe's own {experiment.batch_size}"
        )
        measured = run(chosen, given.repeats, progress=progress)
    if given.json:
        print(json.dumps(measured, indent=2))
    else:
        Console().print(table(measured))
