"""Figures of studies: what they show, read back from the drawn things."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from hexa.config import UserError
from hexa.reporting.style import save
from hexa_paper.figures import charts as plots

VALUES = {"Std": [50.0, 51.0, 52.5], "Std+Adv": [53.0, 52.0, 55.0], "Std+Adv+Cmx+CmxA": [54.0]}


def texts(figure: Figure) -> str:
    return "\n".join(str(text.get_text()) for text in figure.findobj(matplotlib.text.Text))


def error_bars(ax: Axes) -> list[ErrorbarContainer]:
    return [found for found in ax.containers if isinstance(found, ErrorbarContainer)]


def test_bar_heights_and_whiskers() -> None:
    """Bars are as high as the means, whiskers as long as the deviations."""
    panels = {"20 epochs each": VALUES, "equal time": VALUES}
    figure = plots.bars(panels, y_label="top-1 (%)", title="", remark="")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["20 epochs each", "equal time"]
    for ax in figure.axes:
        (drawn,) = [found for found in ax.containers if isinstance(found, BarContainer)]
        heights = [patch.get_height() for patch in drawn]
        means = [np.mean(values) for values in VALUES.values()]
        assert heights == pytest.approx(means)
        spreads = [np.std(values, ddof=1) for values in VALUES.values() if len(values) > 1]
        lengths = [bar.lines[2][0].get_segments()[0][:, 1] for bar in error_bars(ax)]
        halves = [(ends[1] - ends[0]) / 2 for ends in lengths]
        assert halves == pytest.approx(spreads)
        low, high = ax.get_ylim()
        assert low < 50.0
        assert high > 55.0
    assert "51.2 ± 1.3" in texts(figure)
    assert figure.axes[0].get_ylabel() == "top-1 (%)"


def test_curve_means() -> None:
    """Curves show means over their x."""
    curve = {1: [10.0, 12.0], 2: [20.0, 22.0], 4: [30.0, 33.0]}
    panels = {"labelled images, k": {"MoCo-v2": curve}}
    figure = plots.curves(panels, y_label="mAP (%)", title="", remark="", doubling=True)
    (ax,) = figure.axes
    (drawn,) = error_bars(ax)
    points = drawn.lines[0].get_xydata()
    assert points.tolist() == [
        [1, 11.0],
        [2, 21.0],
        [4, 31.5],
    ]  # type: ignore[union-attr]
    assert ax.get_xscale() == "log"
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks == ["1", "2", "4"]
    assert ax.get_xlabel() == "labelled images, k"


def test_figure_files(
    tmp_path: Path,
) -> None:
    """Figures are PNG or SVG with text, and equal ones are equal files."""
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        figure = plots.bars({"": {"Std": [50.0, 51.0]}}, y_label="top-1 (%)", title="", remark="")
        save(figure, tmp_path / name)
    for suffix in ("png", "svg"):
        found = (tmp_path / f"a.{suffix}").read_bytes()
        assert found == (tmp_path / f"b.{suffix}").read_bytes()
    assert "top-1 (%)</text>" in save(figure, tmp_path / "sub/a.svg").read_text()
    with pytest.raises(UserError, match=r"must end in .png or .svg"):
        save(figure, tmp_path / "a.jpg")
    assert not (tmp_path / "a.jpg").exists()
