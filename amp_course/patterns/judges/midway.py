"""Judge a save in the middle of an accumulation: the run that goes on from it, beside the one that was never broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import ask, integer
from amp_course.checking.blank import is_blank
from amp_course.checking.values import fresh
from amp_course.checking.witness import drawn_seed
from amp_course.patterns.judges.small_trainings import Batch, drawn_batches, equal

_EVERY, _UPDATES = 4, 3  # micro-batches of an update, updates of a run


class Accumulating:
    """A training that accumulates, with weight decay and a layer that gets no gradients in the first updates."""

    def __init__(self, seed: int, init_scale: float) -> None:
        """Draw the weights from the seed."""
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 4), nn.Linear(2, 2))
        for parameter in self.model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=2)
        self.scaler.scale(torch.ones(()))  # so that the scale is there before it is first used

    def run(self, batches: list[Batch], first: int, last: int) -> None:
        """Run the micro-batches first … last - 1; after every fourth the weights are updated."""
        for number in range(first, last):
            inputs, targets = batches[number]
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(self.model[:3](inputs), targets) / _EVERY
            self.scaler.scale(loss).backward()
            if (number + 1) % _EVERY == 0:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

    def gradients(self) -> list[Tensor | None]:
        """Return copies of the gradients as they stand, None where there is none."""
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]

    def state(self) -> list[Any]:
        """Return what has to be equal: weights, gradients, momentum, scale and streak."""
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        momentum = [state.get("momentum_buffer") for state in self.optimizer.state.values()]
        return [weights, self.gradients(), momentum, dict(self.scaler.state_dict())]


def judge(answer: Any) -> None:
    """The pair `save(path, model, optimizer, scaler, micro_step)`, `load(path, model, optimizer, scaler)` → micro_step."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(callable(one) for one in answer):
        raise Wrong("the check wants both functions, as a pair: `check((save_midway, load_midway))`")
    save, load = answer
    if is_blank(save) or is_blank(load):
        raise Wrong(f"`{'save' if is_blank(save) else 'load'}_midway` is still to be written")
    generator = fresh()
    with tempfile.TemporaryDirectory() as folder:
        for number, (cut, overflow) in enumerate(
            ((_EVERY + 2, None), (2 * _EVERY + 3, 2 * _EVERY + 1), (_EVERY, None))
        ):
            batches = drawn_batches(generator, _UPDATES * _EVERY)
            if overflow is not None:
                batches[overflow] = (batches[overflow][0] * 1e6, batches[overflow][1])
            _break_and_go_on(save, load, Path(folder) / f"{number}.pt", batches, cut, overflow is not None)


def _break_and_go_on(
    save: Callable[..., Any], load: Callable[..., Any], path: Path, batches: list[Batch], cut: int, overflowed: bool
) -> None:
    seed, scale = drawn_seed(), 2.0 ** (8 + cut % 3)
    unbroken, saved = Accumulating(seed, scale), Accumulating(seed, scale)
    unbroken.run(batches, 0, cut)
    saved.run(batches, 0, cut)
    before, micro_step = unbroken.state(), cut % _EVERY
    ask(save, f"micro_step = {micro_step}", path, saved.model, saved.optimizer, saved.scaler, micro_step)
    if not equal(saved.state(), before):
        raise Wrong(
            "saving changed the run: its gradients or weights are not what they were before. Save them as they are, "
            "scaled: unscaling here mixes scaled and unscaled gradients in the next sum"
        )
    resumed = Accumulating(drawn_seed(), 2.0**13)
    got = ask(load, f"a file of micro_step {micro_step}", path, resumed.model, resumed.optimizer, resumed.scaler)
    _about_state(resumed, before, micro_step, overflowed)
    if got is None:
        raise Wrong("`load` returned None: return the micro-step, or the group is counted from its beginning")
    if integer(got, "the micro-step") != micro_step:
        raise Wrong(f"{micro_step} micro-batches of the group were done at the save, and `load` returned {got}")
    unbroken.run(batches, cut, len(batches))
    resumed.run(batches, cut, len(batches))
    if not equal(resumed.state(), unbroken.state()):
        raise Wrong("the run that goes on from the file is not the unbroken one, to the last bit")
    try:
        torch.load(path, weights_only=True)
    except Exception as error:
        raise Wrong(
            f"`torch.load(path, weights_only=True)` refuses the file ({type(error).__name__}): keep to tensors, "
            "numbers and tables of them"
        ) from error


def _about_state(resumed: Accumulating, before: list[Any], micro_step: int, overflowed: bool) -> None:
    weights, gradients, momentum, scaler = before
    got = resumed.state()
    if not equal(got[0], weights):
        raise Wrong(
            "the weights after loading are not those that were saved: `model.state_dict()` and `load_state_dict`"
        )
    if not equal(got[3], scaler):
        raise Wrong(
            f"the gradients of the file carry the scale {scaler['scale']:,.0f}, and the scaler after loading has "
            f"{got[3]['scale']:,.0f} and a streak of {got[3]['_growth_tracker']} instead of "
            f"{scaler['_growth_tracker']}: the scaler's state belongs to the gradients"
        )
    if not equal(got[2], momentum):
        raise Wrong("the optimizer's momentum after loading is not what was saved: `optimizer.state_dict()`")
    if equal(got[1], gradients):
        return
    names = [name for name, _ in resumed.model.named_parameters()]
    for name, mine, right in zip(names, got[1], gradients, strict=True):
        if mine is None and right is not None:
            raise Wrong(
                f"after {micro_step} of {_EVERY} micro-batches `{name}` had a gradient, and after loading it has "
                "none: what was accumulated is lost. `state_dict()` holds no gradients; save each `parameter.grad` "
                "beside it"
            )
        if right is None and mine is not None:
            raise Wrong(
                f"`{name}` had no gradient, and after loading it has one of zeros: for the optimizer that is not the "
                "same. With None it passes over the parameter, with zeros it decays it and moves it by its momentum"
            )
        if mine is None or right is None or equal(mine, right):
            continue
        if overflowed and bool(mine.isfinite().all()):
            raise Wrong(
                "an overflow in the group was cleaned away: its inf and NaN have to be carried, too, so that the step "
                "is skipped"
            )
        ratio = float((mine.norm() / right.norm()).nan_to_num(0.0))
        if abs(ratio - 1.0) < 0.01:
            raise Wrong(f"the gradient of `{name}` was rounded on the way: save it as it is, in float32")
        raise Wrong(
            f"the gradient of `{name}` is not what it was: its norm is {ratio:.3g} times as large. Save it as it is, "
            "with its scale"
        )
