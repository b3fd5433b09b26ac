"""Names of the files in a run folder."""

from __future__ import annotations

CONFIG = "config.yaml"
BACKBONE = "backbone.safetensors"
REPORT = "report.html"
CHECKPOINTS = "checkpoints"
#: The record of `hexa adapt`, which it writes first.
ADAPTATION = "adapt.json"
#: The better of the start and the result of an adaptation, for timm.
WINNER = "winner.safetensors"
#: The backbone of the epoch that the monitor scored best.
BEST = "best.safetensors"
#: Locked by the process that trains into the folder.
LOCK = ".lock"
