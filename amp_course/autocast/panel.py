"""`DtypeTrace`: the dtypes of every module of a model under autocast, inserted casts, and ops."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from html import escape
from itertools import product
from typing import Any

import torch
from torch import nn

from amp_course.autocast.records import ROOT, ModuleRow, Op, Record
from amp_course.autocast.region import LOWER_DTYPES, is_fake
from amp_course.autocast.trace_html import notes_text, panel_html
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet
from amp_course.kit.panel import Control, Menu, Panel

Built = tuple[nn.Module, tuple[Any, ...]]
Setting = tuple[str, str, torch.dtype | None]  # the model, the policy, the lower dtype
_COURSE: dict[str, Callable[[], Built]] = {
    "SimpleNet": lambda: (SimpleNet(128), (torch.rand(16, 128),)),
    "DigitsResNet": lambda: (DigitsResNet(16), (torch.rand(4, 1, 8, 8),)),
    "CharGPT": lambda: (
        CharGPT(96, context=16, layers=1, heads=4, width=64),
        (torch.arange(16).expand(2, 16),),
    ),
}
_SETTINGS: list[Setting] = [*product(_COURSE, ("cpu", "cuda"), (*LOWER_DTYPES, None))]


class DtypeTrace(Panel):
    """Show the trace of a model under a device's policy: `panel.trace`.

    `DtypeTrace(model, *inputs)` offers your own model as well as the course's three. What a model
    raises is reported, and the view stays as it was. In a test: panel.dtype.value = torch.float16

    recorded: traces by setting, so that these models need not run
    """

    title = "DtypeTrace: what did autocast decide?"

    def __init__(
        self,
        model: nn.Module | None = None,
        *inputs: Any,
        recorded: Mapping[Setting, Record] | None = None,
    ) -> None:
        self.trace: Record | None = None
        self._models: dict[str, Built] = {}
        self._traces = dict(recorded or {})
        if model is not None:
            self._models[f"yours: {type(model).__name__}"] = (model, inputs)
        names = [*self._models, *_COURSE]
        self.model = Menu(names[0], names, "model", "whose forward and backward pass is traced")
        faked = any(one.fake for one in recorded.values()) if recorded else is_fake("cuda")
        policies = [("CPU", "cpu"), ("CUDA (fake: no GPU)" if faked else "CUDA", "cuda")]
        tip = "the device whose rules autocast follows"
        self.policy = Menu("cpu", policies, "policy", tip)
        dtypes = [("bf16", torch.bfloat16), ("fp16", torch.float16), ("off", None)]
        self.dtype = Menu(torch.bfloat16, dtypes, "autocast to", "the lower dtype, or none")
        tip = "the forward pass, or the gradients’ way back"
        self.phase = Menu("forward", ["forward", "backward"], "pass", tip)
        tip = "the module whose ops are listed under the table"
        self.module = Menu(ROOT, [ROOT], "look into", tip)
        super().__init__((self.model, self.policy), (self.dtype, self.phase), self.module)

    @classmethod
    def record(cls) -> list[Any]:
        """Trace the course's models at every setting, as data for a page, dtypes by name."""
        panel = cls()
        traces = [astuple(panel._traced(setting)) for setting in _SETTINGS]
        return json.loads(json.dumps(traces, default=str))

    @classmethod
    def of(cls, data: Sequence[Any]) -> DtypeTrace:
        """Return the panel that shows what `record` returned."""
        return cls(recorded=dict(zip(_SETTINGS, map(_trace_of, data), strict=True)))

    def _traced(self, setting: Setting) -> Record:
        if setting not in self._traces:
            name, policy, dtype = setting
            # gradients are on in here, whatever the cell around the panel does
            with torch.inference_mode(False), torch.enable_grad():
                if name not in self._models:
                    with torch.random.fork_rng():
                        torch.manual_seed(0)
                        self._models[name] = _COURSE[name]()
                self._traces[setting] = run_trace(*self._models[name], policy, dtype)
        return self._traces[setting]

    def update(self, control: Control | None) -> None:
        """Show the chosen trace, or say what the model raised."""
        if control is not self.module:
            try:
                self.trace = self._traced((self.model.value, self.policy.value, self.dtype.value))
            except (RuntimeError, TypeError, ValueError) as error:
                self.refuse(error)
                return
            self.message = escape(notes_text(self.trace))
            rows = self.trace.modules
            if (paths := [row.path for row in rows]) != self.module.options:
                self.module.options = paths
                self.module.value = next((row.path for row in rows if row.casts), paths[0])
        if self.trace is not None:
            self.html = panel_html(self.trace, self.phase.value, self.module.value)


def run_trace(
    model: nn.Module, inputs: tuple[Any, ...], policy: str, dtype: torch.dtype | None
) -> Record:
    """Trace a model; the book shows recorded traces, and has no torch to import this for."""
    from amp_course.autocast.trace import trace

    return trace(model, *inputs, device_type=policy, dtype=dtype)


def _trace_of(data: Any) -> Record:
    """Return the trace whose fields these are, as JSON has them."""
    name, device_type, dtype, fake, ops, modules, notes = _unjson(data)
    rows = tuple(ModuleRow(*row) for row in modules)
    return Record(name, device_type, dtype, fake, tuple(Op(*op) for op in ops), rows, notes)


def _unjson(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_unjson, value))
    is_dtype = isinstance(value, str) and value.startswith("torch.")
    return getattr(torch, value.removeprefix("torch.")) if is_dtype else value
