"""`RooflineExplorer`: choose an op, its sizes and a machine;
see what bounds it, what AMP makes of it, and measure it here.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure

from amp_course.kit.hardware import pick_device
from amp_course.kit.measure import CpuWait, busy_text
from amp_course.kit.panel import WIDE, Panel
from amp_course.speed.cards import CARDS
from amp_course.speed.figures import op_figure
from amp_course.speed.machine import Machine, measure_machine
from amp_course.speed.one_op import KINDS, Predicted, Setting, predict, time_op
from amp_course.speed.panel_html import op_view
from amp_course.speed.roofline import FORMATS, Roofline

_NARROW = widgets.Layout(width="26em", max_width="100%")
# Powers of two, and a few neighbours of them, which can be far slower than they are.
_SIZES = (
    1,
    8,
    16,
    32,
    64,
    128,
    255,
    256,
    257,
    512,
    1023,
    1024,
    1025,
    2048,
    4095,
    4096,
    4097,
    8192,
    16384,
    32768,
    65536,
)
_DTYPES = {FORMATS[dtype]: dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
# sizes that are measured if no machine is given; elsewhere larger ones
_QUICK = {"cpu": (64, 256, 512)}


class RooflineExplorer(Panel):
    """Choose op, sizes, dtype and machine by menu and slider; *Measure* runs the op here.

    machine: what `measure_machine` returned; None measures the device that the course trains on,
             which takes a few seconds

    `panel.n.value = 4096` drives it in a test; `panel.sides` is what it shows: the op in fp32, and
    under AMP if the dtype has 16 bits. Casts are counted as AMP makes them: of the weights, and of
    the input if it arrives in fp32.

    Raises TypeError for anything else than a Machine.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        if machine is None:
            device = pick_device()
            machine = measure_machine(
                device, sizes=_QUICK.get(device.type, (1024, 4096, 8192)), seconds=1.0
            )
        if not isinstance(machine, Machine):
            raise TypeError(
                f"this is a {type(machine).__name__}: pass what measure_machine() returns, or "
                f"nothing."
            )
        self._own, self._device = machine.roofline(), torch.device(machine.device)
        cards = [card.roofline() for card in CARDS]
        self._rooflines: dict[str, Roofline] = {one.name: one for one in (self._own, *cards)}
        self._setting = False
        self.machine = _menu(
            [*self._rooflines],
            self._own.name,
            "machine",
            "measured here, or as its maker describes it",
        )
        self.kind = _menu(
            [(kind.label, name) for name, kind in KINDS.items()],
            "linear",
            "op",
            "the op that is run, on tensors of its own",
        )
        self.dtype = _menu(
            ["fp32"], "fp32", "dtype", "fp32, or the 16-bit format that AMP runs matmuls in"
        )
        self.arrives = _menu(
            [("16 bits, from a matmul", True), ("fp32, from a loss or a norm", False)],
            True,
            "input arrives in",
            "under AMP: whether the input has to be cast, too",
        )
        self.m, self.n, self.k = (
            _slider(name, size) for name, size in (("M", 512), ("N", 1024), ("K", 1024))
        )
        self.measure = widgets.Button(
            description="Measure", tooltip="run the op on this machine, a few times"
        )
        controls = [
            self.machine,
            self.kind,
            self.dtype,
            self.arrives,
            self.m,
            self.n,
            self.k,
            self.measure,
        ]
        box = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__(
            "RooflineExplorer: what bounds an op, and what does AMP make of it?",
            [box],
            widgets.HTML(),
        )
        self.machine.observe(self._change_machine, names="value")
        for control in (self.kind, self.dtype, self.arrives, self.m, self.n, self.k):
            control.observe(self._redraw, names="value")
        self.measure.on_click(self._measure)
        self._change_machine()

    @property
    def roofline(self) -> Roofline:
        """The machine that is chosen."""
        return self._rooflines[self.machine.value]

    def _change_machine(self, change: Any = None) -> None:
        formats = [name for name in _DTYPES if name in self.roofline.peak_flops]
        low = [name for name in formats if name != "fp32"]
        chosen = (
            self.dtype.value
            if self.dtype.value in low or (change and self.dtype.value == "fp32")
            else [*low, "fp32"][0]
        )
        self._setting = True  # the menu's own changes are no choice of the reader's
        self.dtype.options, self.dtype.value = formats, chosen
        self._setting = False
        self._redraw()

    def _settings(self) -> list[Setting]:
        """Return what is shown: fp32, and AMP if the dtype has 16 bits."""
        plain = Setting(
            self.m.value,
            self.n.value,
            self.k.value,
            gpu=self.roofline is not self._own or self._device.type != "cpu",
        )
        low = _DTYPES[self.dtype.value]
        if low == torch.float32:
            return [plain]
        return [
            plain,
            replace(plain, dtype=low, arrives=low if self.arrives.value else torch.float32),
        ]

    def _redraw(self, change: Any = None) -> None:
        if self._setting:
            return
        kind = KINDS[self.kind.value]
        self.k.disabled = not kind.uses_k
        self.arrives.disabled = not kind.arrives or self.dtype.value == "fp32"
        self.measure.disabled = self.roofline is not self._own
        self.tell(self._note())
        try:
            self._show([predict(self.kind.value, on, self.roofline) for on in self._settings()])
        except (RuntimeError, ValueError, KeyError) as error:
            self.tell(f"Nothing is predicted: {escape(str(error))}.")

    def _note(self) -> str:
        """Say what the sizes are, and which dtypes the menu lacks."""
        missing = [name for name in _DTYPES if name not in self.roofline.peak_flops]
        lacks = (
            "has no measured rate for" if self.roofline is self._own else "has no fast units for"
        )
        note = f"{KINDS[self.kind.value].sizes}."
        return (
            f"{note} {escape(self.roofline.name)} {lacks} {' or '.join(missing)}."
            if missing
            else note
        )

    def _show(self, sides: list[Predicted]) -> None:
        self.sides = sides
        self.view.value = op_view(self.roofline, sides)

    def _measure(self, button: Any = None) -> None:
        """Time what is shown; what would take too much memory or time is refused, and said."""
        if self.roofline is not self._own:
            return
        self.tell("Measuring …")
        sides, refused, wait = [], [], CpuWait()
        for side, on in zip(self.sides, self._settings(), strict=True):
            try:
                with wait:
                    seconds = (
                        time_op(self.kind.value, on, self.roofline, self._device)
                        if side.calls
                        else None
                    )
            except (RuntimeError, ValueError, AssertionError) as error:
                seconds = None
                reason = str(error).strip().partition("\n")[0]
                refused.append(f"<b>{side.name} was not measured:</b> {escape(reason)}.")
            sides.append(replace(side, measured=seconds))
        timed = any(side.measured is not None for side in sides)
        if timed and (busy := busy_text(wait.share)):
            self.tell(busy)
            return
        self._show(sides)
        self.tell(" ".join([*refused, "Choose smaller sizes."]) if refused else self._note())

    def still(self) -> Figure:
        """Return the op on the machine's roofline, as it stands."""
        sizes = f"M = {self.m.value:,}, N = {self.n.value:,}"
        sizes += f", K = {self.k.value:,}" if KINDS[self.kind.value].uses_k else ""
        return op_figure(self.roofline, self.sides, f"{KINDS[self.kind.value].label}: {sizes}")


def _menu(options: list[Any], value: Any, description: str, tooltip: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options,
        value=value,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
    )


def _slider(name: str, value: int) -> widgets.SelectionSlider:
    return widgets.SelectionSlider(
        options=[(f"{size:,}", size) for size in _SIZES],
        value=value,
        description=name,
        style=WIDE,
        layout=_NARROW,
        continuous_update=False,
        tooltip=f"the size {name}; the line under the controls says what it is",
    )
