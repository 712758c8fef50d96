"""`RangeExplorer`: slide numbers across a format's range, and see what happens to them."""

from __future__ import annotations

import math
from statistics import NormalDist

from amp_course.bits.formats import FORMATS, FP16
from amp_course.kit.panel import Control, Menu, Panel, Slider
from amp_course.underflow.panel_html import range_view
from amp_course.underflow.zones import count_zones

_NUMBERS = 50_000
_ENDS = (0.5 / _NUMBERS, 1 - 0.5 / _NUMBERS)  # the quantiles of the smallest and the largest


class RangeExplorer(Panel):
    """Count numbers of a chosen centre, spread and loss scale by the zones of a format.

    Their sizes are log-normal, as those of gradients nearly are: log2 of the size has the centre as
    its mean and the spread as its standard deviation. They are the quantiles in the middle of
    50,000 equal shares. In a test: panel.centre.value = -20; `panel.histogram` is what is shown.
    """

    title = "RangeExplorer: what happens to these numbers?"

    def __init__(self) -> None:
        formats = [(fmt.name, fmt) for fmt in FORMATS]
        tip = "the format that the numbers are rounded to"
        self.format = Menu(FP16, formats, "format", tip)
        tip = "the typical size of a number, as a power of two"
        self.centre = Slider(-20, range(-140, 41), "centre, 2 to the", tip)
        tip = (
            "the standard deviation of log2 of the size: two thirds of the numbers lie within this "
            "many powers of two of the centre"
        )
        self.spread = Slider(4, range(1, 13), "spread", tip)
        tip = "a loss scale: every number is multiplied by it before rounding"
        self.loss_scale = Slider(0, range(25), "scale, 2 to the", tip)
        super().__init__(self.format, self.centre, self.spread, self.loss_scale)

    def update(self, control: Control | None) -> None:
        """Count the numbers again, and show them."""
        sizes = NormalDist(self.centre.value + self.loss_scale.value, self.spread.value)
        least, largest = (math.floor(sizes.inv_cdf(p)) for p in _ENDS)
        self.histogram = count_zones(
            lambda cut: round(_NUMBERS * sizes.cdf(math.log2(cut))),
            self.format.value,
            range(least, largest + 1),
        )
        self.html = range_view(self.histogram, self.format.value)
