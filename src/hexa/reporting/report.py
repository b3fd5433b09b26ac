"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hexa.config import UserError, is_number, reason, whole_characters
from hexa.reporting import comparison, curves, references, scores, verdicts
from hexa.reporting.rendering import data_uri, rendered
from hexa.reporting.runs import Run, flatten, read_run
from hexa.reporting.tables import format_duration, format_passes, text
from hexa.runtime import parsing
from hexa.runtime.files import write_text

#: The picture of a run's hard examples in its folder.
GALLERY = "gallery.png"
#: The first bytes of every PNG.
_PNG = b"\x89PNG\r\n\x1a\n"
#: Bytes of that file, at most.
_LARGEST_FILE = 32 * 1024**2


def report(runs: Sequence[Path | str], out: Path | str) -> Path:
    """Write one HTML file about these run folders and return its path.

    It needs no network and no other file: figures and pictures are data URIs. Several runs are compared: fields in
    which they differ, curves overlaid, evaluations side by side. What is missing or broken in a run is noted in the
    report. Nothing that a run names is opened or imported. An evaluation's JSON file may stand for a run. Raises
    UserError for a folder that is not a run, or without any run.
    """
    if not runs:
        raise UserError("no run to report on; give one or several run folders")
    page = render([read_run(run) for run in runs])
    return write_text(Path(out), whole_characters(page))


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    names = curves.labels(runs)
    pictures = map(_picture, runs)
    return rendered(
        "report.html",
        runs=[(*one, *picture) for *one, picture in zip(runs, names, pictures, strict=True)],
        charts=curves.charts(runs),
        evaluation=scores.evaluations(runs, names),
        scores=scores,
        seeds=scores.over_seeds(runs, names),
        verdicts=verdicts.verdicts(runs, names),
        differences=comparison.differences(runs, names),
        published=references.tables(runs, names),
        duration=format_duration,
        flatten=flatten,
        is_number=is_number,
        passes=format_passes,
        text=text,
    )


def _picture(run: Run) -> tuple[str, str]:
    """The picture of a run's hard examples as a data URI; empty if there is none, with a note that says why."""
    path = run.folder / GALLERY
    try:
        if not path.exists():
            folder = shlex.quote(str(run.folder))
            why = f"no pictures; hexa report {folder} --data SOURCE --out FILE.html draws them"
            return "", why if run.config else ""
        parsing.check(path, _LARGEST_FILE, within=run.folder)
        content = path.read_bytes()
        if not content.startswith(_PNG):
            raise UserError(f"{GALLERY} is not a PNG")
        return data_uri("image/png", content), ""
    except (OSError, UserError) as error:
        return "", f"no pictures: {reason(error)}"
