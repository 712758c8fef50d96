"""Time the panels: from a control's event to the new view, in Python, as a reader's clicks and
slides would cause it.

What the browser then takes to paint is not in these numbers. An event is one control set to another
value, as a message from the browser sets it.

    python -m benchmarks.panels
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from amp_course.autocast.panel import DtypeTrace
from amp_course.bits.formats import FORMATS
from amp_course.bits.panel import BitExplorer
from amp_course.kit.hardware import machine_report
from amp_course.kit.panel import Menu, Panel
from amp_course.patterns.panel import LoopWorkbench
from amp_course.positions.panel import CollisionExplorer
from amp_course.recipes.panel import RecipeExplorer
from amp_course.scaler.panel import ScaleExplorer
from amp_course.underflow.panel import RangeExplorer
from benchmarks.interleaved import Record, arguments, warn_if_busy

WARMUP = 10
Event = Callable[[], None]


def toggling() -> tuple[Panel, Callable[[], Event]]:
    """Click random bits of the BitExplorer, in fp64, which has most;
    every tenth event changes the format there and back.
    """
    panel = BitExplorer()
    panel.format.value = "fp64"
    names = [fmt.name for fmt in FORMATS]

    def draw() -> Event:
        if random.random() < 0.1:
            other = random.choice([name for name in names if name != panel.format.value])
            return lambda: setattr(panel.format, "value", other)
        weight = random.randrange(len(panel.bits))
        return lambda: panel.bits.toggle(weight)

    return panel, draw


def sliding() -> tuple[Panel, Callable[[], Event]]:
    """Move the sliders of the RangeExplorer, and change its format."""
    panel = RangeExplorer()
    return panel, lambda: _moved(*panel.controls())


def colliding() -> tuple[Panel, Callable[[], Event]]:
    """Change the format, context length, base and head size of the CollisionExplorer."""
    panel = CollisionExplorer()
    return panel, lambda: _moved(
        panel.format,
        (panel.length, [str(2**power) for power in range(4, 21)]),
        (panel.base, ["100", "10000", "500000"]),
        (panel.head_size, ["16", "64", "128"]),
    )


def tracing() -> tuple[Panel, Callable[[], Event]]:
    """Change the model, policy, dtype, pass and module of the DtypeTrace;
    every trace is made afresh, none is kept.
    """
    panel = DtypeTrace()

    def draw() -> Event:
        panel._traces.clear()
        return _moved(panel.model, panel.policy, panel.dtype, panel.phase, panel.module)

    return panel, draw


def scaling() -> tuple[Panel, Callable[[], Event]]:
    """Move the loss scale of the ScaleExplorer; change its format, kind of gradients and layer."""
    panel = ScaleExplorer()
    return panel, lambda: _moved(*panel.controls())


def assembling() -> tuple[Panel, Callable[[], Event]]:
    """Change the switches of the LoopWorkbench, and the loop it starts from;
    every loop is audited afresh, none is kept.
    """
    panel = LoopWorkbench()

    def draw() -> Event:
        panel._audits.clear()
        # A menu that is disabled cannot be changed, and "your own" changes nothing.
        menus = [menu for menu in panel.switches.values() if not menu.disabled]
        return _moved((panel.start, panel.start.options[:-1]), *menus)

    return panel, draw


def comparing() -> tuple[Panel, Callable[[], Event]]:
    """Change recipe, options, optimizer, rate, net and size of the RecipeExplorer;
    all of it is measured afresh, none is kept.
    """
    panel = RecipeExplorer()

    def draw() -> Event:
        panel._measured.clear()
        panel._reached.clear()
        menus = [menu for menu in panel.options.values() if not menu.disabled]
        menus += [panel.recipe, panel.optimizer, panel.rate, panel.net, panel.size]
        return _moved(*menus)

    return panel, draw


def _moved(*choices: Any) -> Event:
    """Return the event of one control, drawn at random, set to another value; of what is no menu
    its values are given.
    """
    chosen = random.choice(choices)
    control, values = (chosen, chosen.options) if isinstance(chosen, Menu) else chosen
    other = random.choice([value for value in values if value != control.value])
    return lambda: setattr(control, "value", other)


PANELS: dict[
    str, tuple[Callable[[], tuple[Panel, Callable[[], Event]]], float]
] = {  # and the aim, in milliseconds
    "BitExplorer": (toggling, 50.0),
    "RangeExplorer": (sliding, 120.0),
    "CollisionExplorer": (colliding, 120.0),
    "DtypeTrace": (tracing, 120.0),
    "ScaleExplorer": (scaling, 120.0),
    "LoopWorkbench": (assembling, 120.0),
    "RecipeExplorer": (comparing, 120.0),
}


def measure(make: Callable[[], tuple[Panel, Callable[[], Event]]], events: int) -> list[float]:
    """Return the milliseconds of each event, from the control's change to the view's; the warm-up
    is left out.

    Raises AssertionError if an event left the view as it was too often: then it was not the view
    that was timed.
    """
    panel, draw = make()
    taken, changed = [], 0
    for number in range(WARMUP + events):
        event, before = draw(), panel.html
        began = time.perf_counter()
        event()
        seconds = time.perf_counter() - began
        if number >= WARMUP:
            taken.append(seconds * 1e3)
            changed += panel.html != before
    assert changed > 0.8 * events, f"{changed} of {events} events changed the view"
    return taken


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the measurement; return 1 if a panel is slower than its aim."""
    chosen = arguments(__doc__.split("\n")[0], rounds=300, steps=1, argv=argv, limited=False)
    chosen.device = torch.device("cpu")
    warn_if_busy()
    random.seed(0)
    record = Record("panels", machine_report(chosen.device), chosen)
    late = False
    for name, (make, limit) in PANELS.items():
        milliseconds = measure(make, chosen.rounds)
        median, p95 = (round(float(np.quantile(milliseconds, q)), 2) for q in (0.5, 0.95))
        record.data["workloads"][name] = {
            "events": len(milliseconds),
            "median_ms": median,
            "p95_ms": p95,
            "limit_ms": limit,
        }
        late = late or p95 > limit
        print(
            f"{name:20}{len(milliseconds)} events   median {median:6.1f} ms   95th percentile "
            f"{p95:6.1f} ms   aim {limit:g}"
        )
    print(f"\nwritten: {record.write().name}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
