"""`StepExplorer`: measure a step of SimpleNet at a chosen size, under a recipe and in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch

from amp_course.kit.dtypes import DtypeSupport, dtype_support
from amp_course.kit.hardware import pick_device
from amp_course.kit.measure import busy_text, seconds_text
from amp_course.kit.panel import Button, Control, Menu, Panel, Slider
from amp_course.loop.panel_html import speed_ups_view
from amp_course.loop.recipe import FP32, RECIPES, recipes_for
from amp_course.loop.train import RunRecord, join
from amp_course.loop.workloads import simple_net

_ROUNDS, _STEPS = 6, 6
_MAX_SECONDS = 2.0  # for each side: an emulated recipe may take a hundred times as long
_MAX_BARS = 12


@dataclass(frozen=True)
class Measured:
    """One measurement: a recipe against fp32 at a width and batch size, their steps interleaved.

    busy: why the times mean nothing; "" on a quiet machine
    """

    recipe: str
    width: int
    batch: int
    fp32_seconds: float
    seconds: float
    busy: str = ""

    @property
    def speedup(self) -> float:
        """fp32's time over the recipe's."""
        return self.fp32_seconds / self.seconds

    @property
    def label(self) -> str:
        """The name of its bar."""
        return f"{RECIPES[self.recipe].label}, width {self.width}, batch {self.batch}"


def measure_pair(recipe: str, width: int, batch: int, device: torch.device) -> Measured:
    """Time SimpleNet's step in fp32 and under a recipe, interleaved, for about 2 seconds each."""
    workload = simple_net(device, width, batch)
    sides = [workload.start(FP32), workload.start(RECIPES[recipe])]
    runs: list[list[RunRecord]] = [[], []]
    for _ in range(_ROUNDS):
        for side, records in zip(sides, runs, strict=True):
            left = _MAX_SECONDS - sum(sum(record.step_seconds) for record in records)
            if all(record.complete for record in records) and left > 0:
                records.append(side.run(_STEPS, left))
    fp32, chosen = (join(records).timing for records in runs)
    busy = busy_text(fp32.waited, chosen.waited)
    return Measured(recipe, width, batch, fp32.median, chosen.median, busy)


class StepExplorer(Panel):
    """The button measures at the chosen width, batch size and recipe, and adds a bar.

    `panel.results` holds what was measured, and `panel.show(results)` draws it.
    """

    def __init__(self) -> None:
        self.device = pick_device()
        self.title = f"StepExplorer: what does AMP buy at this size, on {self.device.type.upper()}?"
        on_cpu = self.device.type == "cpu"
        widths = (64, 128, 256, 512, 1024) if on_cpu else (256, 512, 1024, 2048, 4096, 8192)
        batches = (1, 8, 32, 128, 256) if on_cpu else (1, 32, 128, 512, 2048)
        self.width = Slider(widths[3], widths, "width", "features of each Linear", width="24em")
        self.batch = Slider(batches[3], batches, "batch size", "samples in a step", width="24em")
        recipes = [(one.label, one.name) for one in recipes_for(self.device) if one is not FP32]
        tip = "the recipe to compare with fp32"
        self.recipe = Menu("amp_bf16", recipes, "against fp32", tip)
        tip = "time both and add a bar (a few seconds)"
        self.measure = Button("Measure", tip, primary=True)
        self.clear = Button("Clear", "remove all bars")
        self.results: list[Measured] = []
        self._supports: tuple[DtypeSupport, ...] = ()  # measured when a recipe is first slower
        super().__init__(self.width, self.batch, self.recipe, (self.measure, self.clear))

    def update(self, control: Control | None) -> None:
        """Measure when the button is pressed; a change of the size alone measures nothing."""
        if control is self.measure:
            self._measure()
        elif control in (None, self.clear):
            self.message = "Choose a size and press Measure."
            self.show([])

    def show(self, results: Sequence[Measured]) -> None:
        """Draw the last of some measurements."""
        self.results = [*results][-_MAX_BARS:]
        self.html = speed_ups_view([(one.recipe, one.label, one.speedup) for one in self.results])
        self.sync()

    def _measure(self) -> None:
        self.message, self.measure.disabled = "measuring …", True
        self.sync()
        try:
            found = measure_pair(self.recipe.value, self.width.value, self.batch.value, self.device)
        except RuntimeError as error:  # out of memory
            reason = escape(str(error).split("\n")[0])
            self.message = f"{reason}: choose a smaller width or batch."
        else:
            self.message = found.busy
            if not found.busy:
                label = RECIPES[found.recipe].label
                self.message = (
                    f"{found.label}: fp32 {seconds_text(found.fp32_seconds)}, "
                    f"{label} {seconds_text(found.seconds)}, "
                    f"<b>{found.speedup:.2f} times</b> as fast."
                )
                self.message += self._advice(label) if found.speedup < 1 else ""
                self.show([*self.results, found])
        finally:
            self.measure.disabled = False

    def _advice(self, label: str) -> str:
        """Say what to make of a slower recipe: on some machines it is slower at every size."""
        self._supports = self._supports or dtype_support(self.device)
        support = next(support for support in self._supports if support.name == label.split()[-1])
        if support.state != "emulated" or support.times_fp32 is None:
            return f" {label} does not pay at this size: try a wider net or a larger batch."
        return (
            f" Matmuls in {support.name} take {support.times_fp32:.1f} times as long as in fp32 on "
            f"this machine, so {label} may pay at no size here. Section 6 shows what it saves "
            "anyway: memory."
        )
