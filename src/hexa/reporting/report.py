"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import base64
import io
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from hexa.config import UserError
from hexa.reporting import attacks, comparison, counterparts, curves, scores
from hexa.reporting.runs import Run, is_number, read_run
from hexa.reporting.tables import format_duration, format_number
from hexa.runtime import parsing, processes
from hexa.runtime.files import write_whole

if TYPE_CHECKING:
    from hexa.reporting.gallery import Pixels

GALLERY, CLUSTERS = "gallery.png", "clusters.png"
PICTURES = (GALLERY, CLUSTERS)
Maker = Callable[[Path, str, Path], Path]
"""Writes pictures of a run folder, of a source, to a file."""
_LARGEST_FILE = 64 * 1024**2
_LARGEST_TILE = 128
"""Pictures are carried at most this large, in pixels; larger ones are thinned."""


def report(
    runs: Sequence[Path | str], out: Path | str, data: str | None = None, left_out: list[str] | None = None
) -> Path:
    """Write one HTML file about these run folders and return its path.

    It needs no network and no other file: figures are inline SVG, pictures data URIs. Several runs are compared: fields
    in which they differ, curves overlaid, evaluations side by side. What is missing or broken in a run is said in the
    report. Nothing that a run names is opened or imported. data: a source of images, for runs without a gallery of
    their hard examples, or of clusters of their features (`gallery.png`, `clusters.png`), which are then made.
    left_out: gets a line on pictures that are missing without it. An evaluation's JSON file may stand for a run.
    Raises UserError for a folder that is not a run, or without any run.
    """
    if not runs:
        raise UserError("no run to report on; give one or several run folders")
    read = [read_run(run) for run in runs]
    # a name that is not UTF-8 is shown with escapes
    page = render(read, data).encode(errors="backslashreplace")
    lacking = [run.name for run in read if run.config and any(not (run.folder / name).is_file() for name in PICTURES)]
    if left_out is not None and data is None and lacking:
        left_out.append(f"no pictures of {', '.join(lacking)}; add --data SOURCE to make them")
    return write_whole(Path(out), lambda file: file.write(page))


def render(runs: Sequence[Run], data: str | None = None) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hexa.reporting", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["svg"] = Markup  # charts escape their texts themselves
    environment.filters["breakable"] = _breakable
    names = curves.labels(runs)

    def package_file(name: str) -> Markup:
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    return environment.get_template("report.html").render(
        title=names[0] if len(runs) == 1 else f"{len(runs)} runs compared",
        style=package_file("report.css"),
        script=package_file("report.js"),
        pages=[_page(run, name, slot, data) for slot, (run, name) in enumerate(zip(runs, names, strict=True))],
        charts=[*curves.charts(runs), *attacks.charts(runs, names)],
        evaluation=scores.evaluations(runs, names),
        seeds=scores.over_seeds(runs, names),
        few=scores.few_labels(runs, names),
        differences=comparison.differences(runs),
        environments=comparison.other_environments(runs),
        published=counterparts.blocks(runs, names),
    )


def _breakable(name: str) -> Markup:
    """A field's name, which a narrow screen may break after underscores and dots."""
    return Markup(re.sub(r"([_.])", r"\1<wbr>", str(escape(name))))


@dataclass(frozen=True)
class Picture:
    """A gallery for the page: rows of (data URI, caption, alternative text), or why there is none."""

    titles: tuple[str, ...] = ()
    rows: tuple[tuple[tuple[str, str, str], ...], ...] = ()
    size: int = 0
    missing: str = ""

    @property
    def columns(self) -> int:
        return len(self.titles)


def _page(run: Run, name: str, slot: int, data: str | None) -> dict[str, Any]:
    """What the template shows of one run."""
    return {
        "name": name,
        "slot": slot % 8,
        "folder": str(run.folder),
        "state": _state(run),
        "adaptation": run.adaptation
        and run.adaptation | {"grid": comparison.Grid(run.adaptation["header"], tuple(run.adaptation["rows"]))},
        "good": run.state in ("finished", "evaluated"),
        "facts": comparison.facts(run),
        "headline": _headline(run),
        "command": comparison.command(run),
        "resume": shlex.join(["hexa", "resume", str(run.folder)]) if run.state == "interrupted" else "",
        "gallery": _pictures(run, GALLERY, "checkpoints/step-*.pt", _visualize, data),
        "clusters": _pictures(run, CLUSTERS, "backbone.safetensors", _clusters, data),
        "warnings": run.warnings,
        "problems": run.problems,
        "environment": comparison.listed(run.environment),
        "config": run.config_text,
    }


