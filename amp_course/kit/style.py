"""How figures look: one colour and a second cue for each recipe, format and zone; one way to make a
Figure.

Figures are made without pyplot, so nothing is shown twice and nothing piles up. One that is the
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

_DOTS, _SHOWN = 160, 110  # dots per inch in the file, and as the page shows them
FEWER_DOTS = 120
_FILE_COLOURS = (
    64  # a few flat colours and their edges: a quarter of the bytes of a full-colour file
)


class CourseFigure(Figure):
    """A Figure that a notebook shows as a small, sharp PNG, with `alt` for readers who cannot see
    it.

    The alt text goes where IPython's own `Image(alt=…)` puts it, into the output's metadata.
    nbconvert reads it there; JupyterLab 4 does not, so the course's JupyterLab has a small
    extension for it (lab_settings/labextensions).
    """

    alt = ""

    def draw(self, renderer: Any) -> None:
        """Draw, with the dollars in names that are not ours as dollars:
        matplotlib would read formulas between them.
        """
        for text in self.findobj(Text):
            words = text.get_text()
            # matplotlib's own, on a logarithmic axis
            if "$" in words and r"\mathdefault" not in words:
                text.set_parse_math(False)
        super().draw(renderer)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return png(self), shown_as(self)


def shown_as(figure: Figure) -> dict[str, Any]:
    """Return what a notebook stores next to a figure's PNG:
    its size in pixels, and its alt text.
    """
    width, height = (round(inches * _SHOWN) for inches in figure.get_size_inches())
    return {"width": width, "height": height, "alt": getattr(figure, "alt", "")}


def png(figure: Figure) -> bytes:
    """Return the figure as the bytes of a PNG file of few colours, a few small dots' among them."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png")
    with Image.open(full) as image:
        # The default method spends the colours on edges, and fp32's blue dots come out green.
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
    """Return a white Figure of width × height inches, and its axes (as `Figure.subplots` gives
    them).

    dots: per inch in the file; a page full of text takes FEWER_DOTS, or it is a third of a
          notebook's bytes
    alt:  one sentence that tells a reader who cannot see the figure what it shows
    """
    figure = CourseFigure(
        figsize=(width, height), dpi=dots, layout="constrained", facecolor="white"
    )
    figure.alt = alt
    axes = figure.subplots(rows, columns, **options)
    for axis in figure.axes:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(which="both", labelsize=8, colors=INK)
        axis.title.set_fontsize(10)
    return figure, axes


def merged_row(axes: Any) -> Any:
    """Return one axis in the place of a row of axes; they have to be the second row of their
    figure.
    """
    figure, grid = axes[0].figure, axes[0].get_gridspec()
    for axis in axes:
        axis.remove()
    merged = figure.add_subplot(grid[1, :])
    for side in ("top", "right"):
        merged.spines[side].set_visible(False)
    merged.tick_params(which="both", labelsize=8, colors=INK)
    return merged


def title(axis: Any, text: str, under: str = "") -> None:
    """Write a left-aligned title and, smaller and fainter, what the axis shows."""
    axis.set_title(
        text, loc="left", fontsize=10, fontweight="bold", color=INK, pad=18 if under else 8
    )
    if under:
        axis.text(0, 1.02, under, transform=axis.transAxes, fontsize=8, color=FAINT, va="bottom")
