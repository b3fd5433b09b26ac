"""The base class of every configuration: typed, frozen, complete, with helpful errors for mistyped fields.

A recipe returns a `hexa.recipes.experiment.Experiment`. This module imports no other package, so that any package may
import it.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Self, TypeGuard, TypeVar

import pydantic

Share = Annotated[float, pydantic.Field(ge=0, le=1)]
"""Type of a field: a number from 0 to 1."""
PositiveShare = Annotated[float, pydantic.Field(gt=0, le=1)]
"""Type of a field: a number above 0, at most 1."""


class UserError(ValueError):
    """A mistake of the user: one line with the problem and the remedy. The command line exits with status 2."""


class ConfigError(UserError):
    """One or several invalid fields. `problems` lists (dotted path, message)."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        # pydantic passes these texts on, and refuses lone surrogates
        self.problems = [
            (whole_characters(path), whole_characters(message)) for path, message in problems
        ]
        super().__init__(
            "; ".join(f"{path}: {message}" if path else message for path, message in self.problems)
        )

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[tuple[str, str]]]]:
        return type(self), (self.problems,)  # by default, pickle would pass the message

    @classmethod
    def of(cls, error: pydantic.ValidationError) -> ConfigError:
        """Return pydantic's report in words of hexa, with full paths for nested fields."""
        return cls(problem for detail in error.errors() for problem in _problems(detail))


def field_error(path: str, message: str) -> ConfigError:
    """Return the error for one field, given by its dotted path."""
    return ConfigError([(path, message)])


def whole_characters(text: str) -> str:
    """Return the text with escapes (\\udcff) for bytes of file names that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Turn a SystemExit in the user's code into a UserError, because `sys.exit(0)` must not count as success."""
    try:
        yield
    except SystemExit as left:
        raise UserError(
            f"{where}: its code ended the program by sys.exit({left.code!r}); move the code of a "
            'script under `if __name__ == "__main__":`'
        ) from left


def _problems(detail: Any) -> Iterator[tuple[str, str]]:
    path = ".".join(str(part) for part in detail["loc"])
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, ConfigError):
        for inner, message in cause.problems:
            yield ".".join(part for part in (path, inner) if part), message
        return
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message[:1].lower() + message[1:]
    value = detail.get("input")
    if isinstance(value, str | int | float | bool) and not cause:
        message += f", got {value!r}"
    yield path, message


def reason(error: BaseException, most: int = 160) -> str:
    """Return the message of an error on one line of at most `most` characters."""
    return textwrap.shorten(str(error) or type(error).__name__, most, placeholder=" …")


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite int or float that can be reckoned with; neither a bool, nor text, nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e100 < value < 1e100


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known name, or else a list of known names."""
    known = sorted(known)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean '{match[0]}'?" if match else f"known: {some(known, most=20)}"


def some(names: Iterable[object], separator: str = ", ", most: int = 5) -> str:
    """Return a list of names for a message, such as "a, b, c and 4,321 more"; "none" without names."""
    texts = [str(name) for name in names]
    return (
        separator.join(texts[:most])
        + (f" and {len(texts) - most:,} more" if len(texts) > most else "")
        or "none"
    )


class Config(pydantic.BaseModel):
    """A frozen pydantic model that refuses an unknown field and names the nearest known field."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return a config with these fields. Raises ConfigError."""
        try:
            return cls.model_validate(fields)
        except pydantic.ValidationError as error:
            raise ConfigError.of(error) from None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            unknown := [str(key) for key in value if key not in cls.model_fields]
        ):
            raise ConfigError(
                (key, f"unknown field; {nearest(key, cls.model_fields)}") for key in unknown
            )
        return value

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_forgotten_value(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Refuse true, which stands for a forgotten value, and false, where pydantic would read numbers."""
        if isinstance(value, bool):
            field = cls.model_fields[info.field_name or ""]
            if "bool" not in str(field.annotation):
                raise ValueError("give a value")
        return value

    @pydantic.model_validator(mode="after")
    def _integers_that_fit(self) -> Self:
        for name, value in self:
            parts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(part, int) and not -(2**63) <= part < 2**63 for part in parts):
                raise field_error(name, "must fit in 64 bits")
        return self


Base = TypeVar("Base", bound=Config)


def choices(base: type[Base], field: str, package: str) -> dict[str, type[Base]]:
    """Return every sub-class of `base` by the default of its `field`.

    A class is found in three places: in a module of `package`, in a module that an installed distribution names as an
    entry point of the group `package`, and in any other imported module. Raises UserError if a class has the name of a
    class in an earlier place.
    """
    from hexa.entry_points import added, loaded

    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    loaded(package)
    installed = {entry.module for entry in added(package)}

    def rank(candidate: type[Base]) -> int:
        if candidate.__module__.startswith(f"{package}."):
            return 0
        return 1 if candidate.__module__ in installed else 2

    found: dict[str, type[Base]] = {}
    # if a class is defined twice, as in a notebook, the last definition counts
    for candidate in sorted(_subclasses(base), key=rank):
        name = candidate.model_fields[field].default
        if not isinstance(name, str):
            continue
        first = found.setdefault(name, candidate)
        home = sys.modules.get(candidate.__module__)
        # a class of a file that failed to import exists until it is garbage-collected
        if rank(first) < rank(candidate) and getattr(home, candidate.__name__, None) is candidate:
            place = getattr(home, "__file__", None) or candidate.__module__
            raise UserError(
                f"{place}: {candidate.__name__} has the {field} '{name}' of hexa's own "
                f"{first.__name__}; give it another {field}"
            )
    return found


def _subclasses(base: type[Base]) -> list[type[Base]]:
    """Return all sub-classes at any depth, the latest definition first."""
    latest = reversed(base.__subclasses__())
    return [one for own in latest for one in (own, *_subclasses(own))]


def choose(
    base: type[Base], field: str, package: str, value: Any, default: str | None = None
) -> Base:
    """Return the sub-class of `base` that `value[field]` names, validated. default: name if the field is missing."""
    known = choices(base, field, package)
    if isinstance(value, base):
        return value
    if not isinstance(value, dict):
        raise field_error("", f"expected fields, for instance {field}: …")
    if field not in value and default is None:
        raise field_error(
            field, f"is missing; give {field}: NAME among the fields, got {some(value)}"
        )
    name = str(value.get(field, default))
    if name not in known:
        raise field_error(field, f"unknown {field} '{name}'; {nearest(name, known)}")
    return known[name].from_fields({field: name, **value})
