"""`DtypeTrace`: look into a model under autocast: dtypes at every module's door, inserted casts,
and the ops inside.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure
from torch import nn

from amp_course.autocast.figures import trace_figure
from amp_course.autocast.region import is_fake
from amp_course.autocast.trace import Trace, TraceError, trace
from amp_course.autocast.trace_html import panel_html
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet
from amp_course.kit.panel import WIDE, Panel

_SEED = 0
_FULL = {"width": "100%", "overflow": "auto"}  # a wide table scrolls
_NARROW = widgets.Layout(width="24em", max_width="100%")
Built = tuple[nn.Module, tuple[Any, ...]]


def _simple_net() -> Built:
    return SimpleNet(128), (torch.rand(16, 128),)


def _digits_resnet() -> Built:
    return DigitsResNet(16), (torch.rand(4, 1, 8, 8),)


def _char_gpt() -> Built:
    return CharGPT(96, context=16, layers=1, heads=4, width=64), (torch.arange(16).expand(2, 16),)


_COURSE: dict[str, Callable[[], Built]] = {
    "SimpleNet": _simple_net,
    "DigitsResNet": _digits_resnet,
    "CharGPT": _char_gpt,
}


class DtypeTrace(Panel):
    """Choose a model, a device's policy, a dtype and a direction; a test drives it:
    panel.dtype.value = torch.float16.

    `DtypeTrace(model, *inputs)` shows your own model next to the course's three. `panel.trace` is
    what is shown. Traces are kept, so that the same choice shows at once. What goes wrong in a
    model is told, and the view stays as it was.
    """

    def __init__(self, model: nn.Module | None = None, *inputs: Any) -> None:
        self._models: dict[str, Built] = {}
        self._traces: dict[tuple[str, str, torch.dtype | None], Trace] = {}
        if model is not None:
            self._models[f"yours: {type(model).__name__}"] = (model, inputs)
        names = [*self._models, *_COURSE]
        self.model = _menu(names, "model", "whose forward and backward pass is traced")
        cuda = "CUDA (fake: no GPU)" if is_fake("cuda") else "CUDA"
        self.policy = _menu(
            [("CPU", "cpu"), (cuda, "cuda")], "policy", "the device whose rules autocast follows"
        )
        self.dtype = _menu(
            [("bf16", torch.bfloat16), ("fp16", torch.float16), ("off", None)],
            "autocast to",
            "the lower dtype, or none",
        )
        self.phase = _menu(
            ["forward", "backward"], "pass", "the forward pass, or the gradients’ way back"
        )
        self.module = _menu(
            ["(model)"], "look into", "the module whose ops are listed under the table"
        )
        rows = [_row(self.model, self.policy), _row(self.dtype, self.phase), self.module]
        super().__init__("DtypeTrace: what did autocast decide?", rows, widgets.HTML(layout=_FULL))
        self.trace: Trace | None = None
        self._filling = False
        for control in (self.model, self.policy, self.dtype, self.phase):
            control.observe(self._redraw, names="value")
        self.module.observe(self._look_into, names="value")
        self._redraw()

    def _traced(self) -> Trace:
        name, policy, dtype = self.model.value, self.policy.value, self.dtype.value
        if (name, policy, dtype) not in self._traces:
            # Gradients are on in here, whatever the cell around the panel does.
            with torch.inference_mode(False), torch.enable_grad():
                if name not in self._models:
                    with torch.random.fork_rng():
                        torch.manual_seed(_SEED)
                        self._models[name] = _COURSE[name]()
                model, inputs = self._models[name]
                self._traces[name, policy, dtype] = trace(
                    model, *inputs, device_type=policy, dtype=dtype
                )
        return self._traces[name, policy, dtype]

    def _redraw(self, change: Any = None) -> None:
        try:
            shown = self._traced()
        except (TraceError, TypeError, ValueError) as error:
            return self.tell(f"<b>Nothing changed.</b> {escape(str(error))}")
        self.tell(escape("; ".join(note[:1].upper() + note[1:] for note in shown.notes)))
        if self.trace is None or [row.path for row in shown.modules] != [
            row.path for row in self.trace.modules
        ]:
            paths = [row.path for row in shown.modules]
            self._filling = True  # the menu's own change is no choice of the reader's
            self.module.options = paths
            self.module.value = next((row.path for row in shown.modules if row.casts), paths[0])
            self._filling = False
        self.trace = shown
        self._look_into()

    def _look_into(self, change: Any = None) -> None:
        if self.trace is not None and not self._filling:
            self.view.value = panel_html(self.trace, self.phase.value, self.module.value)

    def still(self) -> Figure:
        """Return the modules of the forward pass as a picture;
        an empty one if nothing could be traced.
        """
        return trace_figure(self.trace.modules if self.trace else ())


def _menu(options: list[Any], description: str, tooltip: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options, description=description, tooltip=tooltip, style=WIDE, layout=_NARROW
    )


def _row(*children: widgets.Widget) -> widgets.HBox:
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap"))
