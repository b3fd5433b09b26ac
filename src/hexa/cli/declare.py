"""Declares commands and their options, including those that several commands share.

Nothing slow is imported here or at the top of the commands' modules, so that help is fast.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hexa.runtime.progress import ProgressBar

Given = argparse.Namespace
Fields = Mapping[str, str]
Option = tuple[str, dict[str, Any]]
Handler = Callable[[Given, Fields], int | None]


@dataclass(frozen=True)
class Command:
    """A command: its line in the list of commands, options, longer description for its help, and function."""

    summary: str
    options: tuple[Option, ...]
    description: str
    request: str
    open: bool
    run: Handler


COMMANDS: dict[str, Command] = {}
#: Commands as the overview lists them, and the modules of `hexa.cli` that declare them; others come from `ADDED`.
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
#: The entry points of commands that installed distributions add.
ADDED = "hexa.commands"


def command(
    summary: str, *options: Option, description: str = "", request: str = "", open: bool = False
) -> Callable[[Handler], Handler]:
    """Make a command of a function from parsed options and further `--any.field VALUE` pairs to the exit status.

    None stands for 0. request: a class of `hexa.evaluation.request`, whose fields become options. open: further
    options are fields of the experiment or the protocol.
    """

    def declared(run: Handler) -> Handler:
        COMMANDS[run.__name__] = Command(
            summary, options, description or summary, request, open, run
        )
        return run

    return declared


def commands(only: str | None = None) -> dict[str, Command]:
    """All commands by name; if `only` is one of hexa's own, those of its module.

    So hexa's own commands need not import other packages, which cannot replace them either.
    """
    module = OWN.get(only or "")
    for one in {*OWN.values()} - {""} if not module else (module,):
        importlib.import_module(f"hexa.cli.{one}")
    if not module:
        from hexa.entry_points import loaded

        own = dict(COMMANDS)
        loaded(ADDED)  # which declares them
        COMMANDS.update(own)
    return COMMANDS


def option(usage: str, help: str = "", **settings: Any) -> Option:
    """An option such as `--out FILE`, or a positional argument such as `RECIPE`."""
    name, _, metavar = usage.partition(" ")
    return name if metavar else name.lower(), {"metavar": metavar or name, "help": help, **settings}


def flag(name: str, help: str, **settings: Any) -> Option:
    """An option without a value."""
    return name, {"action": "store_true", "help": help, **settings}


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option: an integer within bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {value}")
        return value

    return number


def positive(text: str) -> float:
    """The type of an option: a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def in_unit(unit: str) -> Callable[[str], float]:
    """The type of an option: a number, perhaps with its unit."""

    def number(text: str) -> float:
        with suppress(ValueError):
            return float(text.removesuffix(unit))
        raise argparse.ArgumentTypeError(f"must be a number, got {text}")

    return number


def duration(text: str) -> float:
    """The type of an option: seconds of text such as 30m."""
    from hexa.config import UserError
    from hexa.runtime.parsing import seconds_of

    try:
        return seconds_of(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--time ")) from None


SOURCES = "a folder · digits · parquet:PATH · hf:NAME · webdataset:PATTERN · voc:PATH · cifar10 and others; #split"
BACKBONES = "a run folder · a .safetensors or checkpoint file · timm:NAME · python:FILE.py:CALLABLE · random:NAME"
DOMAINS = "fit the views to photos, aerial, microscopy, documents, medical-grey or histology"
BACKBONE = option("BACKBONE", BACKBONES)
DATA = option("--data SOURCE", SOURCES, required=True)
DATA_OF_RUN = option("--data SOURCE", SOURCES + " (default: that of the run or recipe)")
GROUPS = option(
    "--groups WHERE",
    "which labelled images were taken together and do not judge each other, such as those of a visit: FILE.csv with "
    "columns path and group, column:NAME or key:NAME (default: by folders inside the classes)",
)
JSON = flag("--json", "print JSON")
PLAN = flag("--plan", "print the plan with its cost, run nothing")
TRUST = flag("--trust", "import the Python file that the run names as the source of its method")
TRUST_IMAGES = flag(
    "--trust", "open the images and import the Python file that the run's configuration names"
)
COUNT = whole(1, 10**6)
IMAGES = option(
    "--images N",
    "use N images of --data, drawn by the seed, evenly from its classes if it has labels (default: all)",
    type=COUNT,
)
EPOCHS = option("--epochs N", "passes over the data (default: those of the recipes)", type=COUNT)
ANY_SEED = whole(0, 2**32 - 1)  # scikit-learn takes no more
SEED = option("--seed N", "seed of images and views (default: 0)", type=ANY_SEED, default=0)
MACHINE = (
    option("--device NAME", "auto, cpu, cuda or cuda:N; short for --training.device"),
    option("--precision NAME", "auto, fp32 or bf16; short for --training.precision"),
)


def say(*lines: str) -> None:
    """Print each line that is not empty."""
    from hexa.runtime.console import Console
    from hexa.runtime.output import one_line

    console = Console()
    for line in filter(None, lines):
        console.print(one_line(line))


def import_networks() -> None:
    """Import torch, torchvision and timm with the garbage collector off, which takes a seventh less time.

    A terminal shows it meanwhile. Commands call it once they have checked what can be checked before.
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
        gc.freeze()  # modules stay: no collection looks at them until the end, where libraries look for what is left
        atexit.register(gc.unfreeze)
        gc.enable()


def progress_bar() -> ProgressBar:
    """Bars of what takes long, or lines, on standard error."""
    from hexa.runtime.console import Console
    from hexa.runtime.progress import ProgressBar

    return ProgressBar(Console(stderr=True))
