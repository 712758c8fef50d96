"""`ScaleExplorer`: move a loss scale over recorded gradients; see which are lost or overflow."""

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
    """Show a real backward pass's gradients by a chosen loss scale, format and layer.

    recorder: a `GradientRecorder` of a backward pass without a loss scale; by default the course's
              GPT is trained for a few steps and recorded
    counts:   what `record` returned, instead of a recorder

    Raises ValueError for a recorder that has recorded nothing, TypeError for anything else.
    """

    title = "ScaleExplorer: which gradients survive?"

    def __init__(
        self, recorder: GradientRecorder | None = None, *, counts: Counts | None = None
    ) -> None:
        self._counts = counts or self.record(recorder)
        self._together = {
            kind: Gradients(*layers.values()) for kind, layers in self._counts.items()
        }
        formats = [(fmt.name, fmt) for fmt in FORMATS]
        tip = "the format that the scaled gradients are rounded to"
        self.format = Menu(FP16, formats, "format", tip)
        kinds = [("layers' outputs", "outputs"), ("weights", "weights")]
        tip = "what flows from layer to layer, or what the optimizer gets in the end"
        self.kind = Menu("outputs", kinds, "gradients of", tip)
        self.layer = Menu(_ALL, [_ALL], "layer", "all layers together, or one of them")
        tip = "the loss scale, as a power of two: what every gradient is multiplied by"
        self.exponent = Slider(0, EXPONENTS, "scale, 2 to the", tip, width="40em")
        super().__init__(self.exponent, self.format, self.kind, self.layer)

    @staticmethod
    def record(recorder: GradientRecorder | None = None) -> Counts:
        """Count the gradients of a recording by size."""
        if recorder is None:
            from amp_course.scaler.recording import record_gpt  # with torch, which the book lacks

            recorder = record_gpt()
        if not isinstance(recorder, GradientRecorder):
            raise TypeError(
                f"this is a {type(recorder).__name__}: pass a GradientRecorder, after a backward() "
                "inside its `with` block."
            )
        recorded = {"outputs": recorder.outputs, "weights": recorder.weights}
        return {
            kind: {layer: count_sizes(gradient) for layer, gradient in layers.items()}
            for kind, layers in recorded.items()
        }

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """Return the panel that shows what `record` returned."""
        return cls(counts=counts)

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
                "Choose another layer."
            )
            return
        self.message = ""
        self.histogram, self.sweep = gradients.histogram(fmt, exponent), gradients.sweep(fmt)
        self.window = find_window(self.sweep)
        self.html = scale_view(self.histogram, fmt, exponent, self.sweep, self.window)
