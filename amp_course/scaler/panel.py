"""`ScaleExplorer`: move a loss scale over recorded gradients, and see which are lost,
kept and overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure
from torch import Tensor

from amp_course.bits.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from amp_course.kit.panel import WIDE, Panel
from amp_course.scaler.figures import scale_figure
from amp_course.scaler.panel_html import scale_view
from amp_course.scaler.recording import record_gpt
from amp_course.scaler.window import EXPONENTS, Gradients
from amp_course.underflow.record import GradientRecorder

_ALL = "all layers"
_LONG = widgets.Layout(width="40em", max_width="100%")


class ScaleExplorer(Panel):
    """Choose loss scale, format and layer by slider and menu; the gradients are from a real
    backward pass.

    recorder: a `GradientRecorder` that has recorded a backward pass of yours, without a loss scale;
              by default the course's GPT is trained for a few steps and recorded on the spot.

    `panel.exponent.value = 16` drives it in a test; `panel.sweep`, `panel.window` and
    `panel.histogram` are what it shows.

    Raises ValueError for a recorder that has recorded nothing, TypeError for anything else.
    """

    def __init__(self, recorder: GradientRecorder | None = None) -> None:
        recorder = record_gpt() if recorder is None else recorder
        if not isinstance(recorder, GradientRecorder):
            raise TypeError(
                f"this is a {type(recorder).__name__}: pass a GradientRecorder, after a backward() "
                f"inside its `with` block."
            )
        self._recorded: dict[str, Mapping[str, Tensor]] = {
            "outputs": recorder.outputs,
            "weights": recorder.weights,
        }
        self._sorted: dict[tuple[str, str], Gradients] = {}
        for kind in self._recorded:
            self._gradients(kind, _ALL)  # the long ones now, so that no event waits for them
        self.format = widgets.Dropdown(
            options=[(fmt.name, fmt) for fmt in (FP16, BF16, FP8_E5M2, FP8_E4M3)],
            value=FP16,
            description="format",
            style=WIDE,
            tooltip="the format that the scaled gradients are rounded to",
        )
        self.kind = widgets.Dropdown(
            options=[("layers' outputs", "outputs"), ("weights", "weights")],
            description="gradients of",
            style=WIDE,
            tooltip="what flows from layer to layer, or what the optimizer gets in the end",
        )
        self.layer = widgets.Dropdown(
            options=self._layers(),
            description="layer",
            style=WIDE,
            tooltip="all layers together, or one of them",
        )
        self.exponent = widgets.IntSlider(
            value=0,
            min=EXPONENTS[0],
            max=EXPONENTS[-1],
            description="scale, 2 to the",
            style=WIDE,
            layout=_LONG,
            tooltip="the loss scale, as a power of two: what every gradient is multiplied by",
        )
        controls = [self.exponent, self.format, self.kind, self.layer]
        super().__init__("Which gradients survive?", controls, widgets.HTML())
        self.kind.observe(self._change_kind, names="value")
        for control in (self.exponent, self.format, self.layer):
            control.observe(self._redraw, names="value")
        self._redraw()

    def _layers(self) -> list[str]:
        return [_ALL, *self._recorded[self.kind.value]]

    def _gradients(self, kind: str, layer: str) -> Gradients:
        key = (kind, layer)
        if key not in self._sorted:
            found = self._recorded[kind]
            self._sorted[key] = Gradients(*(found.values() if layer == _ALL else [found[layer]]))
        return self._sorted[key]

    def _change_kind(self, change: Any) -> None:
        layer = self.layer.value
        self.layer.options = self._layers()
        self.layer.value = layer if layer in self.layer.options else _ALL
        self._redraw()

    def _redraw(self, change: Any = None) -> None:
        fmt, exponent = self.format.value, self.exponent.value
        try:
            gradients = self._gradients(self.kind.value, self.layer.value)
        except ValueError:
            name = escape(self.layer.value)
            self.tell(
                f"All gradients of {name} are 0 or NaN, so there is nothing to scale. Choose "
                f"another layer."
            )
            return
        self.tell()
        self.histogram = gradients.histogram(fmt, exponent)
        self.sweep, self.window = gradients.sweep(fmt), gradients.window(fmt)
        self.view.value = scale_view(self.histogram, fmt, exponent, self.sweep, self.window)

    def still(self) -> Figure:
        """Return the scaled gradients and every scale's shares as they stand."""
        return scale_figure(
            self.histogram, self.format.value, self.exponent.value, self.sweep, self.window
        )
