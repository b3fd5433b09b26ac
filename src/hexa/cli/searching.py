"""The command `search`, which finds duplicates, outliers and similar images."""

from __future__ import annotations

import json
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
    from hexa.reporting.tables import counted
    from hexa.runtime import targets

    if sum((given.duplicates, given.outliers, given.like is not None)) != 1:
        raise UserError("give one of --duplicates, --outliers and --like PATH")
    if len(given.features) > (2 if given.duplicates else 1):
        raise UserError("give one file of features; two go with --duplicates")
    if given.html is not None:
        targets.check(given.html, (".html",), "--html")
    files = [Features(path) for path in given.features]
    first = files[0]
    count = given.count
    least = given.least if given.least is not None else max(one.least for one in files)
    asked: Picture | None = None
    with progress_bar() as progress:
        progress("comparing the images", 0, 0)
        if len(files) == 2:
            found = shared(first, files[1], given.least)
        elif given.duplicates:
            found = first.duplicates(given.least)
        elif given.outliers:
            found = first.outliers(count)
        else:
            found, asked = _like(first, given)
    images = sum(len(one.paths) for one in files)
    title = "The most unusual images"
    summary = f"{images:,} images"
    if len(files) == 2:
        others = len({place for one in found for place in one.places[1:]})
        title = f"Images in both {given.features[0]} and {given.features[1]}"
        summary = (
            f"{len(found):,} of {len(files[1].paths):,} images of {given.features[1]} are duplicates of "
            f"{others:,} of {len(first.paths):,} of {given.features[0]} at --least {least:g}"
        )
    elif given.duplicates:
        title = "Near-duplicates"
        summary = f"{counted(len(found), 'group')} among {images:,} images at --least {least:g}"
    elif asked is not None:
        title = f"Images most similar to {asked.path}"
    if given.html is not None:
        _write_page(given.html, title, summary, found, files, asked)
    if given.json:
        kept = [
            {name: value for name, value in vars(one).items() if name != "places"} for one in found
        ]
        print(json.dumps([_named(one, files) for one in kept], indent=2))
        return
    say(*_lines(title, summary, found, given))
    say(f"written to {given.html}" if given.html is not None else "")


def _like(features: Features, given: Given) -> tuple[list[Found], Picture]:
    """Return the images most similar to --like, and the thumbnail of --like."""
    from hexa.config import UserError
    from hexa.reporting.search_page import Picture, source_of
    from hexa.runtime.paths import location

    file = location(given.like)
    place = features.find(given.like)
    if place is not None:
        picture = Picture(source_of(features.file.preview(place)), features.paths[place])
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


def _lines(title: str, summary: str, found: list[Found], given: Given) -> list[str]:
    """Return the lines for the terminal: one for each group or image, then the summary."""
    if given.like is not None:
        return [title, *(f"{one.similarity:.3f}  {one.paths[0]}" for one in found)]
    if given.outliers:
        head = "outliers: score, reason, similarity to the fifth nearest image, path"
        return [
            head,
            *(f"{x.score:4.1f}  {x.reason:8}  {x.similarity:.3f}  {x.paths[0]}" for x in found),
        ]
    if len(given.features) == 2:
        head = f"images of {given.features[1]} with their duplicates in {given.features[0]}: highest and lowest similarity, paths"
    else:
        head = "near-duplicates: highest and lowest similarity in the group, paths"
    lines = [
        "  ".join([f"{one.similarity:.3f}", f"{one.lowest:.3f}", *one.paths])
        for one in found
        if one.lowest is not None
    ]
    return [head, *lines, summary]


def _named(one: dict[str, Any], files: list[Features]) -> dict[str, Any]:
    """Return the fields of a result that have a value, with paths instead of positions."""
    paths = [path for file in files for path in file.paths]
    if one.get("nearest") is not None:
        one = {**one, "nearest": [paths[place] for place in one["nearest"]]}
    return {name: value for name, value in one.items() if value is not None}


def _write_page(
    out: str,
    title: str,
    summary: str,
    found: list[Found],
    files: list[Features],
    asked: Picture | None,
) -> None:
    from pathlib import Path

    from hexa.reporting.search_page import Picture, source_of, write

    def picture(place: int) -> Picture:
        for file in files:
            if place < len(file.paths):
                break
            place -= len(file.paths)
        return Picture(source_of(file.file.preview(place)), file.paths[place])

    write(Path(out), title, summary, found, picture, asked)
