"""Readers for small, untrusted YAML and JSON files, with limits on size, depth and features."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hexa.config import UserError, reason
from hexa.runtime.paths import real

#: Largest YAML file in bytes; hexa writes a few kB.
MOST_YAML = 256 * 1024
#: Largest JSON file in bytes; hexa writes a few kB for each evaluation or session.
MOST_JSON = 16 * 1024**2
#: Largest line of a JSON-lines file in bytes.
_MOST_LINE = 64 * 1024
_DEPTH = 50
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Longest duration in seconds, a hundred years; plans count steps in 64 bits.
_MOST_SECONDS = 36500 * 86400


def check(path: Path, most: int, within: Path | None = None) -> None:
    """Raise OSError or UserError unless this is a regular file of at most `most` bytes.

    within: a folder that must contain the file after resolving links.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: is not a file")
    places = [] if within is None else real(within)
    if places and not any(path.resolve().is_relative_to(place) for place in places):
        raise UserError(f"{path}: is a link out of its folder; replace it by a copy of the file")
    if status.st_size > most:
        raise UserError(
            f"{path}: is too large ({status.st_size:,} bytes, at most {most:,} are read)"
        )


def read_text(path: Path, most: int, within: Path | None = None) -> str:
    """Return the text of a file. Raises the errors of `check`, and UserError if it is not UTF-8."""
    check(path, most, within)
    with path.open("rb") as file:
        content = file.read(most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def read_json(path: Path, remedy: str, within: Path | None = None) -> Any:
    """Return the value in a JSON file. Raises the errors of `check`, and UserError, which ends with
    `remedy`, for other content."""
    try:
        return from_json(read_text(path, MOST_JSON, within))
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}; {remedy}") from None


def read_lines(
    path: Path, most: int, within: Path | None = None
) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each non-blank line of a JSON-lines file with its fields; the fields are None if the
    line is damaged.

    Raises the errors of `check`.
    """
    check(path, most, within)
    with path.open("rb") as file:
        while line := file.readline(_MOST_LINE):
            if not line.strip():
                continue
            value = None
            with suppress(ValueError):
                value = from_json(line.decode())
            yield line, value if isinstance(value, dict) else None


def read_resource(package: str, file: str) -> Any:
    """Return the content of a YAML file that comes with a package."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def from_yaml(text: str, loader: type[PlainLoader] | None = None) -> Any:
    """Return mappings with text as keys, lists, numbers, text, true, false and null; a date is
    text. Raises UserError.

    Aliases (which can make a small file a large one), tags and duplicate keys are refused.
    loader: `PlainLoader` for values as in `yaml.safe_load`; only aliases are refused then.
    """
    try:
        return yaml.load(text, loader or _Loader)
    except RecursionError:
        raise UserError("nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f"line {place.line + 1}, column {place.column + 1}: " if place else ""
        raise UserError(f"not YAML ({where}{error.problem or error.context})") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number with thousands of digits
        raise UserError(f"not YAML ({reason(error)})") from None


def from_option(text: str) -> Any:
    """Return the value of a command-line option: `none`, true, a number, a list, {fields}, or
    otherwise the text itself."""
    try:
        value = from_yaml(text)
    except UserError:
        return text
    if isinstance(value, str) and value.lower() == "none":
        return None
    # YAML reads "folder:photos: 2" as a mapping, but users mean text; mappings need braces
    of_words = isinstance(value, dict) and not text.lstrip().startswith("{")
    return text if isinstance(value, str) or of_words else value


def from_json(text: str) -> Any:
    """Return the value of a JSON text. Raises UserError, also for very deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise UserError("nested too deeply") from None
    except ValueError as error:
        raise UserError(f"not JSON ({reason(error)})") from None
    level = [value]
    for _ in range(_DEPTH):
        level = [inner for one in level for inner in _parts(one)]
        if not level:
            return value
    raise UserError("nested too deeply")


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _refused("aliases are not supported; repeat the values", self.peek_event())  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Loader(PlainLoader):
    """Loader of the core types."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be text", key)
            if key.value in mapping:
                raise _refused(f"duplicate key '{key.value}'", key)
            mapping[key.value] = self.construct_object(value, deep=deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(node.value)  # YAML reads 010 as 8, and 1:30 as 90
        if not -(2**63) <= value < 2**63:
            raise _refused("an integer exceeds 64 bits", node)
        return value


def _refused(problem: str, place: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]


_TYPES = ("map", "seq", "str", "int", "float", "bool", "null")
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in _TYPES
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in _TYPES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def seconds_of(given: str | float) -> float:
    """Return the seconds of a duration such as 30m, 1.5h or 1h30m, or of a number of seconds.
    Raises UserError."""
    text = str(given) if isinstance(given, str) else f"{given}s"
    part = r"(\d+(?:\.\d*)?)\s*([smhd])"
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(part, text))
    if re.sub(part, "", text).strip() or not 0 < seconds <= _MOST_SECONDS:
        raise UserError(
            "--time must be a number > 0 followed by s, m, h or d, such as 30m or 1h30m, "
            f"and at most 36500d; got {given}"
        )
    return seconds
