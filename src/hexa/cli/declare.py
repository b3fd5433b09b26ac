"""Declares commands and their options, including options that several commands share.

This module and the modules of commands import nothing slow at the top, so that help is fast.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.console import ProgressBar

Given = argparse.Namespace
Fields = Mapping[str, str]
Option = tuple[str, dict[str, Any]]
Handler = Callable[[Given, Fields], int | None]


@dataclass(frozen=True)
class Command:
    """A command.

    summary: line in the list of commands. description: text of its help. request: class of
    `hexa.evaluation.request` whose fields are options. open: True if fields of an experiment or protocol are options.
    run: function from parsed options to the exit status.
    """

    summary: str
    options: tuple[Option, ...]
    description: str
    request: str
    open: bool
    run: Handler


COMMANDS: dict[str, Command] = {}
#: Commands in the order of the overview, with the modules of `hexa.cli` that declare them; others come from `ADDED`.
OVERVIEW = {
    "your images": {
        "compare": "backbones",
        "adapt": "adapting",
        "harden": "adapting",
        "embed": "backbones",
        "search": "searching",
    },
    "research": {
        "pretrain": "training",
        "resume": "training",
        "evaluate": "backbones",
        "reproduce": "",
        "check": "machine",
        "benchmark": "",
    },
    "output": {
        "visualize": "pictures",
        "figure": "",
        "report": "pictures",
        "export": "backbones",
    },
    "help": {"demo": "training", "recipes": "training", "doctor": "machine"},
}
#: Modules by command.
OWN = {name: module for group in OVERVIEW.values() for name, module in group.items()}
#: Group of entry points for commands of other distributions.
ADDED = "hexa.commands"


def command(
    summary: str, *options: Option, description: str = "", request: str = "", open: bool = False
) -> Callable[[Handler], Handler]:
    """Declare a function as a command; see `Command` for the arguments.

    The function takes parsed options and further `--any.field VALUE` pairs, and returns the exit status; None means 0.
    """

    def declared(run: Handler) -> Handler:
        COMMANDS[run.__name__] = Command(
            summary, options, description or summary, request, open, run
        )
        return run

    return declared


def commands(only: str | None = None) -> dict[str, Command]:
    """Return all commands by name. If `only` is a command of hexa, commands of other modules are left out.

    A command of hexa therefore never imports other packages. Another package cannot replace a command of hexa.
    """
    module = OWN.get(only or "")
    for one in {*OWN.values()} - {""} if not module else (module,):
        importlib.import_module(f"hexa.cli.{one}")
    if not module:
        from hexa.entry_points import loaded

        own = dict(COMMANDS)
        loaded(ADDED)  # importing them declares their commands
        COMMANDS.update(own)
    return COMMANDS


def option(usage: str, help: str = "", **settings: Any) -> Option:
    """Return an option such as `--out FILE`, or a positional argument such as `RECIPE`."""
    name, _, metavar = usage.partition(" ")
    return name if metavar else name.lower(), {"metavar": metavar or name, "help": help, **settings}


def flag(name: str, help: str, **settings: Any) -> Option:
    """Return an option without a value."""
    return name, {"action": "store_true", "help": help, **settings}


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option: an integer from `least` to `most`."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {value}")
        return value

    return number


def duration(text: str) -> float:
    """Parse an option: a duration such as 30m; return seconds."""
    from hexa.config import UserError
    from hexa.runtime.parsing import seconds_of

    try:
        return seconds_of(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--time ")) from None


SOURCES = "a folder · digits · parquet:PATH · hf:NAME · webdataset:PATTERN · voc:PATH · cifar10 and others; #NAME at the end picks a split"
BACKBONES = "a run folder · a .safetensors or checkpoint file · timm:NAME · python:FILE.py:CALLABLE · random:NAME · pixels:SIZE"
DOMAINS = "choose views for photos, aerial, microscopy, documents, medical-grey or histology"
BACKBONE = option("BACKBONE", "use this backbone: " + BACKBONES)
DATA = option("--data SOURCE", "read these images: " + SOURCES, required=True)
DATA_OF_RUN = option(
    "--data SOURCE", f"read these images: {SOURCES} (default: the source of the run or recipe)"
)
GROUPS = option(
    "--groups WHERE",
    "keep labelled images of a group (for example a patient or session) in one fold: FILE.csv with columns path and "
    "group, column:NAME or key:NAME (default: sub-folders of the class folders)",
)
JSON = flag("--json", "print JSON")
PLAN = flag("--plan", "print the plan with its cost, and run nothing")
TRUST = flag(
    "--trust",
    "import the Python file that the run's configuration names as the source of its method",
)
TRUST_IMAGES = flag(
    "--trust", "open the images and import the Python file that the run's configuration names"
)
COUNT = whole(1, 10**6)
IMAGES = option(
    "--images N",
    "draw N images of --data by the seed, evenly from the classes if there are labels (default: all)",
    type=COUNT,
)
EPOCHS = option("--epochs N", "pass N times over the data (default: set by the recipe)", type=COUNT)
ANY_SEED = whole(0, 2**32 - 1)  # scikit-learn takes no more
SEED = option(
    "--seed N",
    "draw images, folds and views by this seed (default: 0)",
    type=ANY_SEED,
    default=0,
)
MACHINE = (
    option(
        "--device NAME",
        "choose the device: auto, cpu, cuda or cuda:N (short for --training.device)",
    ),
    option(
        "--precision NAME",
        "choose the precision: auto, fp32 or bf16 (short for --training.precision)",
    ),
)


def say(*lines: str) -> None:
    """Print each line that is not empty."""
    from hexa.runtime.console import Console, one_line

    console = Console()
    for line in filter(None, lines):
        console.print(one_line(line))


def import_networks() -> None:
    """Import torch, torchvision and timm with the garbage collector off, which saves a seventh of the time.

    A terminal shows a message meanwhile. Commands call this function after all checks that need no torch.
    """
    if "timm" in sys.modules:
        return
    from hexa.runtime.console import Console

    # a closed stream is not a terminal
    said = "loading PyTorch …" if Console(stderr=True).is_terminal else ""
    print(said, end=("\r" if said else ""), file=sys.stderr, flush=True)
    gc.disable()
    try:
        import timm  # noqa: F401
    finally:
        print(" " * len(said), end=("\r" if said else ""), file=sys.stderr, flush=True)
        gc.freeze()  # excludes modules from collections until the exit, when libraries search for leaked objects
        atexit.register(gc.unfreeze)
        gc.enable()


def progress_bar() -> ProgressBar:
    """Return a progress bar on standard error, or plain lines without a terminal."""
    from hexa.runtime.console import Console, ProgressBar

    return ProgressBar(Console(stderr=True))
