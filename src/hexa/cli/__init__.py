"""The command line. Nothing slow is imported here, so that `hexa --help` is fast."""

from __future__ import annotations

import argparse
import atexit
import io
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import hexa
from hexa.cli.declare import COMMANDS, OVERVIEW, OWN, commands

_PURPOSE = (
    "Improve image backbones on your own images without labels; pre-train with hard examples."
)
#: Commands that read weights and images first.
_READING = ("adapt", "harden", "compare", "evaluate", "embed")


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError with a one-line message."""

    def error(self, message: str) -> NoReturn:
        from hexa.config import UserError  # imports pydantic, which help does not need

        raise UserError(f"{message}; see `{self.prog} --help`")


def build_parser(only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser, and the parsers of the commands by name.

    only: declare the options of this command alone, which saves imports.
    """
    parser = Parser(
        prog="hexa",
        description=_PURPOSE,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(metavar="COMMAND", dest="command")
    parsers: dict[str, Parser] = {}
    for name, command in commands(only).items():
        sub = group.add_parser(
            name, help=command.summary, description=command.description, allow_abbrev=False
        )
        parsers[name] = sub
        if only in (None, name):
            for option, settings in command.options:
                sub.add_argument(option, **settings)
            if command.request:
                _add_fields(sub, command.request)
    return parser, parsers


def overview() -> str:
    """Return the text of `hexa --help`: all commands, in groups."""
    known = commands()
    groups = OVERVIEW | {"further commands": dict.fromkeys(sorted(known.keys() - OWN), "")}
    indent = " " * 12
    width = min(shutil.get_terminal_size().columns, 100)
    lines = ["usage: hexa COMMAND …", "", _PURPOSE]
    for title, names in groups.items():
        present = [name for name in names if name in known]
        if present:
            lines += ["", f"{title}:"]
        for name in present:
            start = f"  {name:<10}"
            summary = known[name].summary
            lines += textwrap.wrap(summary, width, initial_indent=start, subsequent_indent=indent)
    lines += [
        "",
        "`hexa COMMAND --help` lists the options of a command; `hexa --version` prints the version.",
    ]
    lines += [
        "To use several processes: torchrun --standalone --nproc-per-node 8 -m hexa pretrain …"
    ]
    return "\n".join(lines)


def _add_fields(parser: Parser, request: str) -> None:
    """Add the fields of a class of `hexa.evaluation.request` as options without defaults.

    A description may begin with the metavariable of the option: "SOURCE: images to score".
    """
    from hexa.evaluation import request as requests

    for name, field in getattr(requests, request).model_fields.items():
        metavar, _, rest = (field.description or "").partition(": ")
        metavar, text = (metavar, rest) if metavar.isupper() else ("VALUE", field.description)
        is_flag = field.annotation is bool and not field.default
        settings: dict[str, Any] = (
            {"action": "store_const", "const": "true"} if is_flag else {"metavar": metavar}
        )
        parser.add_argument(
            f"--{name.replace('_', '-')}", help=text, default=argparse.SUPPRESS, **settings
        )


def run() -> NoReturn:
    """Run the command and end the process at once, because Python spends seconds on the teardown of torch."""
    status = 1

    def end() -> None:
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed
            sys.stdout.flush()
        os._exit(status)

    if (
        not atexit._ncallbacks()
    ):  # the first registered function is called last, when threads have ended
        atexit.register(end)
    try:
        status = main()
    except SystemExit as left:  # raised by argparse after help
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            _say(left.code, status)
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 2 for a user's mistake, 1 for a bug.

    An interrupted run that was saved returns 128 + signal number. A non-finite loss, the end of another process, and a
    closed pipe return 1.
    """
    begun = time.perf_counter()
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes import no files of the current folder
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may be invalid text
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    return _guarded(list(map(_expanded, sys.argv[1:] if arguments is None else arguments)), begun)


def _expanded(argument: str) -> str:
    """Expand ~ in a path; shells leave it in --out=~/run."""
    option, equals, path = argument.partition("=")
    if not option.startswith("--"):
        return os.path.expanduser(argument)
    return option + equals + os.path.expanduser(path)


def _guarded(arguments: list[str], begun: float) -> int:
    try:
        return _run(arguments, begun)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        return 1
    except Exception as error:
        if os.environ.get("HEXA_TRACEBACK"):
            raise
        from hexa.cli.complaints import complaint, own_file, unexpected

        status, line = complaint(error)
        if status:
            return _say(line, status) if line else status
        traceback.print_exc()
        if own := own_file(error):
            return _say(own, 2)
        return _say(unexpected(error), 1)


def _run(arguments: list[str], begun: float) -> int:
    name = arguments[0] if arguments else ""
    if name in ("", "-h", "--help", "--version"):
        if name == "--version":
            print(f"hexa {hexa.__version__}")
        else:
            print(overview())
        return 0 if name else 2

    from hexa.cli import fields
    from hexa.config import UserError, nearest, some, users_code
    from hexa.runtime import paths
    from hexa.runtime.resources import share_cores

    share_cores()  # before torch is imported
    parser, parsers = build_parser(only=name)
    if name not in parsers:
        first = "; give the command first, then its options" if name.startswith("-") else ""
        raise UserError(f"unknown command '{name}'{first}; {nearest(name, parsers)}")

    options = sorted(parsers[name]._option_string_actions)
    ours, extra = fields.split(arguments, options)
    wants_all = name == "pretrain" and extra.pop("help_all", None) is not None
    wants_help = wants_all or {"-h", "--help"} & set(ours)
    if name == "pretrain" and wants_help:
        from hexa.cli.training import describe_fields

        given = parser.parse_args(
            [argument for argument in ours if argument not in ("-h", "--help")]
        )
        if given.recipe is None and given.config is None:
            parsers[name].print_help()
            return 0
        return describe_fields(given, extra, wants_all)
    if name == "evaluate" and wants_help and not ours[1].startswith("-"):
        from hexa.cli.backbones import describe_protocol

        parsers[name].print_help()
        return describe_protocol(argparse.Namespace(protocol=ours[1]), extra)
    if extra and not COMMANDS[name].open:
        field = f"__{next(iter(extra))}"
        typed = next(one for one in arguments if one.replace("-", "_").startswith(field))
        option = typed.partition("=")[0]
        near = nearest(option.replace("_", "-"), options)
        raise UserError(f"{option}: no such option of `hexa {name}`; {near}")
    try:
        given, left = parser.parse_known_args(ours)
    except UserError as error:
        # an open command takes a mistyped option for a field, so the missing option may be among the fields
        hints = [f"--{name}: {nearest(f'--{name}', options)}" for name in extra]
        meant = [hint for hint in hints if "did you mean" in hint]
        raise UserError("; ".join([str(error), *meant])) from None
    if left:
        raise UserError(
            f"`{parsers[name].prog}` does not take: {some(left, ' ')}; quote patterns such as "
            f"*.tar, and see `{parsers[name].prog} --help`"
        )
    given.options = options
    given.begun = begun
    given.arguments = arguments
    adapted = os.path.join(
        getattr(given, "out", None) or "", "adapt.json"
    )  # a finished adaptation prints its verdict without images
    if (
        name in _READING
        and os.environ.get("WORLD_SIZE", "1") == "1"
        and not os.path.isfile(adapted)
    ):
        weights = filter(None, [getattr(given, "backbone", None), *getattr(given, "backbones", ())])
        paths.check(weights, filter(None, (given.data, getattr(given, "labelled", None))))
    with users_code(f"hexa {name}"):  # the command may run a method or network of the user
        return COMMANDS[name].run(given, extra) or 0


def _say(line: str, status: int) -> int:
    from hexa.runtime.console import one_line, say

    say(one_line(line))
    return status
