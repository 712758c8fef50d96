"""Make figures that all look alike.

They are made without pyplot, so nothing is shown twice and nothing piles up. A figure that is the
last value of a cell shows itself, sharp on a dense screen and small enough to be stored in the
notebook.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from amp_course.kit.colours import FAINT, INK

_DOTS, _SHOWN = 160, 110  # dots per inch in the file, and on the page
FEWER_DOTS = 120
_FILE_COLOURS = 64  # enough for flat colours and their edges, in a quarter of a file's bytes


class CourseFigure(Figure):
    """A Figure that a notebook shows as a small, sharp PNG, with an alternative text.

    Like that of IPython's `Image(alt=…)`, the text goes into the output's metadata, where nbconvert
    reads it. JupyterLab 4 does not, so the course's has an extension (lab_settings/labextensions).
    """

    alt = ""

    def draw(self, renderer: Any) -> None:
        """Draw, without reading formulas between dollars, except those of logarithmic axes."""
        for text in self.findobj(Text):
            words = text.get_text()
            if "$" in words and r"\mathdefault" not in words:
                text.set_parse_math(False)
        super().draw(renderer)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return png(self), shown_as(self)


def shown_as(figure: Figure) -> dict[str, Any]:
    """Return what a notebook stores with a figure's PNG: its size in pixels, and its alt text."""
    width, height = (round(inches * _SHOWN) for inches in figure.get_size_inches())
    return {"width": width, "height": height, "alt": getattr(figure, "alt", "")}


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file of few colours, which include those of single dots."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png")
    with Image.open(full) as image:
        # The default method spends the colours on edges, and turns fp32's blue dots green.
        method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        few = image.convert("RGB").quantize(_FILE_COLOURS, method, dither=dither)
        few.save(small, "png", optimize=True)
    return small.getvalue()


def new_figure(
    width: float,
    height: float,
    columns: int = 1,
    rows: int = 1,
    *,
    alt: str,
    dots: int = _DOTS,
    **options: Any,
) -> tuple[Figure, Any]:
    """Return a white Figure of width × height inches, and the axes from `Figure.subplots`.

    dots: per inch in the file; FEWER_DOTS for a page of text, else a third of a notebook's bytes
    alt:  one sentence on what the figure shows, for those who cannot see it
    """
    size = (width, height)
    figure = CourseFigure(figsize=size, dpi=dots, layout="constrained", facecolor="white")
    figure.alt = alt
    axes = figure.subplots(rows, columns, **options)
    for axis in figure.axes:
        _simplify(axis)
    return figure, axes


def _simplify(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(which="both", labelsize=8, colors=INK)


def merged_row(axes: Any) -> Any:
    """Replace a row of axes, the second one of its figure, by one axis, and return that."""
    figure, grid = axes[0].figure, axes[0].get_gridspec()
    for axis in axes:
        axis.remove()
    merged = figure.add_subplot(grid[1, :])
    _simplify(merged)
    return merged


def title(axis: Any, text: str, under: str = "") -> None:
    """Write a left-aligned title and, smaller and fainter, what the axis shows."""
    axis.set_title(
        text, loc="left", fontsize=10, fontweight="bold", color=INK, pad=18 if under else 8
    )
    if under:
        axis.text(0, 1.02, under, transform=axis.transAxes, fontsize=8, color=FAINT, va="bottom")
