"""Fields of an experiment as options, such as `--method.temperature 0.1`, and their description in help."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pydantic

from hexa.config import ConfigError, nearest

#: Paths, or beginnings of paths, of the fields that `--help` lists; `--help-all` lists all fields.
COMMON = (
    "network.name",
    "start.weights",
    "start.freeze_backbone",
    "views.size",
    "views.num_views",
    "views.scale",
    "method.",
    "hard_examples.",
    "objective.",
    "optimizer.name",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "schedule.kind",
    "schedule.warmup_epochs",
    "training.device",
    "training.precision",
    "training.num_workers",
    "training.compile",
)
#: References to formulas and decisions, " (F4)" and "D9: ", which help leaves out.
_REFERENCES = re.compile(r" \([FD]\d+(, [FD]\d+)*\)|\b[FD]\d+: ")


class Field(NamedTuple):
    """A field: dotted path, value in this experiment, choices, description."""

    path: str
    value: Any
    kind: str
    description: str

    @property
    def is_common(self) -> bool:
        """True for fields that `--help` lists: those of `COMMON`, and fields without a dot."""
        return "." not in self.path or self.path.startswith(COMMON)


def split(arguments: Iterable[str], options: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Separate declared options from `--any.field VALUE` pairs.

    `--any.field=VALUE` is equivalent. A field without a value is "true". Dashes in a field become underscores. Several
    numbers, such as `--shots 1 2 4`, become the list 1,2,4. If a field is given twice, the last value counts.
    """
    ours: list[str] = []
    fields: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or name == "--" or name in options:
            ours.append(argument)
            continue
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
            numbers = [value]
            while _is_number(numbers[-1]) and waiting and _is_number(waiting[0]):
                numbers.append(waiting.pop(0))
            if len(numbers) > 1:
                value = f"[{','.join(numbers)}]"
        fields[name[2:].replace("-", "_")] = value
    return ours, fields


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_names(
    given: Iterable[str],
    fields: Iterable[Field],
    options: Iterable[str],
    otherwise: str = "`hexa pretrain RECIPE --help-all` lists every field",
) -> None:
    """Raise ConfigError with the nearest name, or with the advice `otherwise`, if a name without a dot is neither a
    field nor an option.

    `hexa.recipes.experiment.override` checks dotted paths, because hard examples may gain fields.
    """
    known = [field.path for field in fields]
    top = {path for path in known if "." not in path}
    candidates = {f"--{name}" for name in top} | set(options)
    problems = []
    for name in given:
        if "." in name or name in top:
            continue
        within = [path for path in known if path.endswith(f".{name}")]
        remedy = f"did you mean '--{within[0]}'?" if within else nearest(f"--{name}", candidates)
        if not remedy.startswith("did you mean"):
            remedy = otherwise
        what = "option or field" if known else "option"
        problems.append((f"--{name}", f"no such {what}; {remedy}"))
    if problems:
        raise ConfigError(problems)


def describe(fields: Iterable[Field]) -> str:
    """Return the help text of fields, in groups: `--path VALUE  (choices)` and a description."""
    lines: list[str] = []
    for group, members in itertools.groupby(fields, lambda field: field.path.rpartition(".")[0]):
        lines += ["", f"{group or 'the run'}:"]
        for field in members:
            lines.append(
                f"  --{field.path} {_shown(field.value)}"
                + (f"  ({field.kind})" if field.kind else "")
            )
            lines += textwrap.wrap(
                field.description, 100, initial_indent=" " * 8, subsequent_indent=" " * 8
            )
    return "\n".join(lines).lstrip("\n")


def of_experiment(config: pydantic.BaseModel, prefix: str = "") -> Iterator[Field]:
    """Yield every field of an experiment or another configuration, with its dotted path after `prefix`."""
    groups: dict[str, pydantic.BaseModel] = {}
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        description = _description(type(config), name)
        if isinstance(value, pydantic.BaseModel):
            groups[name] = value
        elif name == "hard_examples":
            groups |= {f"{name}.{key}": entry for key, entry in value.items()}
        elif isinstance(value, Mapping) and value:
            yield from (
                Field(f"{prefix}{name}.{key}", entry, "", description)
                for key, entry in value.items()
            )
        else:
            yield Field(prefix + name, value, _kind(info.annotation), description)
    for (
        name,
        group,
    ) in groups.items():  # plain fields first, so that a group's fields stand together
        yield from of_experiment(group, f"{prefix}{name}.")


def _description(config: type[pydantic.BaseModel], name: str) -> str:
    """Return the description of a field: the field docstring of the nearest base class, else the class docstring.

    A subclass that only changes a default has no field docstring. The name of a method and the kind of a hard example
    are described by the class docstring.
    """
    described = [
        base.model_fields[name].description
        for base in config.__mro__
        if issubclass(base, pydantic.BaseModel) and name in base.model_fields
    ]
    summary = (config.__doc__ or "").split("\n\n")[0]
    text = next(filter(None, described), summary)
    return _REFERENCES.sub("", " ".join(text.split()))


def _kind(annotation: Any) -> str:
    """Return the choices, such as `auto|fp32|bf16`; empty if any value is allowed."""
    parts = (annotation, *get_args(annotation))
    named = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
    return "|".join(map(str, named)) if len(named) > 1 else ""


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(_shown, value)) + "]"
    if isinstance(value, pydantic.BaseModel):  # as YAML, which the option accepts
        return (
            "{"
            + ", ".join(f"{name}: {_shown(part)}" for name, part in value if part is not None)
            + "}"
        )
    return str(value)
