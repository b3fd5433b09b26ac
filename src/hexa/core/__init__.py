"""The vocabulary: methods predict pseudo-labels of batches, hard examples make that difficult."""

from hexa.core.batch import MAIN, Batch, Branch, PseudoLabels
from hexa.core.example import Example, Mixture, Score
from hexa.core.hard_example import HardExample
from hexa.core.method import EncoderConfig, Method, MethodConfig, Passes, Setting

__all__ = [
    "MAIN",
    "Batch",
    "Branch",
    "EncoderConfig",
    "Example",
    "HardExample",
    "Method",
    "MethodConfig",
    "Mixture",
    "Passes",
    "PseudoLabels",
    "Score",
    "Setting",
]
