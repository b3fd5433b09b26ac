"""The vocabulary: methods predict pseudo-labels of batches, hard examples make that difficult, objectives train."""

from hexa.core.batch import MAIN, Batch, Branch, PseudoLabels
from hexa.core.example import Example, Mixture, Score
from hexa.core.hard_example import HardExample
from hexa.core.method import EncoderConfig, Method, MethodConfig, Passes, Setting
from hexa.core.objective import Objective
from hexa.core.shares import STD, ObjectiveConfig
from hexa.core.term import Part, Term

__all__ = [
    "MAIN",
    "STD",
    "Batch",
    "Branch",
    "EncoderConfig",
    "Example",
    "HardExample",
    "Method",
    "MethodConfig",
    "Mixture",
    "Objective",
    "ObjectiveConfig",
    "Part",
    "Passes",
    "PseudoLabels",
    "Score",
    "Setting",
    "Term",
]
