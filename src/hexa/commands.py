"""What each command does, once its arguments are parsed: one function a command, returning the exit status."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hexa.config import UserError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from hexa.experiment import Experiment
    from hexa.nn.preparation import Given

Fields = Mapping[str, str]


def recipes(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa recipes`"""
    from rich.padding import Padding

    from hexa.recipes import describe

    described = [row for row in describe() if given.words in row["name"]]
    if not described:
        raise UserError(f"no recipe has '{given.words}' in its name; `hexa recipes` lists all")
    if given.json:
        print(json.dumps(described, indent=2))
        return 0
    console = _console()
    for row in described:
        parts = [row["method"], *row["hard_examples"]]
        console.print(row["name"], style="bold", highlight=False)
        console.print(f"  {' + '.join(parts)} on {row['data']}, {row['epochs']} epochs", highlight=False)
        for label in ("expected", "cost"):
            if row[label]:
                text = f"{label}: {row[label]}"
                if console.is_terminal:
                    console.print(Padding(text, (0, 0, 0, 2)), highlight=False)
                else:
                    print(f"  {text}")  # a line each, for grep
    console.print("\nhexa pretrain RECIPE --help  lists every field of one", highlight=False)
    return 0


def pretrain(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa pretrain`"""
    experiment = _experiment(given, extra)
    from hexa.plugins import run_folder
    from hexa.training.run import pretrain as train

    run = train(experiment, run_folder(experiment, given.out), console=_console())
    return _finished(run, experiment.data)


def describe_fields(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa pretrain RECIPE --help`"""
    from hexa import fields

    experiment = _experiment(given, extra)
    print(f"usage: hexa pretrain {given.recipe} [--out RUN] [--any.field VALUE …]\n")
    print("Every field with its value in this recipe:\n")
    print(fields.describe(fields.of_experiment(experiment)))
    absent = fields.of_absent_hard_examples(experiment)
    if absent:
        print("\nHard examples this recipe lacks; a field adds one, --hard_examples.NAME none takes one away:\n")
        print(fields.describe(absent))
    return 0


def describe_protocol(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa evaluate PROTOCOL --help`"""
    from hexa import fields
    from hexa.evaluation.protocol import protocols

    known = protocols()
    if given.protocol not in known:
        raise UserError(f"unknown protocol '{given.protocol}'; {nearest(given.protocol, known)}")
    for name, options in known[given.protocol].presets.items():
        print(f"\n{given.protocol}, preset {name}:\n")
        print(fields.describe(fields.of_config(options)))
    return 0


def resume(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa resume`"""
    from hexa import plugins
    from hexa.training.run import resume as go_on

    run = Path(given.run)
    plugins.restore(run / "config.yaml")
    done = go_on(run, console=_console())
    return _finished(done, yaml.safe_load((run / "config.yaml").read_text())["data"])


@contextmanager
def _together() -> Iterator[None]:
    """Around what the processes of a torchrun do together; all notice a user's mistake, the first says it."""
    from hexa.runtime import processes

    processes.initialize()
    failed = True
    try:
        yield
        failed = False
    except UserError as error:
        error.speaks = processes.is_main()  # type: ignore[attr-defined]
        raise
    finally:
        processes.shutdown(failed)


@_together()
def evaluate(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa evaluate`"""
    out = _writable(given.out, ".json") if given.out else None
    from hexa import named
    from hexa.evaluation import evaluate as run
    from hexa.reporting import published, tables
    from hexa.runtime.progress import Bar

    options = {name: yaml.safe_load(value) for name, value in extra.items()}
    for name in ("preset", "test_data", "holdout", "device"):
        if getattr(given, name) is not None:
            options[name] = getattr(given, name)
    console = _console()
    with Bar(_console(stderr=True)) as progress:
        result = run(
            given.protocol,
            named(given.backbone, given.seed),
            given.data,
            seed=given.seed,
            out=out,
            progress=progress,
            **_prepared(given),
            **options,
        )
    figures = " · ".join(f"{name} {value:.2f}" for name, value in result["metrics"].items())
    console.print(f"{result['protocol']} on {result['data']}: {figures}", highlight=False, soft_wrap=True)
    compared = published.beside(result)
    if compared is not None:
        console.print(tables.beside(compared, str(result["backbone"])))
        for line in filter(None, (f"published: {compared.title}", compared.caution)):
            console.print(line, highlight=False, soft_wrap=True)
    for note in result.get("notes", ()):
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    if out is not None:
        console.print(f"written to {out}", highlight=False)
    return 0


def embed(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa embed`"""
    out = _writable(given.out, ".npz", ".parquet")
    from hexa import named
    from hexa.evaluation.embed import embed as run

    made = run(named(given.backbone), given.data, out, **_prepared(given))
    console = _console()
    if made.preparation is not None:
        console.print(f"note: {made.preparation}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{made.num_images} × {made.num_features} features written to {out}", highlight=False)
    for problem in made.left_out[:20]:
        console.print(f"left out: {problem}", markup=False, highlight=False, soft_wrap=True)
    if made.left_out[20:]:
        console.print(f"… and {len(made.left_out) - 20} more", highlight=False)
    return 0


def visualize(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa visualize`"""
    out = _writable(given.out, ".png")
    if given.num_images < 1:
        raise UserError(f"--num-images {given.num_images}: at least one image is needed")
    from hexa import plugins
    from hexa.reporting.visualize import visualize as run

    target: Path | Experiment
    folder = Path(given.target)
    if folder.is_dir():
        if extra:
            raise UserError(f"--{next(iter(extra))}: a run has its fields already; they can be set for a recipe only")
        plugins.restore(folder / "config.yaml")
        target = folder
    else:
        given.recipe, given.config = given.target, None
        target = _experiment(given, extra)
    skipped: list[str] = []
    path = run(target, given.data, out, num_images=given.num_images, seed=given.seed, gain=given.gain, problems=skipped)
    console = _console()
    console.print(f"written to {path}", highlight=False)
    if skipped:
        some = "; ".join(skipped[:3]) + (" …" if skipped[3:] else "")
        said = f"{len(skipped)} images could not be read and were skipped: {some}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return 0


def figure(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa figure`"""
    out = _writable(given.out, ".png", ".svg")
    from hexa import named, plugins
    from hexa.reporting.figure import OF_FEATURES
    from hexa.reporting.figure import figure as run

    target = given.target
    if Path(target).is_dir():
        plugins.restore(Path(target) / "config.yaml")
        target = Path(target)
    elif given.kind in OF_FEATURES:
        target = named(target, given.seed)
    path = run(given.kind, target, given.data, out, seed=given.seed)
    _console().print(f"written to {path}", highlight=False)
    return 0


def export(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa export`"""
    from hexa.nn.export import export as run

    out = Path(given.out)
    checked = run(given.run, given.to, out, **_prepared(given))
    console = _console()
    console.print(f"written to {out}, loaded back and compared", highlight=False)
    for name, value in checked.items():
        if isinstance(value, str | int | float):
            console.print(f"  {name}: {value}", markup=False, highlight=False, soft_wrap=True)
    return 0


def report(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa report`"""
    out = _writable(given.out, ".html")
    from hexa import plugins
    from hexa.reporting.report import report as run

    folders = [Path(folder) for folder in given.runs]
    for folder in folders:
        plugins.restore(folder / "config.yaml")
    _console().print(f"written to {run(folders, out)}", highlight=False)
    return 0


def benchmark(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa benchmark`"""
    given.config = None
    experiment = _experiment(given, extra)
    from hexa.runtime.progress import Bar
    from hexa.training.benchmark import benchmark as run
    from hexa.training.benchmark import table

    console = _console(stderr=True)
    with Bar(console) as progress:
        measured = run(experiment, repeats=given.repeats, progress=progress)
    if given.json:
        print(json.dumps(measured, indent=2))
    else:
        _console().print(table(measured))
    return 0


def reproduce(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa reproduce`"""
    from hexa.reproduce.command import run
    from hexa.runtime.progress import Bar

    console = _console()
    return run(given, extra, console, Bar(console))


def doctor(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa doctor`"""
    from hexa.runtime.doctor import diagnose, failed

    findings = diagnose(Path.cwd())
    if given.json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        marks = {"ok": "[green]ok[/]   ", "warning": "[yellow]warn[/] ", "failure": "[red]FAIL[/] "}
        console = _console()
        for finding in findings:
            console.print(f"{marks[finding.status]} {finding.name}: ", end="")
            console.print(finding.found, markup=False, highlight=False, soft_wrap=True)
            if finding.remedy:
                console.print(f"      → {finding.remedy}", markup=False, highlight=False, soft_wrap=True)
    return 1 if failed(findings) else 0


def demo(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa demo`"""
    from hexa.demo import demo as run

    run(Path(given.out), epochs=given.epochs, console=_console())
    return 0


def _experiment(given: argparse.Namespace, extra: Fields) -> Experiment:
    """The recipe or file with the fields of the command line. Raises UserError before anything else happens."""
    if (given.recipe is None) == (given.config is None):
        raise UserError("give either a recipe or --config FILE.yaml; `hexa recipes` lists the recipes")
    from hexa import fields, plugins
    from hexa.experiment import load, override

    if given.config is not None:
        plugins.restore(Path(given.config))
        experiment = load(given.config)
    else:
        experiment = plugins.experiment_of(given.recipe)
    changes = dict(extra)
    for name, path in _SHORT.items():
        value = getattr(given, name, None)
        if value is not None:
            changes[path] = value
    known = [field.path for field in fields.of_experiment(experiment)]
    fields.check_names(changes, known, getattr(given, "options", ()))
    return override(experiment, changes)


#: Declared options of `hexa pretrain` and the fields they stand for.
_SHORT = {
    "data": "data",
    "epochs": "epochs",
    "device": "training.device",
    "precision": "training.precision",
    "compile": "training.compile",
}


def _prepared(given: argparse.Namespace) -> Given:
    """How a user wants images prepared, as typed."""
    return {
        "mean": given.mean,
        "std": given.std,
        "size": given.size,
        "crop": given.crop,
        "interpolation": given.interpolation,
    }


def _writable(path: str, *suffixes: str) -> Path:
    """`path` if something can be written there under one of these endings, its folder made; said before the work."""
    out = Path(path)
    if out.suffix not in suffixes:
        raise UserError(f"--out {path}: the name must end in {' or '.join(suffixes)}")
    if out.is_dir():
        raise UserError(f"--out {path}: is a folder; name a file in it")
    return out


def _finished(run: Path, data: str) -> int:
    console = _console()
    console.print(f"run: {run}", highlight=False, soft_wrap=True)
    console.print(f"next: hexa evaluate knn {run} --data {data}", highlight=False, soft_wrap=True)
    return 0


def _console(stderr: bool = False) -> Console:
    """Where people read; plain text when it is no terminal, and silent in all processes but the first."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=os.environ.get("RANK", "0") != "0")
