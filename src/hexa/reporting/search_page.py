"""A page of the results of a search, with small pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


class Picture(NamedTuple):
    """The image that others are like."""

    source: str
    """Its preview as a data URI; empty if there is none."""
    path: str


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
    content = rendered(
        "search.html",
        title=title,
        summary=summary,
        found=found[:_ROWS],
        left=len(found) - _ROWS,
        paths=paths,
        source_of=lambda place: source_of(previews[place]),
        has_previews=any(previews),
        asked=asked,
        most=_PICTURES,
        counted=counted,
    )
    return write_text(out, whole_characters(content))


def source_of(preview: bytes) -> str:
    """A JPEG as a source of an <img>; empty for anything else."""
    return data_uri("image/jpeg", preview) if bytes(preview[:3]) == _JPEG else ""
