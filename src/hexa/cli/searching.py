"""The command `search`, which finds duplicates, outliers and similar images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexa.cli.declare import (
    BACKBONES,
    COUNT,
    JSON,
    Fields,
    Given,
    command,
    flag,
    import_networks,
    option,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from hexa.evaluation.search import Features, Found
    from hexa.reporting.search_page import Picture


@command(
    "find near-duplicates, outliers or similar images by the features that embed wrote",
    option(
        "FEATURES",
        "search this .npz or .parquet file of hexa embed; with --duplicates, give a second file to find images in both",
        nargs="+",
    ),
    flag("--duplicates", "list groups of images in which all pairs are near-duplicates"),
    flag("--outliers", "list the most unusual images"),
    option(
        "--like PATH",
        "list the images most similar to this image: a path in FEATURES, or an image file",
    ),
    option(
        "--least X",
        "list duplicates of this similarity or more, up to 1 (default: 0.9 for thumbnails, or 0.95 for features if "
        "FEATURES has no thumbnails)",
        type=float,
    ),
    option(
        "--count N",
        "list N outliers or similar images (default: %(default)s)",
        type=COUNT,
        default=20,
    ),
    option(
        "--backbone BACKBONE",
        f"use this backbone for --like FILE, if the backbone of FEATURES has moved: {BACKBONES}",
    ),
    option(
        "--html PAGE",
        "also write the result with thumbnails to this HTML file, which needs no other file",
    ),
    JSON,
    description="Find images in the features of hexa embed. Duplicates have equal pixels, or thumbnails with a similarity "
    "of --least or more, even if one image is mirrored, brighter, compressed, or a crop of at least 80 % of the other. "
    "--like sorts by the cosine similarity of features. An outlier is far from its fifth nearest image, by features or "
    "by image statistics.",
)
def search(given: Given, extra: Fields) -> None:
    from hexa.config import UserError
    from hexa.evaluation.search import Features, shared
    from hexa.reporting import search_page
    from hexa.reporting.tables import counted
    from hexa.runtime.files import check_target

    if sum((given.duplicates, given.outliers, given.like is not None)) != 1:
        raise UserError("give one of --duplicates, --outliers and --like PATH")
    if len(given.features) > (2 if given.duplicates else 1):
        raise UserError("give one file of features; two go with --duplicates")
    if given.html is not None:
        check_target(given.html, (".html",), "--html")
    files = [Features(path) for path in given.features]
    first = files[0]
    least = given.least if given.least is not None else max(one.least for one in files)
    paths = [path for one in files for path in one.paths]
    summary = f"{len(paths):,} images"
    asked = None
    columns = ""
    with progress_bar() as progress:
        progress("comparing the images", 0, 0)
        if len(files) == 2:
            found = shared(first, files[1], given.least)
            others = len({place for one in found for place in one.places[1:]})
            title = f"Images of {given.features[1]} with their duplicates in {given.features[0]}"
            summary = (
                f"{len(found):,} of {len(files[1].paths):,} images of {given.features[1]} are duplicates of "
                f"{others:,} of {len(first.paths):,} of {given.features[0]} at --least {least:g}"
            )
        elif given.duplicates:
            found = first.duplicates(given.least)
            title = "Near-duplicates"
            columns = ": highest and lowest similarity in the group, paths"
            summary = f"{counted(len(found), 'group')} among {summary} at --least {least:g}"
        elif given.outliers:
            found = first.outliers(given.count)
            title = "The most unusual images"
            columns = ": score, reason, similarity to the fifth nearest image, path"
        else:
            found, asked = _like(first, given)
            title = f"Images most similar to {asked.path}"
    if given.html is not None:
        previews = [one for file in files for one in file.file.previews or [b""] * len(file.paths)]
        search_page.write(Path(given.html), title, summary, found, paths, previews, asked)
    if given.json:
        print(json.dumps([_fields(one, paths) for one in found], indent=2))
        return
    say(title + columns, *map(_line, found), summary)
    say(f"written to {given.html}" if given.html is not None else "")


def _like(features: Features, given: Given) -> tuple[list[Found], Picture]:
    """Return the images most similar to --like, and the thumbnail of --like."""
    from hexa.config import UserError
    from hexa.reporting.search_page import Picture, source_of
    from hexa.runtime.paths import location

    file = location(given.like)
    place = features.find(given.like)
    if place is not None:
        previews = features.file.previews
        preview = b"" if previews is None else previews[place]
        picture = Picture(source_of(preview), features.paths[place])
        return features.like(features.directions[place], given.count, place), picture
    if not file.exists():
        raise UserError(
            f"--like {given.like}: no image of that path in {features.file.path}, and no such file; "
            f"a path in it is {features.paths[0]}"
        )
    import_networks()
    from hexa.evaluation.outside import features_of

    row, seen = features_of(str(file), features.file, given.backbone)
    return features.like(row, given.count), Picture(source_of(seen.preview), given.like)


def _line(one: Found) -> str:
    """The line of a group or an image for the terminal."""
    cells = [] if one.score is None else [f"{one.score:4.1f}", f"{one.reason:8}"]
    cells.append(f"{one.similarity:.3f}")
    if one.lowest is not None:
        cells.append(f"{one.lowest:.3f}")
    return "  ".join([*cells, *one.paths])


def _fields(one: Found, paths: list[str]) -> dict[str, Any]:
    """Return the fields of a result that have a value, with paths instead of positions."""
    nearest = None if one.nearest is None else [paths[place] for place in one.nearest]
    fields = {**vars(one), "places": None, "nearest": nearest}
    return {name: value for name, value in fields.items() if value is not None}
