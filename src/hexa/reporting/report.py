"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from hexa.config import UserError, whole_characters
from hexa.reporting import attacks, comparison, curves, references, scores
from hexa.reporting.pictures import Gallery, Pixels
from hexa.reporting.rendering import rendered
from hexa.reporting.runs import Record, Run, flatten, is_number, read_run
from hexa.reporting.style import SIDE, save
from hexa.reporting.tables import format_duration, format_number, text
from hexa.runtime import parsing, processes
from hexa.runtime.files import write_text
from hexa.runtime.output import one_line

Shown = dict[str, Any]
"""What the template shows of one thing, by name."""
_LARGEST_FILE = 64 * 1024**2
_LARGEST_TILE = 128
"""Pictures are carried at most this large, in pixels; larger ones are thinned."""


#: Makes the pictures of a run, by the name of their file.
Makers = Mapping[str, Callable[[Run], Gallery]]


def report(
    runs: Sequence[Path | str],
    out: Path | str,
    makers: Makers | None = None,
    left_out: list[str] | None = None,
) -> Path:
    """Write one HTML file about these run folders and return its path.

    It needs no network and no other file: figures are inline SVG, pictures data URIs. Several runs are compared: fields
    in which they differ, curves overlaid, evaluations side by side. What is missing or broken in a run is said in the
    report. Nothing that a run names is opened or imported. makers: what makes pictures that a run lacks, as .npz for
    the report and as .png to look at (`hexa.run.visualize.makers`); without, none are made.
    left_out: gets a line on pictures that are missing without it. An evaluation's JSON file may stand for a run.
    Raises UserError for a folder that is not a run, or without any run.
    """
    if not runs:
        raise UserError("no run to report on; give one or several run folders")
    read = [read_run(run) for run in runs]
    page = render(read, makers)
    lacking = [
        run.name
        for run in read
        if run.config and any(not _file(run, kind).is_file() for kind in PICTURES)
    ]
    if left_out is not None and not makers and lacking:
        left_out.append(f"no pictures of {', '.join(lacking)}; add --data SOURCE to make them")
    return write_text(Path(out), whole_characters(page))


