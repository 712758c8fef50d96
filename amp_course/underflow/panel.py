"""`RangeExplorer`: slide a distribution across the range of a format,
and see what happens to its numbers.
"""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure

from amp_course.bits.formats import FORMATS, FP16
from amp_course.kit.panel import WIDE, Panel
from amp_course.underflow.figures import range_figure
from amp_course.underflow.panel_html import range_view
from amp_course.underflow.zones import ZoneHistogram, zone_histogram

_NUMBERS = 50_000
_LONG = widgets.Layout(width="36em", max_width="100%")


class RangeExplorer(Panel):
    """Centre, spread, format and loss scale by slider and menu; the percentages come from actually
    rounding the numbers.

    The numbers' sizes are log-normal, as those of gradients nearly are: log2 of the size has the
    centre as its mean and the spread as its standard deviation. `panel.centre.value = -20` drives
    it in a test; `panel.histogram` is what it shows.
    """

    def __init__(self) -> None:
        self._normal = torch.randn(
            _NUMBERS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        self.format = widgets.Dropdown(
            options=[(fmt.name, fmt) for fmt in FORMATS],
            value=FP16,
            description="format",
            style=WIDE,
            tooltip="the format that the numbers are rounded to",
        )
        self.centre = widgets.IntSlider(
            value=-20,
            min=-140,
            max=40,
            description="centre, 2 to the",
            style=WIDE,
            layout=_LONG,
            tooltip="the typical size of a number, as a power of two",
        )
        self.spread = widgets.IntSlider(
            value=4,
            min=1,
            max=12,
            description="spread",
            style=WIDE,
            layout=_LONG,
            tooltip="the standard deviation of log2 of the size: two thirds of the numbers lie "
            "within this many powers of two of the centre",
        )
        self.loss_scale = widgets.IntSlider(
            value=0,
            min=0,
            max=24,
            description="scale, 2 to the",
            style=WIDE,
            layout=_LONG,
            tooltip="a loss scale: every number is multiplied by it before rounding",
        )
        self.histogram = self._count()
        controls = [self.format, self.centre, self.spread, self.loss_scale]
        super().__init__("RangeExplorer: what happens to these numbers?", controls, widgets.HTML())
        for control in controls:
            control.observe(self._redraw, names="value")
        self._redraw()

    def _count(self) -> ZoneHistogram:
        sizes = torch.exp2(self._normal * self.spread.value + self.centre.value)
        return zone_histogram(sizes, self.format.value, 2.0**self.loss_scale.value)

    def _redraw(self, change: Any = None) -> None:
        self.histogram = self._count()
        self.view.value = range_view(self.histogram, self.format.value)

    def still(self) -> Figure:
        """Return the current histogram."""
        return range_figure(self.histogram, self.format.value)
