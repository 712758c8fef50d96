"""`RecipeExplorer`: choose a recipe and its options; see what it keeps and what a step changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet
from amp_course.kit.panel import Control, Menu, Panel, Slider
from amp_course.kit.threads import one_thread
from amp_course.recipes.measuring import Measured, UpdateReach, measure, update_reach
from amp_course.recipes.panel_html import recipe_view, size_text
from amp_course.recipes.training.base import LOW_DTYPES, BaseRecipe
from amp_course.recipes.training.recipes import ALL, O0

Net = tuple[nn.Module, Tensor, Tensor]
_ABSENT = [("– (not an option of it)", None)]
# an option of a recipe → choices, label, tooltip
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
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
}
_NOT_RECORDED = (
    "This was not recorded for the book: there, at most one option can differ from the recipe’s "
    "own. In JupyterLab, every choice is measured"
)
_SIZES = (10**8, 10**9, 7 * 10**9, 70 * 10**9)


def _char_gpt() -> Net:
    model = CharGPT(32, context=8, layers=1, heads=2, width=32)
    return model, torch.randint(32, (2, 8)), torch.randint(32, (2, 8))


_NETS: dict[str, Callable[[], Net]] = {  # tiny ones: a CPU's fp16 is slow
    "DigitsResNet": lambda: (DigitsResNet(8), torch.rand(8, 1, 8, 8), torch.randint(10, (8,))),
    "CharGPT": _char_gpt,
    "SimpleNet": lambda: (SimpleNet(32), torch.rand(16, 32), torch.randint(32, (16,))),
}


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class RecipeExplorer(Panel):
    """Show what a recipe keeps and what its first step changes, next to fp32.

    `panel.options["master_weights"]` and its like are a recipe's own options: one that it lacks is
    disabled. `panel.chosen` is the recipe, `panel.measured` and `panel.update_reach` what was
    measured of it. In a test: panel.recipe.value = "o2"

    recorded: `Measured` by recipe, net and optimizer, and `UpdateReach` by these and the rate;
              nothing else can then be chosen
    """

    title = "RecipeExplorer: what does a recipe keep?"

    def __init__(
        self, recorded: tuple[Mapping[Any, Measured], Mapping[Any, UpdateReach]] | None = None
    ) -> None:
        self._nets: dict[str, Net] = {}
        self._is_recorded = recorded is not None
        measured, reached = recorded or ({}, {})
        self._measured, self._reached = dict(measured), dict(reached)
        recipes = [(recipe.label, recipe.name) for recipe in ALL]
        self.recipe = Menu("o2", recipes, "recipe", "what is kept in which dtype, and who scales")
        self.options = {
            name: Menu(None, _ABSENT, label, tip) for name, (_, label, tip) in _OPTIONS.items()
        }
        tip = "what steps the weights, and what it keeps for each"
        self.optimizer = Menu("Adam", _OPTIMIZERS, "optimizer", tip)
        rates = [(f"{rate:g}", rate) for rate in _RATES]
        tip = "decides whether the update is large enough to reach the weights"
        self.rate = Slider(1e-3, rates, "learning rate", tip, width="24em")
        tip = "the small net that is trained for a few steps"
        self.net = Menu("DigitsResNet", _NETS, "net", tip)
        sizes = [(size_text(size), size) for size in _SIZES]
        tip = "parameters: the bytes of one, times this many"
        self.size = Menu(10**9, sizes, "a model of", tip)
        options = tuple(self.options.values())
        super().__init__((self.recipe, self.net, *options, self.optimizer, self.rate, self.size))

    @classmethod
    def record(cls) -> list[Any]:
        """Measure what the book shows, as data for a page: recipes with at most one changed option,
        with each net, optimizer and rate.
        """
        panel, rows = cls(), []
        for setting in _recorded_settings():
            sides = [panel._side(*setting, rate) for rate in _RATES]
            rows.append([astuple(sides[0][0]), [astuple(reached) for _, reached in sides]])
        return rows

    @classmethod
    def of(cls, data: Sequence[Any]) -> RecipeExplorer:
        measured: dict[Any, Measured] = {}
        reached: dict[Any, UpdateReach] = {}
        for setting, (row, shares) in zip(_recorded_settings(), data, strict=True):
            measured[setting] = Measured(*row)
            for rate, share in zip(_RATES, shares, strict=True):
                reached[*setting, rate] = UpdateReach(*share)
        return cls((measured, reached))

    @property
    def chosen(self) -> BaseRecipe:
        kind = self._kind()
        own = {name: menu.value for name, menu in self.options.items() if hasattr(kind, name)}
        return replace(kind, **own)

    def _kind(self) -> BaseRecipe:
        return next(recipe for recipe in ALL if recipe.name == self.recipe.value)

    def update(self, control: Control | None) -> None:
        """Show what is chosen; a recipe brings its own options."""
        if control in (None, self.recipe):
            kind = self._kind()
            for name, menu in self.options.items():
                menu.disabled = not hasattr(kind, name)
                menu.options = _ABSENT if menu.disabled else _OPTIONS[name][0]
                menu.value = None if menu.disabled else getattr(kind, name)
        setting = (self.net.value, self.optimizer.value, self.rate.value)
        try:
            chosen, fp32 = self._side(self.chosen, *setting), self._side(O0(), *setting)
        except (RuntimeError, ValueError) as error:
            self.refuse(error)
            return
        self.measured, self.update_reach = chosen
        self.message = ""
        if hasattr(self.chosen, "keep_batchnorm_fp32") and not self.measured.batch_norm:
            self.message = (
                f"{self.net.value} has no batch norm, so keeping it in fp32 changes nothing here."
            )
        self.html = recipe_view(chosen, fp32, self.size.value, self.optimizer.value)

    def _side(
        self, recipe: BaseRecipe, net: str, optimizer: str, rate: float
    ) -> tuple[Measured, UpdateReach]:
        """Return what a recipe keeps and changes, measured when it is first chosen."""
        setting = recipe, net, optimizer
        if (*setting, rate) in self._reached:
            return self._measured[setting], self._reached[*setting, rate]
        if self._is_recorded:
            raise ValueError(_NOT_RECORDED)
        make = _OPTIMIZERS[optimizer]
        # gradients are on in here, whatever the cell around the panel does
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(),
            one_thread(),
        ):
            torch.manual_seed(0)
            if net not in self._nets:
                self._nets[net] = _NETS[net]()
            batch = self._nets[net]
            if setting not in self._measured:
                # bytes do not depend on the rate; at a low one no net diverges
                low = partial(make, lr=_RATES[-1])
                self._measured[setting] = measure(recipe, *batch, loss_fn=_loss, make_optimizer=low)
            chosen = partial(make, lr=rate)
            reached = update_reach(recipe, *batch, loss_fn=_loss, make_optimizer=chosen)
        self._reached[*setting, rate] = reached
        return self._measured[setting], reached


def _recorded_settings() -> list[tuple[BaseRecipe, str, str]]:
    changed = [
        replace(recipe, **{name: value})
        for recipe in ALL
        for name, (choices, _, _) in _OPTIONS.items()
        if hasattr(recipe, name)
        for _, value in choices
    ]
    return [*product(dict.fromkeys([*ALL, *changed]), _NETS, _OPTIMIZERS)]
