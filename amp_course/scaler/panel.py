"""`ScaleExplorer`: move a loss scale over recorded gradients, and see which are lost,
kept and overflow.
"""

from __future__ import annotations

from html import escape
from typing import Self

from amp_course.bits.formats import FP16
from amp_course.kit.panel import Control, Menu, Panel, Slider
from amp_course.scaler.panel_html import scale_view
from amp_course.scaler.window import EXPONENTS, FORMATS, Gradients, count_sizes, find_window
from amp_course.underflow.record import GradientRecorder

_ALL = "all layers"
Counts = dict[str, dict[str, list[int]]]  # "outputs" or "weights" → layer → as `Gradients` takes


class ScaleExplorer(Panel):
    """Choose loss scale, format and layer by slider and menu; the gradients are from a real
    backward pass.

    recorder: a `GradientRecorder` that has recorded a backward pass of yours, without a loss scale;
              by default the course's GPT is trained for a few steps and recorded on the spot.

    Raises ValueError for a recorder that has recorded nothing, TypeError for anything else.
    """

    title = "ScaleExplorer: which gradients survive?"

    def __init__(self, recorder: GradientRecorder | None = None) -> None:
        self._show(self.record(recorder))

    @staticmethod
    def record(recorder: GradientRecorder | None = None) -> Counts:
        """Count the gradients of a recording by size."""
        if recorder is None:
            from amp_course.scaler.recording import record_gpt  # with torch, which the book lacks

            recorder = record_gpt()
        if not isinstance(recorder, GradientRecorder):
            raise TypeError(
                f"this is a {type(recorder).__name__}: pass a GradientRecorder, after a backward() "
                f"inside its `with` block."
            )
        recorded = {"outputs": recorder.outputs, "weights": recorder.weights}
        return {
            kind: {layer: count_sizes(gradient) for layer, gradient in layers.items()}
            for kind, layers in recorded.items()
        }

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """Return the panel of gradients that were counted."""
        panel = cls.__new__(cls)
        panel._show(counts)
        return panel

    def _show(self, counts: Counts) -> None:
        self._counts = counts
        self._together = {kind: Gradients(*layers.values()) for kind, layers in counts.items()}
        self.format = Menu(
            FP16,
            [(fmt.name, fmt) for fmt in FORMATS],
            "format",
            "the format that the scaled gradients are rounded to",
        )
        self.kind = Menu(
            "outputs",
            [("layers' outputs", "outputs"), ("weights", "weights")],
            "gradients of",
            "what flows from layer to layer, or what the optimizer gets in the end",
        )
        self.layer = Menu(_ALL, [_ALL], "layer", "all layers together, or one of them")
        self.exponent = Slider(
            0,
            EXPONENTS,
            "scale, 2 to the",
            "the loss scale, as a power of two: what every gradient is multiplied by",
            width="40em",
        )
        super().__init__(self.exponent, self.format, self.kind, self.layer)

    def update(self, control: Control | None) -> None:
        """Show the chosen gradients at the chosen scale."""
        layers = self._counts[self.kind.value]
        self.layer.options = [_ALL, *layers]
        layer, fmt, exponent = self.layer.value, self.format.value, self.exponent.value
        try:
            gradients = (
                self._together[self.kind.value] if layer == _ALL else Gradients(layers[layer])
            )
        except ValueError:
            self.message = (
                f"All gradients of {escape(layer)} are 0 or NaN, so there is nothing to scale. "
                f"Choose another layer."
            )
            return
        self.message = ""
        self.histogram, self.sweep = gradients.histogram(fmt, exponent), gradients.sweep(fmt)
        self.window = find_window(self.sweep)
        self.html = scale_view(self.histogram, fmt, exponent, self.sweep, self.window)
