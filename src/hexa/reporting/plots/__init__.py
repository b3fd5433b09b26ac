"""Figures as functions that return a Gallery to draw; `save` writes PNG or SVG."""

from hexa.reporting.plots.neighbours import (
    EmbeddedImages as EmbeddedImages,
    clusters as clusters,
    nearest_neighbours as nearest_neighbours,
)
from hexa.reporting.style import SUFFIXES as SUFFIXES, save as save
