"""`RooflineExplorer`: choose an op, its sizes and a machine; see what bounds it and what AMP makes
of it, and measure it here.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape

import torch

from amp_course.kit.hardware import pick_device
from amp_course.kit.measure import CpuWait, busy_text
from amp_course.kit.panel import Button, Control, Menu, Note, Panel, Slider
from amp_course.speed.cards import CARDS
from amp_course.speed.machine import Machine, measure_machine
from amp_course.speed.one_op import KINDS, Counter, Predicted, Setting, count_op, predict, time_op
from amp_course.speed.op_counts import Counts, count_from, record_counts
from amp_course.speed.panel_html import op_view
from amp_course.speed.roofline import FORMATS, Roofline

# Powers of two, and a few neighbours of them, which can be far slower.
_SIZES = sorted({1, 255, 257, 1023, 1025, 4095, 4097, *(2**power for power in range(3, 17))})
_DTYPES = {FORMATS[dtype]: dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
_QUICK = {"cpu": (64, 256, 512)}  # sizes for a quick measurement
_BOOKS = "A100 SXM 40 GB"  # the book's first machine, since it can measure none


class RooflineExplorer(Panel):
    """Choose op, sizes, dtype and machine by menu and slider; *Measure* runs the op here.

    machine: from `measure_machine`; None measures the device that the course trains on, which takes
             a few seconds
    counts:  from `record`, for the book, where there is no torch and no machine to measure

    `panel.n.value = 4096` drives it in a test; `panel.sides` is what it shows: the op in fp32, and
    under AMP if the dtype has 16 bits. Casts are counted as AMP makes them: of the weights, and of
    the input if it arrives in fp32.

    Raises TypeError for anything but a Machine.
    """

    title = "RooflineExplorer: what bounds an op, and what does AMP make of it?"

    def __init__(self, machine: Machine | None = None, *, counts: Counts | None = None) -> None:
        self._count: Counter = count_op
        self._own: Roofline | None = None
        rooflines, first = [card.roofline() for card in CARDS], _BOOKS
        if counts is not None:
            self._count = count_from(counts)
        else:
            machine = _measured() if machine is None else machine
            if not isinstance(machine, Machine):
                raise TypeError(
                    f"this is a {type(machine).__name__}: pass what measure_machine() returns, or "
                    f"nothing."
                )
            self._own, self._device = machine.roofline(), machine.device
            rooflines, first = [self._own, *rooflines], self._own.name
        self._rooflines = {one.name: one for one in rooflines}
        self.machine = Menu(
            first, self._rooflines, "machine", "measured here, or as its maker describes it"
        )
        self.kind = Menu(
            "linear",
            [(kind.label, name) for name, kind in KINDS.items()],
            "op",
            "the op that is run, on tensors of its own",
        )
        self.dtype = Menu(
            "bf16", _DTYPES, "dtype", "fp32, or the 16-bit format that AMP runs matmuls in"
        )
        self.arrives = Menu(
            True,
            [("16 bits, from a matmul", True), ("fp32, from a loss or a norm", False)],
            "input arrives in",
            "under AMP: whether the input has to be cast, too",
        )
        self.m, self.n, self.k = (
            Slider(
                size,
                [(f"{one:,}", one) for one in _SIZES],
                name,
                f"the size {name}; the line under the controls says what it is",
                late=True,
            )
            for name, size in (("M", 512), ("N", 1024), ("K", 1024))
        )
        chosen = (self.machine, self.kind, self.dtype, self.arrives, self.m, self.n, self.k)
        for control in chosen:
            control.width = "26em"
        self.measure = Button("Measure", "run the op on this machine, a few times")
        last = (
            self.measure if self._own else Note("In JupyterLab, it measures your own machine, too.")
        )
        super().__init__((*chosen, last))

    record = staticmethod(record_counts)

    @classmethod
    def of(cls, counts: Counts) -> RooflineExplorer:
        """Return the panel for the book."""
        return cls(counts=counts)

    @property
    def roofline(self) -> Roofline:
        return self._rooflines[self.machine.value]

    def update(self, control: Control | None) -> None:
        """Show the op's prediction, or measure it."""
        if control is self.measure:
            self._measure()
            return
        formats = self._formats()
        before, self.dtype.options = self.dtype.value, formats
        if before not in formats:
            self.dtype.value = next((name for name in formats if name != "fp32"), "fp32")
        kind = KINDS[self.kind.value]
        self.k.disabled = not kind.uses_k
        self.arrives.disabled = not kind.arrives or self.dtype.value == "fp32"
        self.measure.disabled = self.roofline is not self._own
        self.message = self._note()
        self._show(
            [predict(self.kind.value, on, self.roofline, self._count) for on in self._settings()]
        )

    def _formats(self) -> list[str]:
        return [name for name in _DTYPES if name in self.roofline.peak_flops]

    def _settings(self) -> list[Setting]:
        gpu = self.roofline is not self._own or not self._device.startswith("cpu")
        plain = Setting(self.m.value, self.n.value, self.k.value, gpu=gpu)
        low = _DTYPES[self.dtype.value]
        if low == torch.float32:
            return [plain]
        arrives = low if self.arrives.value else torch.float32
        return [plain, replace(plain, dtype=low, arrives=arrives)]

    def _note(self) -> str:
        note = f"{KINDS[self.kind.value].sizes}."
        missing = " or ".join(name for name in _DTYPES if name not in self._formats())
        lacks = "measured rate" if self.roofline is self._own else "fast units"
        if missing:
            note += f" {escape(self.roofline.name)} has no {lacks} for {missing}."
        return note

    def _show(self, sides: list[Predicted]) -> None:
        self.sides = sides
        self.html = op_view(self.roofline, sides)

    def _measure(self) -> None:
        """Time what is shown; say what is refused because it needs too much memory or time."""
        self.message = "Measuring …"
        self.sync()
        sides, refused, wait = [], [], CpuWait()
        device = torch.device(self._device)
        for side, on in zip(self.sides, self._settings(), strict=True):
            seconds = None
            try:
                with wait:
                    if side.calls:
                        seconds = time_op(self.kind.value, on, self.roofline, device)
            except (RuntimeError, ValueError) as error:
                reason = str(error).strip().partition("\n")[0]
                refused.append(f"<b>{side.name} was not measured:</b> {escape(reason)}.")
            sides.append(replace(side, measured=seconds))
        timed = any(side.measured is not None for side in sides)
        if timed and (busy := busy_text(wait.share)):
            self.message = busy
            return
        self._show(sides)
        self.message = " ".join([*refused, "Choose smaller sizes."]) if refused else self._note()


def _measured() -> Machine:
    device = pick_device()
    return measure_machine(device, sizes=_QUICK.get(device.type, (1024, 4096, 8192)), seconds=1.0)
