"""The vocabulary of training: methods predict pseudo-labels, and hard examples make the prediction
harder."""

from hexa.core.batch import (
    MAIN as MAIN,
    Batch as Batch,
    Branch as Branch,
    PseudoLabels as PseudoLabels,
)
from hexa.core.example import Example as Example, Mixture as Mixture, Score as Score
from hexa.core.hard_example import HardExample as HardExample
from hexa.core.method import (
    EncoderConfig as EncoderConfig,
    Method as Method,
    MethodConfig as MethodConfig,
    Passes as Passes,
    Setting as Setting,
)
