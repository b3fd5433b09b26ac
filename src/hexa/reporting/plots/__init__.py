"""The paper's figures as functions that return a matplotlib Figure, or a Gallery to draw; `save` writes PNG or SVG."""

from hexa.reporting.plots.neighbours import (
    EmbeddedImages as EmbeddedImages,
    clusters as clusters,
    nearest_neighbours as nearest_neighbours,
)
from hexa.reporting.plots.studies import (
    attack_grid as attack_grid,
    bars as bars,
    beta_study as beta_study,
    curves as curves,
)
from hexa.reporting.style import SUFFIXES as SUFFIXES, save as save
