"""The commands of the command line, a function each, with its options declared in its decorator."""

from hexa.commands import backbones, machine, training
from hexa.commands.declare import COMMANDS, commands

__all__ = ["COMMANDS", "backbones", "commands", "machine", "training"]
