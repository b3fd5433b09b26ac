"""Figures as functions that return a Gallery to draw; `save` writes PNG or SVG."""

from hexa.reporting.plots.clusters import EmbeddedImages as EmbeddedImages, clusters as clusters
from hexa.reporting.style import SUFFIXES as SUFFIXES, save as save
