"""Every panel of the course, and how a cell makes it with what is quick to make."""

# Fixed rates, so that the words of a prediction are the same on every machine.
MACHINE = """
from amp_course.speed.machine import Machine, Rate
from amp_course.speed.panel import RooflineExplorer
machine = Machine("cpu", (Rate("fp32", 512, 2e11), Rate("bf16", 512, 1e12), Rate("fp16", 512, 2e10)), 1.5e10, 2e-6)
"""
_SPEED_UPS = """
from amp_course.loop.panel import Measured, StepExplorer
panel = StepExplorer()
# as the button does after it has measured, which takes seconds
panel.show([Measured("amp_bf16", 64, 8, 1e-3, 2e-3), Measured("amp_bf16", 512, 128, 1e-3, 5e-4)])
"""

PANELS = {  # its class → what comes before it, the line that shows it
    "BitExplorer": ("from amp_course.bits.panel import BitExplorer", "BitExplorer()"),
    "RangeExplorer": ("from amp_course.underflow.panel import RangeExplorer", "RangeExplorer()"),
    "CollisionExplorer": (
        "from amp_course.positions.panel import CollisionExplorer",
        "CollisionExplorer()",
    ),
    "DtypeTrace": ("from amp_course.autocast.panel import DtypeTrace", "DtypeTrace()"),
    "ScaleExplorer": ("from amp_course.scaler.panel import ScaleExplorer", "ScaleExplorer()"),
    "StepExplorer": (_SPEED_UPS, "panel"),
    "LoopWorkbench": ("from amp_course.patterns.panel import LoopWorkbench", "LoopWorkbench()"),
    "RecipeExplorer": ("from amp_course.recipes.panel import RecipeExplorer", "RecipeExplorer()"),
    "RooflineExplorer": (MACHINE, "RooflineExplorer(machine)"),
    "RankExplorer": ("from amp_course.distributed.panel import RankExplorer", "RankExplorer()"),
    "HeadroomMap": ("from amp_course.debugging.panel import HeadroomMap", "HeadroomMap()"),
    "BlockExplorer": ("from amp_course.frontiers.panel import BlockExplorer", "BlockExplorer()"),
}


def make(name: str):
    """Return a new panel, in this process."""
    scope: dict = {}
    before, line = PANELS[name]
    exec(before, scope)
    return eval(line, scope)