def _state(run: Run) -> str:
    total = run.config.get("epochs")
    if run.state == "finished" or run.epoch is None:
        return run.state
    return f"{run.state} at epoch {format_number(run.epoch)}" + (
        f" of {format_number(total)}" if is_number(total) else ""
    )


def _headline(run: Run) -> list[tuple[str, str, str]]:
    """The few numbers that one looks for first: (label, value, remark)."""
    shown = []
    knn = [line["knn"] for line in run.monitor if is_number(line.get("knn"))]
    if knn:
        remark = f"best {max(knn):.1f} %" if max(knn) > knn[-1] else "its best so far" if knn[1:] else ""
        shown.append(("k-NN monitor", f"{knn[-1]:.1f} %", remark))
    for result in scores.newest(run)[-2:]:
        metric, value = next(iter(result["metrics"].items()), ("", None))
        if is_number(value):
            label = scores.protocol(result)
            shown.append((label, f"{value:.1f} %", " · ".join(filter(None, [metric, scores.data(result)]))))
    if run.seconds is not None:
        sessions = f", in {run.interruptions + 1} sessions" if run.interruptions else ""
        shown.append(("Training time", format_duration(run.seconds), comparison.device(run) + sessions))
    rates = sorted(line["images_per_second"] for line in run.train if is_number(line.get("images_per_second")))
    if rates:
        waits = [line["data_wait"] for line in run.train if is_number(line.get("data_wait"))]
        waiting = f"{100 * sum(waits) / len(waits):.0f} % waiting for data" if waits else ""
        shown.append(("Throughput", f"{format_number(rates[len(rates) // 2])} images/s", waiting))
    return shown


def _pictures(run: Run, name: str, made_from: str, make: Maker, data: str | None) -> Picture:
    """The pictures of a file of the run; made of `data` if there is none, or one older than the files it is made from.

    Whatever fails here costs these pictures only: a page about the rest of the run is better than none.
    """
    from hexa.reporting.gallery import Gallery

    path = run.folder / name
    missing = "" if data is not None else "hexa report --data SOURCE makes them of your images"
    try:
        if data is not None and run.config and _outdated(path, run.folder.glob(made_from)):
            if processes.world_size() > 1:
                missing = "made where one process runs; 'hexa report' adds them"
            else:
                make(run.folder, data, path)
    except Exception as error:
        missing = _said(error)
    if not path.exists():
        return Picture(missing=missing if run.config else "the run has no configuration to make them from")
    try:
        parsing.check(path, _LARGEST_FILE, within=run.folder)
        gallery = Gallery.load(path)
    except Exception as error:  # whatever a stranger's file leads Pillow to
        return Picture(missing=_said(error))
    step = max(1, round(gallery.columns[0].tiles.shape[1] / _LARGEST_TILE))
    rows = tuple(
        tuple(
            (
                _data_uri(column.tiles[row][::step, ::step]),
                column.captions[row],
                ": ".join(filter(None, (f"{column.title}, row {row + 1}", column.captions[row]))),
            )
            for column in gallery.columns
        )
        for row in range(gallery.num_images)
    )
    size = gallery.columns[0].tiles.shape[1] // step
    return Picture(tuple(column.title for column in gallery.columns), rows, size)


def _said(error: Exception) -> str:
    known = isinstance(error, UserError | ValueError | OSError) and str(error)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _visualize(folder: Path, data: str, out: Path) -> Path:
    from hexa.reporting.visualize import visualize  # torch, and all that trains, is imported where it is needed

    return visualize(folder, data, out, opens_own=False)


def _clusters(folder: Path, data: str, out: Path) -> Path:
    from hexa.reporting.clusters import clusters

    return clusters(folder, data, out)


def _outdated(path: Path, sources: Iterable[Path]) -> bool:
    return not path.is_file() or any(source.stat().st_mtime > path.stat().st_mtime for source in sources)


def _data_uri(tile: Pixels) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(tile.copy()).save(file, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
