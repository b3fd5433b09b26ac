"""The demo: MoCo-v2 and HEXA-MoCo on embedded images, beside raw pixels and an untrained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hexa import recipes
from hexa.config import UserError
from hexa.evaluation import evaluate
from hexa.recipes.experiment import Experiment, load as load_experiment, override
from hexa.reporting.report import report
from hexa.reporting.tables import Table
from hexa.run.folder import PATIENCE
from hexa.run.names import CONFIG, LOCK
from hexa.run.run import pretrain, resume
from hexa.runtime.console import Console
from hexa.runtime.lock import locked

ARMS = {"MoCo-v2": "digits-moco-v2", "HEXA-MoCo": "digits-hexa-moco"}
#: In grey levels of 255: half of a step between the digits' 17 grey values, and a whole.
EPSILONS = (8, 16)
#: What is measured of each, by protocol. The attack takes few steps and two targets, for time.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "knn": {},
    "probe": {"preset": "few"},
    "robust": {"epsilons": EPSILONS, "steps": 10, "targets": 2},
}
_FEW = "linear probe, 5 labels per class"
_HEADER = (
    "features",
    "k-NN",
    _FEW,
    "all labels",
    *(f"attacked, ε={epsilon}" for epsilon in EPSILONS),
)
_CAPTION = """\
k-NN: 1,347 labelled images vote. Probe: mean ± std over 10 draws of the 50 labels; one training run each.
Attacked: the probe of all labels by {attack} on {images} images, ± half of the 95 % interval
over them; pixels moved by up to ε grey levels of 255; digits come in steps of 16."""


def demo(out: Path, *, epochs: int | None = None, console: Console | None = None) -> None:
    """Pre-train both, evaluate all four, print the table, write `out`/report.html.

    An existing run of the same experiment is resumed, so that a second demo ends at once. Raises UserError for a folder
    that holds something else, and if another demo is under way there.
    """
    what = f"is already running the demo in {out}; wait until it ends, or give another --out"
    console = console or Console()
    with locked(out / LOCK, what, patience=PATIENCE):
        folders = {name: out / recipe for name, recipe in ARMS.items()}
        experiments = {name: _experiment(recipe, epochs) for name, recipe in ARMS.items()}
        for name, folder in folders.items():
            experiment = experiments[name]
            console.rule(f"{name}: {experiment.epochs} epochs without labels", align="left")
            if not (folder / CONFIG).is_file():
                pretrain(experiment, folder, console=console)
            elif load_experiment(folder / CONFIG) == experiment:
                resume(folder, console=console)
            else:
                raise UserError(f"{folder}: holds another run; remove it, or give another --out")

        # the images are 8×8: as features, all 64 grey values (three times)
        backbones = {"raw pixels": "pixels:8", "random init": f"random:{folders['MoCo-v2']}"}
        backbones |= {name: str(folder) for name, folder in folders.items()}
        console.rule("held-out images", align="left")
        console.print("accuracy on held-out digits, %")
        rows = []
        for name, backbone in backbones.items():
            console.print(f"scoring {name} …", style="dim")
            row, robust = _row(name, backbone)
            rows.append(row)
        console.print(Table(_HEADER, rows).terminal())
        console.print(_CAPTION.format(**robust["details"]))
        console.print(f"report: {report(list(folders.values()), out / 'report.html')}")


def _experiment(recipe: str, epochs: int | None) -> Experiment:
    return override(recipes.get(recipe), {} if epochs is None else {"epochs": epochs})


def _row(name: str, backbone: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A line of the table, in percent of the held-out images, and the evaluation under attack."""
    knn, probe, robust = (
        evaluate(protocol, backbone, data="digits", **how) for protocol, how in PROTOCOLS.items()
    )
    cells = [
        name,
        f"{knn['metrics']['top1']:.1f}",
        f"{probe['metrics']['top1']:.1f} ± {probe['metrics']['top1_std']:.1f}",
        f"{robust['metrics']['top1']:.1f}",
    ]
    for epsilon in EPSILONS:
        low, high = robust["details"]["intervals"][f"robust@{epsilon}"]
        cells.append(f"{robust['metrics'][f'robust@{epsilon}']:.1f} ± {(high - low) / 2:.1f}")
    return tuple(cells), robust
