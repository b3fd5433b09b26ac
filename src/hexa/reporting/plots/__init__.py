"""The paper's figures as functions that return a matplotlib Figure; `save` writes it as PNG or SVG."""

from __future__ import annotations

from hexa.reporting.plots.confusion import Confusion, confusion, confusion_curves
from hexa.reporting.plots.neighbours import Embedded, clusters, nearest_neighbours
from hexa.reporting.plots.pictures import PictureRow, hard_examples, pictures
from hexa.reporting.plots.studies import Bar, Curve, attack_grid, bars, beta_study, curves
from hexa.reporting.plots.view_space import ViewSpace, embed_views, view_space
from hexa.reporting.style import SUFFIXES, save

__all__ = [
    "SUFFIXES",
    "Bar",
    "Confusion",
    "Curve",
    "Embedded",
    "PictureRow",
    "ViewSpace",
    "attack_grid",
    "bars",
    "beta_study",
    "clusters",
    "confusion",
    "confusion_curves",
    "curves",
    "embed_views",
    "hard_examples",
    "nearest_neighbours",
    "pictures",
    "save",
    "view_space",
]
