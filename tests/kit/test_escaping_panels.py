"""Foreign text stays text in panels: each is given a wicked string wherever it takes text."""

import inspect
from collections import OrderedDict

import pytest
import torch
from torch import nn

from amp_course.kit.panel import Panel, Text
from amp_course.kit.panel_page import page_of
from amp_course.kit.panel_widgets import widget_of
from tests.browser.every_panel import make
from tests.kit.page import WICKED, assert_harmless, classes


def wicked_model():
    """Return a model with a wicked layer, whose gradients are all 0."""
    model = nn.Sequential(
        OrderedDict([("first", nn.Linear(2, 2)), (WICKED.replace(".", ""), nn.Linear(2, 2))])
    )
    return model, torch.ones(1, 2)


def html_of(panel):
    """Return what a panel shows, in JupyterLab as on a web page."""
    left = [widget_of(panel)]
    while left:
        one = left.pop()
        left += getattr(one, "children", ())
        assert not getattr(one, "description_allow_html", False), one
    return page_of(panel)


def scale_explorer():
    from amp_course.scaler.panel import ScaleExplorer
    from amp_course.underflow.record import GradientRecorder

    model, x = wicked_model()
    with GradientRecorder(model) as recorder:
        model(x).sum().backward()
    layer = next(name for name in recorder.outputs if "img" in name)
    recorder._of_outputs[layer][0].zero_()
    panel = ScaleExplorer(recorder)
    panel.layer.value = layer
    return panel


def dtype_trace():
    from amp_course.autocast.panel import DtypeTrace

    model, x = wicked_model()
    panel = DtypeTrace(model, x)
    panel.module.value = next(path for path in panel.module.options if "img" in path)
    return panel


def headroom_map():
    from amp_course.debugging.dying import DivergingRun
    from amp_course.debugging.panel import HeadroomMap
    from amp_course.debugging.ranges import watch_ranges

    model, x = wicked_model()
    with watch_ranges(model, every=1, alert=-float("inf")) as ranges:
        (loss := (model(x) * 1e5).sum()).backward()
    panel = HeadroomMap(DivergingRun(ranges, (loss.item(),), (1,)))
    panel.kind.value = "activation gradient"
    panel.first_heat.click()
    assert "img" in panel.message
    return panel


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError(WICKED)


def dtype_trace_of_a_model_that_raises():
    from amp_course.autocast.panel import DtypeTrace

    return DtypeTrace(Raising(), torch.ones(1))


@pytest.mark.parametrize(
    "make", [scale_explorer, dtype_trace, headroom_map, dtype_trace_of_a_model_that_raises]
)
def test_panels_escape_the_names_in_a_users_model(make):
    assert_harmless(html_of(make()))


PANELS = {
    kind.__name__: kind
    for kind in classes("*/panel.py", "kit.panel import")
    if inspect.isclass(kind) and issubclass(kind, Panel) and kind is not Panel
}


@pytest.mark.parametrize("name", PANELS)
def test_panels_escape_what_is_typed(name):
    panel = make(name)
    for field in panel.controls():
        if isinstance(field, Text):
            field.value = WICKED
            assert_harmless(html_of(panel))
    assert_harmless(html_of(panel), is_shown=False)


FAILING = {  # panel → what is called for it and may raise, and the way to ask for it
    "BitExplorer": ("read", lambda panel: setattr(panel.text, "value", "7")),
    "CollisionExplorer": ("share", lambda panel: setattr(panel.length, "value", "300")),
    "DtypeTrace": ("run_trace", lambda panel: setattr(panel.model, "value", "CharGPT")),
    "LoopWorkbench": ("run_audit", lambda panel: setattr(panel.start, "value", "never cleared")),
    "RecipeExplorer": ("measure", lambda panel: setattr(panel.recipe, "value", "o3")),
    "RooflineExplorer": ("time_op", lambda panel: panel.measure.click()),
    "StepExplorer": ("measure_pair", lambda panel: panel.measure.click()),
}
# Their messages are fixed, or tested above or in their chapter's tests.
NEVER_FAILING = {"BlockExplorer", "RangeExplorer", "HeadroomMap", "RankExplorer", "ScaleExplorer"}


def test_every_panel_is_tested():
    assert set(FAILING) | NEVER_FAILING == set(PANELS)


@pytest.mark.parametrize("name", FAILING)
def test_panels_escape_the_errors_that_they_show(name, monkeypatch):
    def fails(*_, **__):
        raise (RuntimeError if name == "StepExplorer" else ValueError)(WICKED)

    panel = make(name)
    function, ask = FAILING[name]
    monkeypatch.setattr(f"{PANELS[name].__module__}.{function}", fails)
    ask(panel)
    assert_harmless(html_of(panel))
