"""A page of the results of a search, with small pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hexa.config import whole_characters
from hexa.evaluation.search import Found
from hexa.reporting.rendering import data_uri, rendered
from hexa.reporting.tables import counted
from hexa.runtime.files import write_text

#: Rows of the page, at most.
_ROWS = 200
#: Pictures of a row, at most.
_PICTURES = 24
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True)
class Picture:
    """A picture of the page: data URI, empty if there is none, path, and what is said below."""

    source: str
    path: str
    said: str = ""


def write(
    out: Path,
    title: str,
    summary: str,
    found: Sequence[Found],
    picture: Callable[[int], Picture],
    asked: Picture | None = None,
) -> Path:
    """Write the page of groups, of outliers with the images nearest to them, or of images like one.

    picture: of the image at a place. asked: the image that others are like.
    """
    rows = [] if asked is None else [("", [asked])]
    for one in found[:_ROWS]:
        own = [picture(place) for place in (one.places + (one.nearest or []))[:_PICTURES]]
        left = len(one.places) - _PICTURES
        more = f" · {left} more are not shown" if left > 0 else ""
        rows.append((heading(one) + more, own))
    if asked is not None:  # all in one row
        answers = [
            Picture(own[0].source, own[0].path, f"{one.similarity:.3f}")
            for one, (_, own) in zip(found, rows[1:], strict=False)
        ]
        rows = [("asked for", [asked]), ("most like it", answers)]
    left = len(found) - _ROWS
    content = rendered(
        "search.html",
        title=title,
        summary=summary,
        rows=rows,
        more=f"{counted(left, 'more')} in the output of the command" if left > 0 else "",
        empty=not any(one.source for _, row in rows for one in row) and bool(rows),
        first_is_other=any(one.nearest for one in found),
    )
    return write_text(out, whole_characters(content))


def heading(found: Found) -> str:
    """A row's title: the similarities of a group, or the score of an outlier."""
    if found.score is not None:
        return f"unusual {found.reason}, score {found.score:.1f}; then the images nearest to it"
    if found.lowest is None:
        return f"{found.similarity:.3f}"
    return f"{counted(len(found.paths), 'image')}, similarity {found.lowest:.3f} to {found.similarity:.3f}"


def source_of(preview: bytes | None) -> str:
    """A JPEG as a source of an <img>; empty for anything else."""
    if preview is None or not preview.startswith(_JPEG):
        return ""
    return data_uri("image/jpeg", preview)
