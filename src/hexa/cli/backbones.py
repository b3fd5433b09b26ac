"""The commands `evaluate`, `compare`, `embed` and `export`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.cli.declare import (
    BACKBONE,
    BACKBONES,
    COUNT,
    DATA,
    GROUPS,
    JSON,
    SEED,
    SOURCES,
    Fields,
    Given,
    command,
    duration,
    import_networks,
    option,
    progress_bar,
    say,
    whole,
)
from hexa.evaluation import protocols

if TYPE_CHECKING:
    from hexa.config import Config

#: Maximum number of backbones whose names fit into the header of a table in 80 columns.
_MOST_NAMED = 3


@contextmanager
def _together() -> Iterator[None]:
    """Wrap work that the processes of a torchrun share; a user's mistake ends all of them, and rank 0 reports it."""
    import_networks()
    from hexa.config import UserError
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


@command(
    f"evaluate a backbone on labelled images: {', '.join(protocols.names())}",
    option("PROTOCOL", f"choose the protocol: {', '.join(protocols.names())}"),
    BACKBONE,
    DATA,
    description="Evaluate a backbone on labelled images by a published protocol. Every field of the protocol is an "
    "option, such as --k 20 for knn; `hexa evaluate PROTOCOL --help` lists the fields.",
    request="EvaluationRequest",
    open=True,
)
@_together()
def evaluate(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    if (out := getattr(given, "out", None)) is not None:
        files.check_target(out, (".json",))
    import hexa
    from hexa.evaluation.request import EvaluationRequest
    from hexa.evaluation.results import NotWritten
    from hexa.reporting import references, scores
    from hexa.runtime.console import Console

    options = _requested(EvaluationRequest, given, extra)
    lost = None
    try:
        with progress_bar() as progress:
            result = hexa.evaluate(
                given.protocol, given.backbone, given.data, progress=progress, **options
            )
    except NotWritten as error:
        lost = error
        result = error.result
    figures = " · ".join(f"{name} {value:.2f}" for name, value in result["metrics"].items())
    say(f"{result['protocol']} on {scores.spelled(result)}: {figures}")
    for table, caution in references.of_result(result):
        Console().print(table.terminal())
        say(f"published: {table.title}", caution)
    say(_remark(given.backbone), *(f"note: {note}" for note in result["notes"]))
    if lost is not None:  # printed, so that the result is not lost
        print(json.dumps(result, indent=2))
        raise lost
    if out is not None:
        say(f"written to {out}")


def describe_protocol(given: Given, extra: Fields) -> int:
    """Print the fields of a protocol, for `hexa evaluate PROTOCOL --help`; return the exit status."""
    import textwrap

    from hexa.cli import fields

    print("\n" + textwrap.fill(protocols.summary(given.protocol), 100))
    for name, options in protocols.get(given.protocol).presets.items():
        listed = fields.describe(fields.of_experiment(options))
        print(f"\n{given.protocol}, preset {name}:\n\n{listed}")
    return 0


@command(
    "compare backbones on your own images, with confidence intervals and a report",
    option("BACKBONE", "compare the others with this backbone: " + BACKBONES),
    option("BACKBONES", "compare one or more other backbones", nargs="+", metavar="OTHER"),
    option("--data SOURCE", "use these images: " + SOURCES, required=True),
    option("--labelled SOURCE", "score these labelled images (default: those of --data)"),
    GROUPS,
    option(
        "--images N",
        "draw N labelled images by the seed, evenly from the classes (default: all)",
        type=COUNT,
    ),
    option(
        "--time TIME",
        "limit reading and extraction to this time (default: 10m)",
        type=duration,
        default="10m",
    ),
    option(
        "--size N",
        "resize images to N pixels for all backbones (default: native resolution of each)",
        type=whole(4, 4096),
    ),
    option(
        "--out FOLDER",
        "write compare.html and compare.json to this folder (default: runs/compare)",
        default="runs/compare",
    ),
    SEED,
    JSON,
    option(
        "--device NAME",
        "choose the device: auto, cpu, cuda or cuda:N (default: auto)",
        default="auto",
    ),
    description="Compare backbones on labelled images, each at its own image size, normalisation and crop. A linear "
    "probe, which decides, and k-NN are cross-validated over all labelled images. Differences are paired, with 95 % "
    "intervals.",
)
@_together()
def compare(given: Given, extra: Fields) -> None:
    from hexa.runtime import files, processes

    out = files.check_target_folder(given.out)
    from hexa import named
    from hexa.comparison import verdict
    from hexa.comparison.compare import CompareRequest, compare as run
    from hexa.comparison.page import write
    from hexa.runtime.console import Console

    names = ("data", "labelled", "groups", "images", "size", "seed", "device")
    options = {name: getattr(given, name) for name in names}
    backbones = tuple(map(named, (given.backbone, *given.backbones)))
    request = CompareRequest(backbones=backbones, seconds=given.time, **options)
    with progress_bar() as progress:
        found = run(request, progress)
        if not processes.is_main():
            return
        progress("writing the report", 0, 1)
        page = write(found, request, out)
    if given.json:
        print(json.dumps(found.record, indent=2))
        return
    console = Console()
    numbers = None
    if len(found.sides) > _MOST_NAMED:
        numbers = [f"({place})" for place in range(1, len(found.sides) + 1)]
        pairs = zip(numbers, found.sides, strict=True)
        say(*(f"{number} {side.name}" for number, side in pairs))
    console.print(verdict.table(found.sides, found.verdict, numbers).terminal())
    say(
        *map(_remark, (given.backbone, *given.backbones)),
        *(f"note: {note}" for note in found.notes),
    )
    console.print(found.verdict.sentence, style="bold")
    say(f"report: {page}")


@command(
    "extract the features of every image, for search, clustering and plots",
    BACKBONE,
    DATA,
    option(
        "--out FILE",
        "write features, labels and paths to this .npz or .parquet file",
        required=True,
    ),
    request="EmbeddingRequest",
)
def embed(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    dense = hasattr(given, "dense")
    out = files.check_target(given.out, (".npz",) if dense else (".npz", ".parquet"))
    from hexa import named
    from hexa.evaluation.embed import embed as run
    from hexa.evaluation.request import EmbeddingRequest

    options = _requested(EmbeddingRequest, given, extra)
    with progress_bar() as progress:
        made = run(named(given.backbone), given.data, out, progress=progress, **options)
    say(
        _remark(given.backbone),
        f"note: {made.preparation}" if made.preparation else "",
        *(f"note: {note}" for note in made.notes),
        (
            f"{' × '.join(map(str, (made.num_images, *made.shape)))} "
            f"{'dense features' if dense else 'features'} (computed in {made.precision}) of "
            f"{made.source} written to {out}"
        ),
        *(f"left out: {problem}" for problem in made.left_out[:20]),
        f"… and {len(made.left_out) - 20:,} more" if made.left_out[20:] else "",
    )


@command(
    "convert a backbone for another library, and check the converted weights",
    option("RUN", "convert this backbone: " + BACKBONES),
    option("--to FORMAT", "convert to torchvision, timm, safetensors or onnx", required=True),
    option("--out PATH", "write the converted weights to this path", required=True),
    request="ImageOptions",
)
def export(given: Given, extra: Fields) -> None:
    from hexa.runtime import files

    out = files.check_target(given.out)
    import_networks()
    from hexa.evaluation.request import ImageOptions
    from hexa.weights.export import export as run

    options = _requested(ImageOptions, given, extra)
    with progress_bar() as progress:
        checked = run(given.run, given.to, out, progress=progress, **options)
    say(_remark(given.run), f"written to {out}, loaded back and compared")
    say(
        *(
            f"  {name}: {value}"
            for name, value in checked.items()
            if isinstance(value, str | int | float)
        )
    )


def _requested(request: type[Config], given: Given, extra: Fields) -> dict[str, Any]:
    """Return the options of a request: declared options, and those that the parser does not know."""
    from hexa.runtime.parsing import from_option

    typed = {name: getattr(given, name) for name in request.model_fields if hasattr(given, name)}
    return {name: from_option(value) for name, value in {**typed, **extra}.items()}


def _remark(run: str) -> str:
    """Return a note if a run is unfinished, or if its adaptation exported better weights; else an empty string."""
    folder = Path(run)
    if not folder.is_dir():
        return ""
    from hexa.run.names import ADAPTATION, BACKBONE, CONFIG, WINNER
    from hexa.runtime.packages import resume_command

    if not (folder / CONFIG).is_file():
        return ""
    adapts = (folder / ADAPTATION).is_file()
    if not (folder / BACKBONE).is_file():
        remedy = "the same hexa adapt command" if adapts else resume_command(folder)
        return f"note: {run} is unfinished, so its newest checkpoint is used; {remedy} finishes the training"
    if adapts and (folder / WINNER).is_file():
        return f"note: {run} gives the final weights of the training; the verdict exported the better weights as {folder / WINNER}"
    return ""
