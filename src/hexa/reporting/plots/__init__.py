"""The paper's figures as functions that return a matplotlib Figure, or a Gallery to draw; `save` writes PNG or SVG."""

from __future__ import annotations

from hexa.reporting.plots.neighbours import EmbeddedImages, clusters, nearest_neighbours
from hexa.reporting.plots.studies import attack_grid, bars, beta_study, curves
from hexa.reporting.style import SUFFIXES, save

__all__ = [
    "SUFFIXES",
    "EmbeddedImages",
    "attack_grid",
    "bars",
    "beta_study",
    "clusters",
    "curves",
    "nearest_neighbours",
    "save",
]
