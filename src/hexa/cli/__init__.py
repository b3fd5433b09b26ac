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
from hexa.runtime.output import one_line, say

_PURPOSE = (
    "Improve image backbones on your own images without labels; pre-train with hard examples."
)
#: Commands that begin by reading weights and images.
_READING = ("adapt", "harden", "compare", "evaluate", "embed")


class Parser(argparse.ArgumentParser):
    """argparse that reports an error in one line, as UserError."""

    def error(self, message: str) -> NoReturn:
        from hexa.config import UserError  # imports pydantic, which help does not need

        raise UserError(f"{message}; see `{self.prog} --help`")


def build_parser(only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and the parser of each command by name.

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
    """What `hexa --help` prints: all commands, in groups."""
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
        "`hexa COMMAND --help` lists the options of a command, `hexa --version` the version.",
    ]
    lines += ["Several processes: torchrun --standalone --nproc-per-node 8 -m hexa pretrain …"]
    return "\n".join(lines)


def _add_fields(parser: Parser, request: str) -> None:
    """Add the fields of a class of `hexa.evaluation.request` as options, absent unless given.

    A description may begin with the name of the value in help: "SOURCE: images to score".
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
    """Run the command and end the process: Python would spend seconds on taking torch apart."""
    status = 1

    def end() -> None:
        with suppress(OSError, ValueError, AttributeError):  # it is closed
            sys.stdout.flush()
        os._exit(status)

    if (
        not atexit._ncallbacks()
    ):  # the first to be registered is called last, when threads have ended
        atexit.register(end)
    try:
        status = main()
    except SystemExit as left:  # argparse's, after help
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            _say(left.code, status)
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 2 after a user's mistake, 1 after a bug.

    An interrupted run that was saved gives 128 + signal number; one stopped by a non-finite loss or by the end of
    another process gives 1, and so does output whose reader is gone.
    """
    begun = time.perf_counter()
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # no process that is started here imports files of the current folder
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no text
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    return _guarded(list(sys.argv[1:] if arguments is None else arguments), begun)


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
        from hexa.cli.complaints import complaint, own_file

        status, line = complaint(error)
        if status:
            return _say(line, status) if line else status
        traceback.print_exc()
        if own := own_file(error):
            return _say(own, 2)
        return _say(
            "this is a bug in hexa: please report it with the lines above and the output of `hexa doctor`",
            1,
        )


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
    from hexa.runtime.cores import share_cores

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
        option = next(iter(extra)).replace("_", "-")
        raise UserError(
            f"--{option}: no such option of `hexa {name}`; {nearest(f'--{option}', options)}"
        )
    try:
        given, left = parser.parse_known_args(ours)
    except UserError as error:
        # a mistyped option of an open command counts as a field: perhaps it is the option that is missing
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
    )  # which tells its verdict without images
    if (
        name in _READING
        and os.environ.get("WORLD_SIZE", "1") == "1"
        and not os.path.isfile(adapted)
    ):
        weights = filter(None, [getattr(given, "backbone", None), *getattr(given, "backbones", ())])
        paths.check(weights, filter(None, (given.data, getattr(given, "labelled", None))))
    with users_code(f"hexa {name}"):  # a method or a network of the user's, while it is used
        return COMMANDS[name].run(given, extra) or 0


def _say(line: str, status: int) -> int:
    say(one_line(line))
    return status
