"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hexa.config import UserError, reason, whole_characters
from hexa.reporting import comparison, curves, references, scores
from hexa.reporting.rendering import data_uri, rendered
from hexa.reporting.runs import Record, Run, flatten, is_number, read_run
from hexa.reporting.tables import format_passes, text
from hexa.runtime import parsing
from hexa.runtime.files import write_text

Shown = dict[str, Any]
"""The content of a template, by name."""
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

    tables: dict[str, Any] = {
        "charts": curves.charts(runs),
        "evaluation": scores.evaluations(runs, names),
        "seeds": scores.over_seeds(runs, names),
        "verdicts": scores.verdicts(runs, names),
        "differences": comparison.differences(runs, names),
        "environments": comparison.other_environments(runs, names),
        "published": references.tables(runs, names),
    }
    pages = [
        _page(run, name, slot) for slot, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    pictures = list(_pictures(runs, pages))
    sections = {
        "helped": ("Did it help?", any(page["adaptation"] for page in pages)),
        "ran": ("What ran", True),
        "evaluation": ("Evaluation", tables["evaluation"].rows),
        "examples": ("Hard examples", pictures),
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
    """The content of the template for one run."""
    return {
        "name": name,
        "slot": slot,
        "folder": str(run.folder),
        "state": _state(run),
        "adaptation": run.adaptation,
        "good": run.state in ("finished", "evaluated"),
        "facts": comparison.facts(run),
        "notes": [*map(_warning, run.warnings), *run.problems],
        "environment": [(path, text(value)) for path, value in flatten(run.environment).items()],
        "config": run.config_text,
    }


def _warning(warning: Record) -> str:
    often = f", {warning['count']} times" if warning["count"] > 1 else ""
    return f"{warning['message']} (step {warning['step']}{often})"


def _state(run: Run) -> str:
    """The state and how long it trained; what was planned too, for a run that has not ended."""
    if run.epoch is None:
        return run.state
    done = f"{run.state} after {format_passes(run.epoch, run.view_sets)}"
    planned = run.config.get("epochs")
    if run.state == "finished" or not is_number(planned):
        return done
    return f"{done}; planned: {format_passes(planned, run.view_sets)}"


def _pictures(runs: Sequence[Run], pages: Sequence[Shown]) -> Iterator[Shown]:
    """The pictures of the runs that have one. One that cannot be read is noted."""
    for run, page in zip(runs, pages, strict=True):
        path = run.folder / GALLERY
        try:
            if path.exists():
                parsing.check(path, _LARGEST_FILE, within=run.folder)
                content = path.read_bytes()
                if not content.startswith(_PNG):
                    raise UserError(f"{GALLERY} is not a PNG")
                source = data_uri("image/png", content)
                yield {"name": page["name"], "slot": page["slot"], "source": source}
            elif run.config:
                page["notes"].append("no pictures; hexa report … --data SOURCE makes them")
        except (OSError, UserError) as error:
            page["notes"].append(f"no pictures: {reason(error)}")
