"""Positives from metadata: another image of the same patient, place or object gives some of an image's views."""

from __future__ import annotations

import csv
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pydantic
import torch
from torch import Tensor

from hexa.config import Config, UserError, reason, whole_characters
from hexa.data.sources.source import Source, Subset, digest, location
from hexa.runtime.paths import composed
from hexa.runtime.random import Stream

#: Most bytes of a CSV file of groups (about fifty per image, for millions of images), and characters of a line.
_MOST_BYTES = 1 << 30
_MOST_LINE = 1 << 16


class PairsConfig(Config):
    """Groups of related images, which may give views of each other."""

    of: str | None = None
    """Where groups are stored: FILE.csv with columns path and group, column:NAME of a parquet source, or key:NAME, a
    field of the JSON beside each image of a webdataset; none for no pairs."""
    probability: float = pydantic.Field(default=0.5, ge=0, le=1)
    """How often the second half of an image's views is taken from another image of its group."""

    @pydantic.model_validator(mode="after")
    def _only_with_groups(self) -> PairsConfig:
        if self.of is None and self.probability != type(self).model_fields["probability"].default:
            raise ValueError(
                "probability has no effect without pairs.of; set pairs.of to where groups are stored"
            )
        return self


@dataclass(frozen=True)
class Pairs:
    """Which images of a source form groups, and how often one gives views of another.

    order: int64 [N], all positions, group by group. first, place, size: int64 [N], for each image the start of its
    group in `order`, its place in the group, and the size of the group (1: it has no partner).
    """

    order: Tensor
    first: Tensor
    place: Tensor
    size: Tensor
    probability: float

    @classmethod
    def of(cls, config: PairsConfig, source: Source) -> Pairs | None:
        """The pairs of a source, or None if not configured. Raises UserError if groups cannot be read or matched."""
        if config.of is None:
            return None
        pairs = cls.of_groups(groups_of(config.of, source), config.probability)
        if int(pairs.size.max()) < 2:
            alone = (
                f"none of the {len(source):,} images of {source!r} shares its group with another"
            )
            raise UserError(
                f"pairs.of {config.of}: {alone}; give groups of at least two images, or remove pairs.of"
            )
        return pairs

    @classmethod
    def of_groups(cls, groups: Sequence[str | None], probability: float) -> Pairs:
        """The pairs of images in these groups; None is an image without a group."""
        numbers: dict[str, int] = {}
        count = len(groups)
        number = torch.tensor(
            [
                index if name is None else count + numbers.setdefault(name, index)
                for index, name in enumerate(groups)
            ]
        )
        order = number.argsort(stable=True)
        _, group, sizes = torch.unique_consecutive(
            number[order], return_inverse=True, return_counts=True
        )
        begins = sizes.cumsum(0) - sizes
        first, place, size = (torch.empty(count, dtype=torch.int64) for _ in range(3))
        first[order], size[order] = begins[group], sizes[group]
        place[order] = torch.arange(count) - begins[group]
        return cls(order, first, place, size, probability)

    def partners(self, stream: Stream, epoch: int) -> Tensor:
        """The image that gives the second half of each image's views in an epoch, int64 [N].

        The image itself, or another of its group, uniformly; a function of the stream's seed, the epoch and the image.
        """
        generator = stream.child("pairs", epoch).generator()
        drawn, which = torch.rand((2, len(self.order)), generator=generator, dtype=torch.float64)
        others = self.size - 1
        step = 1 + torch.minimum((which * others).long(), (others - 1).clamp(min=0))
        partner = self.order[self.first + (self.place + step) % self.size]
        return torch.where(drawn < self.probability, partner, torch.arange(len(partner)))

    def digest(self) -> str:
        """Changes with the groups, but not with their names."""
        return digest(self.order.numpy().tobytes(), self.size.numpy().tobytes())

    def __str__(self) -> str:
        paired = int((self.size > 1).sum())
        groups = int(((self.size > 1) & (self.place == 0)).sum())
        views = f"another image of the group gives half of their views with probability {self.probability:g}"
        return f"pairs: {paired:,} of {len(self.order):,} images are in {groups:,} groups of two or more; {views}"


def groups_of(spec: str, source: Source, option: str = "pairs.of") -> list[str | None]:
    """The group of each image of the source, or None. option: what asked for them. Raises UserError."""
    if isinstance(source, Subset):  # metadata describe the whole source
        groups = groups_of(spec, source.source, option)
        return [groups[row] for row in source.rows.tolist()]
    kind, _, name = spec.partition(":")
    if kind in ("column", "key") and name:
        # tables store "" and nan for missing values
        return [None if text in ("", "nan") else text for text in source.metadata(kind, name)]
    return _read(location(spec), source, f"{option} {location(spec)}")


def _read(path: Path, source: Source, where: str) -> list[str | None]:
    """The group of each image of the source from a CSV file. Raises UserError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise UserError(f"{where}: is {kind}; give a CSV file with columns path and group")
        if status.st_size > _MOST_BYTES:
            raise UserError(
                f"{where}: has {status.st_size:,} bytes; at most {_MOST_BYTES:,} are read"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _groups(csv.reader(_lines(file)), source, where)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: is not UTF-8 ({reason(error)}); save it as CSV in UTF-8"
        ) from None
    except csv.Error as error:
        raise UserError(f"{where}: is not CSV ({reason(error)}); give rows of path,group") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        words = getattr(error, "strerror", None) or reason(error)
        raise UserError(
            f"{where}: cannot be read ({words}); give FILE.csv, column:NAME or key:NAME"
        ) from None


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_MOST_LINE):
        if len(line) == _MOST_LINE:
            raise csv.Error(f"it has a line of {_MOST_LINE:,} characters or more")
        yield line


def _name(path: str) -> str:
    """The path of an image as text that matches in any normal form."""
    return composed(whole_characters(path))


def _groups(rows: Iterator[list[str]], source: Source, where: str) -> list[str | None]:
    places: dict[str, int] = {}
    for index, name in enumerate(map(_name, source.paths)):
        places[name] = -1 if name in places else index
    groups: list[str | None] = [None] * len(source)
    columns = (0, 1)
    count = 0
    unknown = 0
    example = ""
    for number, row in enumerate(rows):
        if number == 0:
            names = [cell.strip().lower() for cell in row]
            if {"path", "group"} <= {*names}:
                columns = (names.index("path"), names.index("group"))
                continue
            if (
                row and _name(row[0]) not in places and not {*row[0]} & {".", "/"}
            ):  # a header with other names
                continue
        if not row:
            continue
        if len(row) <= max(columns):
            missing = f"row {number + 1} has only {len(row)} column{'s' * (len(row) != 1)}"
            raise UserError(f"{where}: {missing}; give path and group, separated by a comma")
        name = _name(row[columns[0]])
        group = row[columns[1]].strip()
        count += 1
        place = places.get(name)
        if place is None:
            unknown = unknown + 1
            example = example or name
        elif place < 0:
            called = f"several images of {source!r} are called {name!r}"
            raise UserError(f"{where}: {called}; store the groups in its metadata")
        elif groups[place] not in (None, group or None):
            both = f"both in group {groups[place]!r} and in {group!r}"
            raise UserError(f"{where}: {name!r} is {both}; give each image one group")
        else:
            groups[place] = group or None
    if unknown:
        remedy = (
            f"such as {example[:100]!r}; write names like {whole_characters(source.paths[0])!r}"
        )
        raise UserError(
            f"{where}: {unknown:,} of {count:,} rows name images that are not in {source!r}, {remedy}"
        )
    return groups
