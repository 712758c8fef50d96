"""`BlockExplorer`: drag an outlier through a row of numbers; see which neighbours pay for it."""

from __future__ import annotations

import math
import random
from typing import Any

from torch import Tensor

from amp_course.bits.formats import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FloatFormat
from amp_course.frontiers.block_errors import (
    RowErrors,
    row_errors,
    spread,
    weight_row,
    with_outlier,
)
from amp_course.frontiers.block_formats import BlockFormat
from amp_course.frontiers.panel_html import block_view, short_name
from amp_course.kit.panel import Control, Menu, Panel, Slider

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


class BlockExplorer(Panel):
    """Size and place of an outlier by slider, block size, element, scale and rounding by menu; all
    numbers are rounded live.

    tensor: your own numbers, at least 8, of which the first 64 are shown; None: 64 numbers drawn
            like weights. The number at the outlier's place is replaced

    `panel.outlier.value = 100` drives it in a test; `panel.row` and `panel.whole` are what it
    shows, in blocks and with one scale for all; the verdict compares with `panel.other`.

    Raises TypeError for anything but a tensor of floating-point numbers; ValueError for fewer than
    8 numbers, inf, NaN, and nearly equal numbers: an outlier is measured in standard deviations of
    the others.
    """

    title = "BlockExplorer: who pays for an outlier?"

    def __init__(self, tensor: Tensor | None = None) -> None:
        self._numbers = weight_row() if tensor is None else _row_of(tensor)
        count = len(self._numbers)
        self.outlier = Slider(
            20.0,
            [(f"{times:,g} σ", times) for times in OUTLIERS],
            "outlier",
            "the size of the outlier, in standard deviations σ of the other numbers, from 1 to "
            "1,000",
            width="40em",
        )
        self.place = Slider(
            count * 11 // 16,
            range(count),
            "its place",
            "where in the row the outlier is; the first place is 0",
            width="40em",
        )
        sizes = [size for size in _SIZES if size < count]
        self.size = Menu(
            min(32, sizes[-1]),
            [*sizes, (f"{count}, the whole row", count)],
            "block size",
            "how many numbers in a row share a scale",
        )
        self.element = Menu(
            FP4_E2M1,
            [(short_name(fmt), fmt) for fmt in ELEMENTS],
            "element",
            "the format of each stored number",
        )
        self.scale = Menu(
            "E8M0, rounded down",
            _SCALES,
            "scale",
            "the format of a block’s scale, and its rounding",
        )
        self.rounding = Menu(
            "nearest",
            ["nearest", "stochastic"],
            "rounding",
            "of the elements: to nearest, or up or down at random",
        )
        menus = (self.size, self.element, self.scale, self.rounding)
        super().__init__(self.outlier, self.place, menus)

    def update(self, control: Control | None) -> None:
        place = self.place.value
        unit = spread(self._numbers, place)
        values = with_outlier(self._numbers, place, self.outlier.value)
        chosen = self._format(self.element.value, self.size.value)
        self.row = self._round(values, chosen)
        self.whole = self._round(values, chosen.with_size(len(values)))
        compared = self._comparison()
        self.other = self._round(values, compared) if compared else None
        self.html = block_view(self.row, self.whole, self.other, place, unit)

    def _format(self, element: FloatFormat, size: int) -> BlockFormat:
        return BlockFormat("chosen", element, size, **_SCALES[self.scale.value])

    def _round(self, values: list[float], block_format: BlockFormat) -> RowErrors:
        # seeded, so that a choice always shows the same
        draw = random.Random(0).random if self.rounding.value == "stochastic" else None
        return row_errors(values, block_format, draw)

    def _comparison(self) -> BlockFormat | None:
        """Return the most instructive alternative: smaller blocks, or an element with more range;
        where no neighbour became 0, one that might lose some: E2M1, or one scale for all.
        """
        size, element = self.size.value, self.element.value
        if self.row.zeroed_neighbours(self.place.value):
            if size > _SIZES[0]:
                return self._format(element, 8 if size > 8 else 4)
            return None if element is FP8_E4M3 else self._format(FP8_E4M3, size)
        if element is not FP4_E2M1:
            return self._format(FP4_E2M1, size)
        return self._format(element, len(self._numbers)) if size < len(self._numbers) else None


def _row_of(tensor: Tensor) -> list[float]:
    is_tensor = isinstance(tensor, Tensor)
    if not is_tensor or not tensor.is_floating_point():
        kind = f"tensor of {tensor.dtype}" if is_tensor else type(tensor).__name__
        raise TypeError(f"this is a {kind}: pass a tensor of floating-point numbers")
    row: list[float] = tensor.reshape(-1)[:_MOST].double().tolist()
    if len(row) < _FEWEST:
        raise ValueError(
            f"this tensor has {len(row)} numbers: pass {_FEWEST} or more, so that there are blocks"
        )
    if not all(map(math.isfinite, row)):
        raise ValueError(
            "the first 64 numbers hold inf or NaN: find them with x.isfinite(), and pass others"
        )
    if min(spread(row, place) for place in range(len(row))) == 0:
        raise ValueError(
            "nearly all numbers are equal, and an outlier is measured in standard deviations: pass "
            "others"
        )
    return row
