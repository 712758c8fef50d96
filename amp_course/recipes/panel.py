"""`RecipeExplorer`: choose a recipe and its options, and read from a live step what it keeps and
whether its update arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from html import escape
from typing import Any

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet
from amp_course.kit.panel import WIDE, Panel
from amp_course.kit.threads import one_thread
from amp_course.recipes.figures import recipe_table_figure
from amp_course.recipes.measuring import Measured, Reach, RecipeTable, measure, reach
from amp_course.recipes.panel_html import recipe_view, size_text
from amp_course.recipes.training import ALL, LOW_DTYPES, O0, BaseRecipe

Net = tuple[nn.Module, Tensor, Tensor]
_SEED = 0
_NARROW = widgets.Layout(width="24em", max_width="100%")
_ABSENT = [("– (not an option of it)", None)]
# of a recipe → choices, label, tooltip
_OPTIONS: dict[str, tuple[list[tuple[str, Any]], str, str]] = {
    "dtype": (
        [("fp16", LOW_DTYPES[0]), ("bf16", LOW_DTYPES[1])],
        "dtype",
        "the 16-bit format that matmuls run in",
    ),
    "keep_batchnorm_fp32": (
        [("in fp32", True), ("as the model", False)],
        "batch norm",
        "keep_batchnorm_fp32: batch norm's weights and statistics stay in fp32",
    ),
    "master_weights": (
        [("yes", True), ("no", False)],
        "master weights",
        "master_weights: the optimizer steps fp32 copies of the 16-bit weights",
    ),
    "loss_scale": (
        [("dynamic", "dynamic"), ("static, 1", 1.0), ("static, 1,024", 1024.0), ("none", None)],
        "loss scale",
        "loss_scale: who scales the loss, and by how much",
    ),
}
_RATES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "SGD": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
    "SGD with momentum": lambda parameters, rate: torch.optim.SGD(
        parameters, lr=rate, momentum=0.9
    ),
    "Adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
}
_SIZES = (10**8, 10**9, 7 * 10**9, 70 * 10**9)


def _digits_resnet() -> Net:
    return DigitsResNet(8), torch.rand(8, 1, 8, 8), torch.randint(10, (8,))


def _char_gpt() -> Net:
    return (
        CharGPT(32, context=8, layers=1, heads=2, width=32),
        torch.randint(32, (2, 8)),
        torch.randint(32, (2, 8)),
    )


def _simple_net() -> Net:
    return SimpleNet(32), torch.rand(16, 32), torch.randint(32, (16,))


_NETS: dict[str, Callable[[], Net]] = {  # tiny ones: a CPU's fp16 is slow
    "DigitsResNet": _digits_resnet,
    "CharGPT": _char_gpt,
    "SimpleNet": _simple_net,
}


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class RecipeExplorer(Panel):
    """Recipe, options, optimizer, learning rate and net by menu; a test drives it:
    panel.recipe.value = "o2".

    `panel.options["master_weights"]` and its like are a recipe's own options: one that it lacks is
    disabled. `panel.chosen` is the recipe, `panel.measured` and `panel.reach` what was measured of
    it. Measurements are kept, so that the same choice shows at once.
    """

    def __init__(self) -> None:
        self._nets: dict[str, Net] = {}
        self._measured: dict[Any, Measured] = {}
        self._reached: dict[Any, Reach] = {}
        self._setting = False
        self.recipe = _menu(
            [(recipe.label, recipe.name) for recipe in ALL],
            "o2",
            "recipe",
            "what is kept in which dtype, and who scales",
        )
        self.options = {
            name: widgets.Dropdown(description=label, tooltip=tooltip, style=WIDE, layout=_NARROW)
            for name, (_, label, tooltip) in _OPTIONS.items()
        }
        self.optimizer = _menu(
            [*_OPTIMIZERS],
            "Adam",
            "optimizer",
            "what steps the weights, and what it keeps for each",
        )
        self.rate = widgets.SelectionSlider(
            options=[(f"{rate:g}", rate) for rate in _RATES],
            value=1e-3,
            description="learning rate",
            style=WIDE,
            layout=_NARROW,
            tooltip="decides whether the update is large enough to reach the weights",
        )
        self.net = _menu(
            [*_NETS], "DigitsResNet", "net", "the small net that is trained for a few steps, live"
        )
        self.size = _menu(
            [(size_text(size), size) for size in _SIZES],
            10**9,
            "a model of",
            "parameters: the bytes of one, times this many",
        )
        controls = [
            self.recipe,
            self.net,
            *self.options.values(),
            self.optimizer,
            self.rate,
            self.size,
        ]
        box = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__("RecipeExplorer: what does a recipe keep?", [box], widgets.HTML())
        self.recipe.observe(self._change_recipe, names="value")
        for control in (self.net, *self.options.values(), self.optimizer, self.rate, self.size):
            control.observe(self._redraw, names="value")
        self._change_recipe()

    @property
    def chosen(self) -> BaseRecipe:
        """The recipe as chosen, with its options."""
        kind = self._kind()
        return type(kind)(
            **{name: menu.value for name, menu in self.options.items() if hasattr(kind, name)}
        )

    def _kind(self) -> BaseRecipe:
        return next(recipe for recipe in ALL if recipe.name == self.recipe.value)

    def _change_recipe(self, change: Any = None) -> None:
        kind = self._kind()
        own = {field.name for field in fields(kind)}
        self._setting = True  # the menus' own changes are no choice of the reader's
        for name, menu in self.options.items():
            menu.options = _OPTIONS[name][0] if name in own else _ABSENT
            menu.value = getattr(kind, name) if name in own else None
            menu.disabled = name not in own
        self._setting = False
        self._redraw()

    def _redraw(self, change: Any = None) -> None:
        if self._setting:
            return
        try:
            chosen, fp32 = self._side(self.chosen), self._side(O0())
        except (RuntimeError, ValueError) as error:
            self.tell(f"<b>Nothing changed.</b> {escape(str(error))}.")
            return
        self.measured, self.reach = chosen
        self.tell(_note(self.chosen, self.measured, self.net.value))
        self.view.value = recipe_view(chosen, fp32, self.size.value, self.optimizer.value)
        self._rows = (self.measured,) if self.chosen.name == "o0" else (self.measured, fp32[0])

    def _side(self, recipe: BaseRecipe) -> tuple[Measured, Reach]:
        name, rate = self.optimizer.value, self.rate.value
        kept, arrived = (recipe, self.net.value, name), (recipe, self.net.value, name, rate)
        # Gradients are on in here, whatever the cell around the panel does.
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(),
            one_thread(),
        ):
            torch.manual_seed(_SEED)
            if self.net.value not in self._nets:
                self._nets[self.net.value] = _NETS[self.net.value]()
            batch = self._nets[self.net.value]
            make = _OPTIMIZERS[name]
            if kept not in self._measured:
                # Bytes do not depend on the rate; a low one keeps every net alive.
                self._measured[kept] = measure(
                    recipe,
                    *batch,
                    loss_fn=_loss,
                    make_optimizer=lambda parameters: make(parameters, _RATES[-1]),
                )
            if arrived not in self._reached:
                self._reached[arrived] = reach(
                    recipe,
                    *batch,
                    loss_fn=_loss,
                    make_optimizer=lambda parameters: make(parameters, rate),
                )
        return self._measured[kept], self._reached[arrived]

    def still(self) -> Figure:
        """Return the current bytes for each parameter and the activations, next to fp32's."""
        return recipe_table_figure(RecipeTable(self._rows))


def _note(recipe: BaseRecipe, row: Measured, net: str) -> str:
    if hasattr(recipe, "keep_batchnorm_fp32") and not row.batch_norm:
        return f"{net} has no batch norm, so keeping it in fp32 changes nothing here."
    return ""


def _menu(options: list[Any], value: Any, description: str, tooltip: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        options=options,
        value=value,
        description=description,
        tooltip=tooltip,
        style=WIDE,
        layout=_NARROW,
    )
