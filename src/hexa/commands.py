"""What each command does, once its arguments are parsed: one function a command, returning the exit status."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.config import UserError
from hexa.runtime import targets
from hexa.runtime.console import Console
from hexa.runtime.output import be_patient, one_line, printable

if TYPE_CHECKING:
    from hexa.experiment import Experiment
    from hexa.nn.preparation import Given
    from hexa.plugins import Trust

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
    console = Console()
    for row in described:
        parts = [row["method"], *row["hard_examples"]]
        console.print(row["name"], style="bold")
        console.print(f"  {' + '.join(parts)} on {row['data']}, {row['epochs']} epochs")
        for label in ("expected", "cost"):
            if row[label]:
                text = f"{label}: {row[label]}"
                if console.is_terminal:
                    console.print(Padding(text, (0, 0, 0, 2)))
                else:
                    console.print(f"  {text}")  # a line each, for grep
    console.print("\nhexa pretrain RECIPE --help  lists every field of one")
    return 0


def pretrain(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa pretrain`"""
    experiment = _experiment(given, extra)
    from hexa.plugins import run_folder
    from hexa.session.run import pretrain as train

    run = train(experiment, run_folder(experiment, given.out), console=Console())
    return _finished(run, experiment.data)


def adapt(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa adapt`"""
    out = targets.check_folder(given.out)
    from hexa import fields, recipes
    from hexa.adapt.command import Request
    from hexa.adapt.command import adapt as run
    from hexa.adapt.plan import seconds_of

    changes = dict(extra) | {_SHORT[name]: value for name in ("device", "precision") if (value := getattr(given, name))}
    known = [field.path for field in fields.of_experiment(recipes.get("adapt"))]
    absent = [field.path for field in fields.of_absent_hard_examples(recipes.get("adapt"))]
    fields.check_names(changes, [*known, *absent], getattr(given, "options", ()))
    request = Request(given.backbone, given.data, given.labelled, seconds_of(given.time), given.domain, changes)
    run(request, out, only_plan=given.plan, console=Console())
    return 0


def describe_fields(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa pretrain RECIPE --help`"""
    from hexa import fields

    experiment = _experiment(given, extra)
    print(f"usage: hexa pretrain {one_line(given.recipe or '--config')} [--out RUN] [--any.field VALUE …]\n")
    print("Every field with its value in this recipe:\n")
    print(printable(fields.describe(fields.of_experiment(experiment))))
    absent = fields.of_absent_hard_examples(experiment)
    if absent:
        print("\nHard examples this recipe lacks; a field adds one, --hard_examples.NAME none takes one away:\n")
        print(fields.describe(absent))
    return 0


def describe_protocol(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa evaluate PROTOCOL --help`"""
    from hexa import fields
    from hexa.evaluation import protocols

    for name, options in protocols.get(given.protocol).presets.items():
        print(f"\n{given.protocol}, preset {name}:\n")
        print(fields.describe(fields.of_config(options)))
    return 0


def resume(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa resume`"""
    from hexa import plugins
    from hexa.session.run import resume as go_on

    run = Path(given.run)
    if not (run / "config.yaml").exists():
        raise UserError(f"{run}: no run to resume (config.yaml is missing); give the folder that hexa pretrain wrote")
    experiment = plugins.load(run / "config.yaml", _trust(given))
    return _finished(go_on(run, console=Console()), experiment.data)


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
    if given.out is not None:
        targets.check(given.out, (".json",))
    from hexa import named, published
    from hexa.evaluation import evaluate as run
    from hexa.evaluation.results import NotWritten
    from hexa.reporting import tables
    from hexa.runtime.parsing import from_option
    from hexa.runtime.progress import Bar

    options = {name: from_option(value) for name, value in extra.items()}
    for name in ("preset", "test_data", "holdout", "device", "aspect"):
        if getattr(given, name) is not None:
            options[name] = getattr(given, name)
    console, lost = Console(), None
    backbone = named(given.backbone, given.seed)
    options |= _prepared(given)
    try:
        with Bar(Console(stderr=True)) as progress:
            result = run(
                given.protocol, backbone, given.data, seed=given.seed, out=given.out, progress=progress, **options
            )
    except NotWritten as error:
        lost, result = error, error.result
    figures = " · ".join(f"{name} {value:.2f}" for name, value in result["metrics"].items())
    _say(console, f"{result['protocol']} on {result['data']}: {figures}")
    compared = published.beside(result)
    if compared is not None:
        console.print(tables.beside(compared, str(result["backbone"])))
        for line in filter(None, (f"published: {compared.title}", compared.caution)):
            _say(console, line)
    for note in result.get("notes", ()):
        _say(console, f"note: {note}")
    if lost is not None:  # so that it is somewhere
        print(json.dumps(result, indent=2))
        raise lost
    if given.out is not None:
        _say(console, f"written to {given.out}")
    return 0


def embed(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa embed`"""
    out = targets.check(given.out, (".npy", ".parquet") if given.maps else (".npz", ".parquet"))
    from hexa import named
    from hexa.evaluation.embed import embed as run

    made = run(
        named(given.backbone),
        given.data,
        out,
        max_image_pixels=given.max_image_pixels,
        maps=given.maps,
        maps_precision=given.maps_precision,
        aspect=given.aspect,
        **_prepared(given),
    )
    console = Console()
    if made.preparation is not None:
        _say(console, f"note: {made.preparation}")
    what = "feature maps" if given.maps else "features"
    _say(console, f"{' × '.join(map(str, (made.num_images, *made.shape)))} {what} written to {out}")
    for problem in made.left_out[:20]:
        _say(console, f"left out: {problem}")
    if made.left_out[20:]:
        _say(console, f"… and {len(made.left_out) - 20} more")
    return 0


def visualize(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa visualize`"""
    out = targets.check(given.out, (".png",))
    from hexa.reporting.visualize import visualize as run

    target: Path | Experiment
    folder = Path(given.target)
    if folder.is_dir():
        if extra or given.domain:
            option = next(iter(extra), "domain")
            raise UserError(f"--{option}: a run has its fields already; they can be set for a recipe only")
        _import_what_is_trusted(given, folder)
        target = folder
    else:
        given.recipe, given.config = given.target, None
        target = _experiment(given, extra)
    skipped: list[str] = []
    path = run(target, given.data, out, num_images=given.num_images, seed=given.seed, gain=given.gain, problems=skipped)
    console = Console()
    _say(console, f"written to {path}")
    if skipped:
        some = "; ".join(skipped[:3]) + (" …" if skipped[3:] else "")
        _say(console, f"{len(skipped)} images could not be read and were skipped: {some}")
    return 0


def figure(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa figure`"""
    out = targets.check(given.out, (".png", ".svg"))
    from hexa import named
    from hexa.reporting.figure import OF_FEATURES
    from hexa.reporting.figure import figure as run

    target = given.target
    if Path(target).is_dir():
        target = Path(target)
        _import_what_is_trusted(given, target)
    elif given.kind in OF_FEATURES:
        target = named(target, given.seed)
    path = run(given.kind, target, given.data, out, seed=given.seed)
    _say(Console(), f"written to {path}")
    return 0


def export(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa export`"""
    out = targets.check(given.out)
    from hexa.nn.export import export as run

    checked = run(given.run, given.to, out, **_prepared(given))
    console = Console()
    _say(console, f"written to {out}, loaded back and compared")
    for name, value in checked.items():
        if isinstance(value, str | int | float):
            _say(console, f"  {name}: {value}")
    return 0


def report(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa report`"""
    out = targets.check(given.out, (".html",))
    from hexa.reporting.report import report as run

    left_out: list[str] = []
    path = run([Path(folder) for folder in given.runs], out, given.data, left_out)
    console = Console()
    for line in left_out:
        _say(console, line)
    _say(console, f"written to {path}")
    return 0


def benchmark(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa benchmark`"""
    given.config = None
    experiment = _experiment(given, extra)
    from hexa.runtime.progress import Bar
    from hexa.session.benchmark import benchmark as run
    from hexa.session.benchmark import table
    from hexa.session.benchmark_plan import plan

    said = Console(stderr=True)
    with Bar(said) as progress:
        planned = plan(experiment, given.repeats, keep_batch="batch_size" in extra)
        said.print(str(planned))
        measured = run(planned.experiment, planned.repeats, progress=progress, say=said.print)
    if given.json:
        print(json.dumps(measured, indent=2))
    else:
        Console().print(table(measured))
    return 0


def reproduce(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa reproduce`"""
    from hexa.reproduce.command import run
    from hexa.runtime.progress import Bar

    console = Console()
    return run(given, extra, console, Bar(console))


def doctor(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa doctor`"""
    from rich.text import Text

    from hexa.runtime.doctor import diagnose, failed

    findings = diagnose(Path.cwd())
    if given.json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        marks = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "failure": ("FAIL", "red")}
        console = Console()
        for finding in findings:
            mark, colour = marks[finding.status]
            console.print(Text(f"{mark:5} ", colour), Text(f"{finding.name}: {finding.found}"), sep="")
            if finding.remedy:
                console.print(f"      → {finding.remedy}")
    return 1 if failed(findings) else 0


def demo(given: argparse.Namespace, extra: Fields) -> int:
    """`hexa demo`"""
    from hexa.demo import demo as run

    run(targets.check_folder(given.out), epochs=given.epochs, console=Console())
    return 0


def _experiment(given: argparse.Namespace, extra: Fields) -> Experiment:
    """The recipe or file with the fields of the command line. Raises UserError before anything else happens."""
    if (given.recipe is None) == (given.config is None):
        raise UserError("give either a recipe or --config FILE.yaml; `hexa recipes` lists the recipes")
    from hexa import fields, plugins
    from hexa.assembly.start import begin_from_weights
    from hexa.experiment import override
    from hexa.recipes import domains

    if given.config is not None:
        experiment = plugins.load(Path(given.config), _trust(given))
    else:
        experiment = plugins.experiment_of(given.recipe)
    changes: dict[str, Any] = dict(extra)
    for name, path in _SHORT.items():
        value = getattr(given, name, None)
        if value is not None:
            changes[path] = value
    if domain := getattr(given, "domain", None):
        # first: a recipe of views replaces what still has its default, as much of a domain has
        experiment = override(experiment, {path: changes[path] for path in ("views.recipe",) if path in changes})
        changes |= domains.changes(domain, changes)
    known = [field.path for field in fields.of_experiment(experiment)]
    fields.check_names(changes, known, getattr(given, "options", ()))
    return begin_from_weights(override(experiment, changes), changes)


#: Declared options of `hexa pretrain` and the fields they stand for.
_SHORT = {
    "data": "data",
    "start": "start.weights",
    "pairs": "pairs.of",
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


def _trust(given: argparse.Namespace) -> Trust:
    return "all" if given.trust else "named"


def _import_what_is_trusted(given: argparse.Namespace, run: Path) -> None:
    """To look at a run imports nothing that it names, unless that is asked for."""
    if given.trust:
        from hexa import plugins

        plugins.load(run / "config.yaml", "all")


def _finished(run: Path, data: str) -> int:
    be_patient(lambda: 10.0)  # all is stored: nobody has to read this for the process to end
    console = Console()
    _say(console, f"run: {run}")
    _say(console, f"next: {shlex.join(['hexa', 'evaluate', 'knn', str(run), '--data', data])}")
    return 0


def _say(console: Console, line: str) -> None:
    console.print(one_line(line))