def render(runs: Sequence[Run], makers: Makers | None = None) -> str:
    """The page as text."""
    names = curves.labels(runs)

    tables: dict[str, Any] = {
        "charts": [*curves.charts(runs), *attacks.charts(runs, names)],
        "evaluation": scores.evaluations(runs, names),
        "seeds": scores.over_seeds(runs, names),
        "few": scores.few_labels(runs, names),
        "verdicts": scores.verdicts(runs, names),
        "differences": comparison.differences(runs, names),
        "environments": comparison.other_environments(runs, names),
        "published": references.tables(runs, names),
    }
    pages = [
        _page(run, name, slot) for slot, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    pictures = {kind: list(_pictures(runs, pages, kind, makers or {})) for kind in PICTURES}
    sections = {
        "helped": ("Did it help?", any(page["adaptation"] for page in pages)),
        "ran": ("What ran", True),
        "evaluation": ("Evaluation", tables["evaluation"].rows),
        "examples": ("Hard examples", pictures["gallery"]),
        "clusters": ("Clusters", pictures["clusters"]),
        "curves": ("Curves", tables["charts"]),
        "published": ("Beside published results", tables["published"]),
        "details": ("Details", any(page["environment"] or page["config"] for page in pages)),
    }
    return rendered(
        "report.html",
        title=names[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        pages=pages,
        pictures=pictures,
        sections={name: title for name, (title, content) in sections.items() if content},
        **tables,
    )


def _page(run: Run, name: str, slot: int) -> Shown:
    """What the template shows of one run."""
    commands = {
        "Resume it": shlex.join(["hexa", "resume", str(run.folder)])
        if run.state == "interrupted"
        else "",
        "Evaluate the run": ""
        if run.results
        else f"hexa evaluate knn {shlex.quote(str(run.folder))} --data SOURCE",
        "Run it again": comparison.command(run),
    }
    return {
        "name": name,
        "slot": slot,
        "folder": str(run.folder),
        "state": _state(run),
        "adaptation": run.adaptation,
        "good": run.state in ("finished", "evaluated"),
        "facts": comparison.facts(run),
        "headline": _headline(run),
        "commands": [(what, command) for what, command in commands.items() if command],
        "notes": [*map(_warning, run.warnings), *run.problems],
        "environment": [(path, text(value)) for path, value in flatten(run.environment).items()],
        "config": run.config_text,
    }


def _warning(warning: Record) -> str:
    often = f", {warning['count']} times" if warning["count"] > 1 else ""
    return f"{warning['message']} (step {warning['step']}{often})"


def _state(run: Run) -> str:
    total = run.config.get("epochs")
    planned = f" ({format_number(total)} were planned)" if is_number(total) else ""
    return (
        run.state
        if run.epoch in (None, total)
        else f"{run.state} at epoch {format_number(run.epoch)}{planned}"
    )


def _headline(run: Run) -> list[tuple[str, str, str]]:
    """The few numbers that one looks for first: (label, value, remark)."""
    shown = []
    if knn := [line["knn"] for line in run.monitor if is_number(line.get("knn"))]:
        remark = (
            f"best {max(knn):.1f} %" if max(knn) > knn[-1] else "its best so far" if knn[1:] else ""
        )
        shown.append(("k-NN monitor", f"{knn[-1]:.1f} %", remark))
    for result in scores.newest(run)[-2:]:
        metric, value = next(iter(result["metrics"].items()), ("", None))
        if is_number(value):
            label = scores.protocol(result)
            shown.append(
                (label, f"{value:.1f} %", " · ".join(filter(None, [metric, scores.data(result)])))
            )
    if run.seconds is not None:
        sessions = f", in {run.interruptions + 1} sessions" if run.interruptions else ""
        shown.append(
            ("Training time", format_duration(run.seconds), comparison.device(run) + sessions)
        )
    if rates := sorted(
        line["images_per_second"] for line in run.train if is_number(line.get("images_per_second"))
    ):
        waits = [line["data_wait"] for line in run.train if is_number(line.get("data_wait"))]
        waiting = f"{100 * sum(waits) / len(waits):.0f} % waiting for data" if waits else ""
        shown.append(("Throughput", f"{format_number(rates[len(rates) // 2])} images/s", waiting))
    return shown


def _pictures(
    runs: Sequence[Run], pages: Sequence[Shown], kind: str, makers: Makers
) -> Iterator[Shown]:
    """The pictures of the runs that have some; made where they are missing or outdated.

    Whatever fails costs these pictures only, and is noted: a page about the rest of the run is better than none.
    """
    for run, page in zip(runs, pages, strict=True):
        path = _file(run, kind)
        notes = page["notes"]
        try:
            if kind in makers and run.config and _outdated(path, run.folder.glob(PICTURES[kind])):
                if processes.world_size() > 1:
                    raise UserError("made where one process runs; 'hexa report' adds them")
                made = makers[kind](run)
                save(made.draw(side=SIDE), path.with_suffix(".png"))
                made.store(path)
        except Exception as error:
            notes.append(f"no new pictures ({kind}): {_said(error)}")
        try:
            if path.exists():
                parsing.check(path, _LARGEST_FILE, within=run.folder)
                yield {"name": page["name"], "slot": page["slot"]} | picture(Gallery.load(path))
            elif not makers and run.config:
                words = [
                    "report",
                    str(run.folder),
                    "--data",
                    str(run.config.get("data")),
                    "--out",
                    "report.html",
                ]
                notes.append(f"no pictures ({kind}): hexa {one_line(shlex.join(words))} makes them")
        except Exception as error:  # whatever a stranger's file leads to
            notes.append(f"no pictures ({kind}): {_said(error)}")


def picture(gallery: Gallery) -> Shown:
    """What the template shows of a gallery. A row: a label, and (data URI, caption, alternative) a picture."""
    step = max(1, round(gallery.tiles.shape[2] / _LARGEST_TILE))
    tiles = gallery.tiles[:, :, ::step, ::step]
    rows, columns, size = tiles.shape[:3]
    labels = gallery.labels or [""] * rows
    heads = gallery.heads or [""] * columns
    captions = gallery.captions or [[""] * columns] * rows
    labelled = []
    for row, label in enumerate(labels):
        cells = zip(tiles[row], heads, captions[row], strict=True)
        shown = [
            (_data_uri(tile), said, f"{head or label}, row {row + 1}: {said}")
            for tile, head, said in cells
        ]
        labelled.append((label, shown))
    return {
        "heads": [""] * any(labels) + list(heads),
        "rows": labelled,
        "size": size,
        "columns": columns,
    }


def _file(run: Run, kind: str) -> Path:
    return run.folder / f"{kind}.npz"


def _said(error: Exception) -> str:
    known = isinstance(error, UserError | ValueError | OSError) and str(error)
    return str(error) if known else f"{type(error).__name__}: {error}"


#: Pictures of a run by the name of their file, and what they are made from.
PICTURES = {"gallery": "checkpoints/step-*.pt", "clusters": "backbone.safetensors"}


def _outdated(path: Path, sources: Iterable[Path]) -> bool:
    return not path.is_file() or any(
        source.stat().st_mtime > path.stat().st_mtime for source in sources
    )


def _data_uri(tile: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(tile.copy()).save(file, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
