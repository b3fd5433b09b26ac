"""What a search found as a page with small pictures of the images."""

from __future__ import annotations

from collections.abc import Sequence
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
    paths: Sequence[str],
    previews: Sequence[bytes],
    asked: Picture | None = None,
) -> Path:
    """Write the page of groups, of outliers with the images nearest to them, or of images like one.

    paths, previews: of the image at each place. asked: the image that others are like.
    """

    def picture(place: int, said: str = "") -> Picture:
        return Picture(source_of(previews[place]), paths[place], said)

    rows = []
    if asked is not None:
        answers = [picture(one.places[0], f"{one.similarity:.3f}") for one in found[:_ROWS]]
        rows = [("asked for", [asked]), ("most like it", answers)]
    else:
        for one in found[:_ROWS]:
            pictures = [picture(place) for place in (one.places + (one.nearest or []))[:_PICTURES]]
            left = len(one.places) - _PICTURES
            more = f" · {left} more are not shown" if left > 0 else ""
            rows.append((heading(one) + more, pictures))
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
    return (
        f"{counted(len(found.paths), 'image')}, similarity {found.lowest:.3f} to "
        f"{found.similarity:.3f}"
    )


def source_of(preview: bytes) -> str:
    """A JPEG as a source of an <img>; empty for anything else."""
    return data_uri("image/jpeg", preview) if bytes(preview[:3]) == _JPEG else ""
