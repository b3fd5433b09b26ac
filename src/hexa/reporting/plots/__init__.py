"""The paper's figures as functions that return a matplotlib Figure; `save` writes PNG and SVG."""

from __future__ import annotations

from hexa.reporting.plots.attack_grid import attack_grid
from hexa.reporting.plots.bars import Bar, bars
from hexa.reporting.plots.beta_study import beta_study
from hexa.reporting.plots.curves import Curve, curves
from hexa.reporting.plots.style import save

__all__ = ["Bar", "Curve", "attack_grid", "bars", "beta_study", "curves", "save"]
