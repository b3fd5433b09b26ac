"""The commands of the command line: one function each, with its options declared above it."""

from hexa.commands import backbones, machine, training
from hexa.commands.declare import COMMANDS

__all__ = ["COMMANDS", "backbones", "machine", "training"]
