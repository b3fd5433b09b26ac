"""One look for all figures: colours that every kind of colour vision distinguishes, readable sizes, few lines."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from numpy.typing import NDArray

from hexa.config import UserError
from hexa.runtime.console import printable
from hexa.runtime.files import write_whole

INK = "#1b1f24"
MUTED = "#5d6875"
#: Okabe and Ito's, without yellow, which white paper swallows; dark enough to write beside.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6f4e9c", "#5d6875")
#: Told apart in print without colours too.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE = Path(__file__).with_name("templates") / "figures.mplstyle"
_DPI = 160
SIDE = 1.7
"""Inches that a picture of a hard example is wide."""
SUFFIXES = (".png", ".svg")


def style() -> AbstractContextManager[None]:
    """The look, for figures made inside."""
    return matplotlib.rc_context(fname=_STYLE)


@contextmanager
def drawing(
    count: int,
    title: str = "",
    remark: str = "",
    *,
    width: float,
    height: float,
    rows: int = 1,
    share_y: bool = False,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `count` panels, each `width` × `height` inches, in `rows` rows, in this look.

    title, remark: above and under the whole figure, wrapped to its width.
    """
    columns = -(-count // rows)
    with style():
        layout = ConstrainedLayoutEngine(
            w_pad=0.08, h_pad=0.05
        )  # inches, so that labels keep off the edge
        figure = Figure(figsize=(width * columns, height * rows), layout=layout)
        FigureCanvasAgg(figure)
        axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
        for unused in axes.flat[count:]:
            unused.set_axis_off()
        yield figure, list(axes.flat[:count])
        if title:
            figure.suptitle(
                textwrap.fill(title, int(figure.get_figwidth() * 10.5)), x=0.02, ha="left"
            )
        if remark:
            lines = textwrap.fill(remark, int(figure.get_figwidth() * 14))
            figure.supxlabel(lines, fontsize=9.0, color=MUTED, x=0.02, ha="left")


def picture(figure: Figure, kind: str) -> bytes:
    """A figure as png or svg, on white. Equal figures give equal bytes."""
    options: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
    for text in figure.findobj(Text):  # names of files and classes may hold anything
        text.set_text(printable(text.get_text()))
    file = io.BytesIO()
    with style(), warnings.catch_warnings():
        # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message=r"Glyph \d+ ")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(file, format=kind, dpi=_DPI, facecolor="white", **options)
    return file.getvalue()


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure as PNG or SVG, by the name's ending, atomically. Raises UserError for another."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: the name must end in {' or '.join(SUFFIXES)}")
    content = picture(figure, path.suffix[1:])
    return write_whole(path, lambda file: file.write(content))
