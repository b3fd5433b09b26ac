"""The demo: MoCo-v2 and HEXA-MoCo on embedded images, compared with raw pixels and an untrained network."""

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
#: Radii ε in units of 1/255; digits have 17 values, 16/255 apart.
EPSILONS = (8, 16)
#: Options of each protocol. The attack has few steps and two targets, to save time.
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
    *(f"attacked, ε={epsilon}/255" for epsilon in EPSILONS),
)
_CAPTION = """\
k-NN: 1,347 labelled images vote. Linear probe: mean ± std over 10 draws of 50 labels. One training run each.
Attacked: the probe of all labels under {attack}, on {images} images,
± half of the 95 % interval over images. ε is the largest change of a pixel; the digits have 17 values, 16/255 apart."""


def demo(out: Path, *, epochs: int | None = None, console: Console | None = None) -> None:
    """Pre-train both networks, evaluate all four, print the table, and write `out`/report.html.

    A run of the same experiment is resumed, so that a second demo ends at once. Raises UserError if the folder holds
    anything else, or if another demo is running in it.
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

                # pixels:8 takes all 64 pixels of the 8×8 images as features, in three equal channels
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
    """Return a row of the table, in percent of the held-out images, and the result of the evaluation under attack."""
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
