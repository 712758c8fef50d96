"""`BlockExplorer`: drag an outlier through a row of numbers,
and see which of its neighbours pay for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure
from torch import Tensor

from amp_course.bits import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FloatFormat
from amp_course.frontiers.block_errors import (
    RowErrors,
    row_errors,
    spread,
    weight_row,
    with_outlier,
)
from amp_course.frontiers.block_figures import row_figure
from amp_course.frontiers.block_formats import BlockFormat
from amp_course.frontiers.panel_html import block_view, short_name
from amp_course.kit.panel import WIDE, Panel

ELEMENTS = (FP8_E5M2, FP8_E4M3, FP6_E3M2, FP6_E2M3, FP4_E2M1)
OUTLIERS = (
    *(digit * 10.0**power for power in range(3) for digit in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)),
    1000.0,
)
_SIZES = (4, 8, 16, 32, 64)
_FEWEST, _MOST = 8, 64  # numbers in a row
_SCALES: dict[str, dict[str, Any]] = {  # what the menu says → the fields of a BlockFormat
    "E8M0, rounded down": {"rounding": "down"},
    "E8M0, rounded to nearest": {"rounding": "nearest"},
    "E8M0, rounded up": {"rounding": "up"},
    "E4M3, with one fp32": {"scale": FP8_E4M3},
}
_LONG = widgets.Layout(width="40em", max_width="100%")
_NARROW = widgets.Layout(width="24em", max_width="100%")


class BlockExplorer(Panel):
    """Size and place of an outlier by slider, block size, element, scale and rounding by menu;
    every number is rounded live.

    tensor: numbers of your own, 8 or more, of which the first 64 are shown; None: 64 numbers drawn
            like weights

    `panel.outlier.value = 100` drives it in a test; `panel.row` and `panel.whole` are what it
    shows, in blocks and with one scale for all, and `panel.other` is what the verdict compares
    with. The number at the outlier's place is replaced.

    Raises TypeError for anything but a tensor of floating-point numbers; ValueError for fewer than
    8 numbers, inf, NaN, and numbers that are nearly all equal: an outlier is measured in standard
    deviations of the others.
    """

    def __init__(self, tensor: Tensor | None = None) -> None:
        self._numbers = weight_row() if tensor is None else _row_of(tensor)
        count = len(self._numbers)
        self.outlier = widgets.SelectionSlider(
            options=[(f"{times:,g} σ", times) for times in OUTLIERS],
            value=20.0,
            description="outlier",
            style=WIDE,
            layout=_LONG,
            tooltip="the size of the outlier, in standard deviations σ of the other numbers, from "
            "1 to 1,000",
        )
        self.place = widgets.IntSlider(
            value=count * 11 // 16,
            min=0,
            max=count - 1,
            description="its place",
            style=WIDE,
            layout=_LONG,
            tooltip="where in the row the outlier is; the first place is 0",
        )
        sizes = [size for size in _SIZES if size < count]
        self.size = _menu(
            [*((str(size), size) for size in sizes), (f"{count}, the whole row", count)],
            min(32, sizes[-1]),
            "block size",
            "how many numbers in a row share a scale",
        )
        self.element = _menu(
            [(short_name(fmt), fmt) for fmt in ELEMENTS],
            FP4_E2M1,
            "element",
            "the format of each stored number",
        )
        self.scale = _menu(
            [*_SCALES],
            "E8M0, rounded down",
            "scale",
            "the format of a block’s scale, and its rounding",
        )
        self.rounding = _menu(
            ["nearest", "stochastic"],
            "nearest",
            "rounding",
            "of the elements: to nearest, or up or down at random",
        )
        menus = [self.size, self.element, self.scale, self.rounding]
        box = widgets.HBox(menus, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__(
            "BlockExplorer: who pays for an outlier?",
            [self.outlier, self.place, box],
            widgets.HTML(),
        )
        for control in (self.outlier, self.place, *menus):
            control.observe(self._redraw, names="value")
        self._redraw()

    @property
    def chosen(self) -> BlockFormat:
        """The format as chosen."""
        return self._format(self.element.value, self.size.value)

    def _format(self, element: FloatFormat, size: int) -> BlockFormat:
        return BlockFormat(
            f"{element.name}, blocks of {size}", element, size, **_SCALES[self.scale.value]
        )

    def _redraw(self, change: Any = None) -> None:
        place = self.place.value
        self._unit = spread(self._numbers, place)
        self._values = with_outlier(self._numbers, place, self.outlier.value)
        self.row = self._round(self.chosen)
        self.whole = self._round(replace(self.chosen, size=len(self._values)))
        compared = self._comparison()
        self.other = self._round(compared) if compared else None
        self.view.value = block_view(self.row, self.whole, self.other, place, self._unit)

    def _round(self, block_format: BlockFormat) -> RowErrors:
        generator = torch.Generator().manual_seed(0)  # so that a choice always shows the same
        return row_errors(
            self._values, block_format, rounding=self.rounding.value, generator=generator
        )

    def _comparison(self) -> BlockFormat | None:
        """Return the choice that teaches most next to the current one: smaller blocks, or an
        element with more range.

        Where no neighbour became 0, it is one that might lose some: E2M1, or one scale for all.
        """
        size, element = self.size.value, self.element.value
        if self.row.zeroed_neighbours(self.place.value):
            if size > _SIZES[0]:
                return self._format(element, 8 if size > 8 else 4)
            return None if element is FP8_E4M3 else self._format(FP8_E4M3, size)
        if element is not FP4_E2M1:
            return self._format(FP4_E2M1, size)
        return self._format(element, len(self._values)) if size < len(self._values) else None

    def still(self) -> Figure:
        """Return the row and its errors as they stand."""
        return row_figure(self.row, self.place.value, self._unit)


def _row_of(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = (
            f"a tensor of {tensor.dtype}"
            if isinstance(tensor, Tensor)
            else f"a {type(tensor).__name__}"
        )
        raise TypeError(f"this is {kind}: pass a tensor of floating-point numbers")
    row = tensor.detach().cpu().reshape(-1)[:_MOST].double()
    if len(row) < _FEWEST:
        raise ValueError(
            f"this tensor has {len(row)} numbers: pass {_FEWEST} or more, so that there are blocks"
        )
    if not bool(row.isfinite().all()):
        raise ValueError(
            "the first 64 numbers hold inf or NaN: find them with x.isfinite(), and pass others"
        )
    if min(spread(row, place) for place in range(len(row))) == 0:
        raise ValueError(
            "nearly all numbers are equal, and an outlier is measured in standard deviations: pass "
            "others"
        )
    return row


def _menu(options: list[Any], value: Any, description: str, tooltip: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options,
        value=value,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
    )
