"""Names of the files in a run folder."""

from __future__ import annotations

CONFIG = "config.yaml"
BACKBONE = "backbone.safetensors"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
#: The record of `hexa adapt` and `hexa harden`, which is written first.
ADAPTATION = "adapt.json"
#: The better weights of an adaptation, initial or trained, for timm.
WINNER = "winner.safetensors"
#: The backbone of the epoch with the best score of the monitor.
BEST = "best.safetensors"
#: File that the training process locks.
LOCK = ".lock"
