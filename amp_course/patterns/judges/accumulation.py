"""Judge accumulation: over unequal micro-batches, and saved in the middle of a group.

`accumulate` is judged by the gradient at each update, next to the big batch's in fp32; `resume_mid_accumulation` by the run that
goes on from the file, next to the one that was never broken.
"""

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
from amp_course.checking.stepping import about_clearing, about_passes
from amp_course.checking.values import fresh
from amp_course.checking.witness import Scene, drawn_seed
from amp_course.patterns.judges.small_trainings import (
    EVERY,
    Accumulating,
    Batch,
    clipped,
    drawn_batches,
    equal,
    flat,
    near,
    true_gradients,
)

_LOUD = (3.0, 0.3, 0.3, 0.3)  # how large the inputs of each group are: one long gradient to clip, and short ones
_UPDATES = 3  # of the run that is saved in the middle of a group


class Accumulation:
    """Micro-batches of unequal size in four groups: the second one overflows in fp16, the last one is short."""

    def __init__(self) -> None:
        generator = fresh()
        self.every = 3
        count = 3 * self.every + 1 + int(torch.randint(2, (), generator=generator))
        self.scale = 2.0 ** int(torch.randint(8, 12, (), generator=generator))
        options = {"init_scale": self.scale, "growth_interval": 100}
        self.scene = Scene(drawn_seed(), count, overflow_at=(4,), scaler=options)
        self.scene.model[1] = nn.Tanh()  # no kink, where fp16 and fp32 could part
        self.scene.optimizer.param_groups[0]["lr"] = 0.01
        # In every group the mean over rows is far from the mean over micro-batches.
        sizes = [size for _ in range(4) for size in torch.tensor([2, 8, 5])[torch.randperm(3, generator=generator)]]
        self.scene.batches = [
            (inputs[:size] * _LOUD[number // self.every], targets[:size])
            for number, ((inputs, targets), size) in enumerate(zip(self.scene.batches, sizes, strict=False))
        ]
        batches, every = self.scene.batches, self.every
        self.groups: list[list[Batch]] = [batches[first : first + every] for first in range(0, count, every)]
        norms = [float(self.gradient(self.groups[place], by_rows).norm()) for place in (0, 2)]
        self.max_norm = (norms[0] * norms[1]) ** 0.5

    def gradient(self, group: list[Batch], loss: Callable[[nn.Module, list[Batch]], Tensor]) -> Tensor:
        """Return the fp32 gradient of a loss over a group, at the weights of now."""
        return true_gradients([self.scene.model], lambda model: loss(model, group))[0]


def _losses(model: nn.Module, group: list[Batch]) -> list[Tensor]:
    return [nn.functional.cross_entropy(model(inputs), targets) for inputs, targets in group]


def by_rows(model: nn.Module, group: list[Batch]) -> Tensor:
    """Return the mean loss over all rows of the group: that of the big batch."""
    rows = [len(targets) for _, targets in group]
    parts = [loss * n for loss, n in zip(_losses(model, group), rows, strict=True)]
    return torch.stack(parts).sum() / sum(rows)


def _sum(model: nn.Module, group: list[Batch]) -> Tensor:
    return torch.stack(_losses(model, group)).sum()


def judge_accumulate(answer: Callable[..., Any]) -> None:
    """`accumulate(model, batches, loss_fn, optimizer, scaler, every, max_norm)`: one pass, an update for each group."""
    run = Accumulation()
    scene = run.scene
    try:
        answer(scene.model, scene.batches, scene.loss_fn, scene.optimizer, scene.scaler, run.every, run.max_norm)
    except (AssertionError, RuntimeError) as error:
        _explain_exception(run, str(error))
        raise
    about_passes(scene, len(scene.batches), torch.float16)
    _check_calls(run)
    if scene.notes.count()["step"]:
        about_clearing(scene, "scaler.step")
    for step, place in ((1, 2), (0, 0), (2, 3)):  # (step, group): group 1 overflowed, and only group 0 is clipped
        _check_gradient(run, step, place)
    left = [p.grad for p in scene.model.parameters() if p.grad is not None]
    clears_first = "zero_grad" in scene.notes.events[: scene.notes.events.index("backward")]
    if left and bool(flat(left).any()) and not clears_first:
        raise Wrong(
            "gradients are left behind at the end, and the next pass would add to them: clear them after the last "
            "update, too"
        )


def _explain_exception(run: Accumulation, message: str) -> None:
    seen = run.scene.notes.count()
    if "already been called" in message and seen["backward"] % run.every:
        raise Wrong(
            f"`unscale_` ran in the middle of a group (torch raised: {message.split('.')[0]}). The micro-batches of a "
            "group add up *scaled* gradients: unscale and clip once, after the last `backward()` of the group"
        )
    if ("already been called" in message or "after step" in message) and seen["update"] == 0:
        raise Wrong(
            "`scaler.update()` is missing: the scaler still thinks itself in the first update. Call it once a group, "
            "after `scaler.step(optimizer)`"
        )
    if "No inf checks" in message and seen["update"] > seen["scaler.step"]:
        raise Wrong(
            "`scaler.update()` ran for a micro-batch that made no step. The scale must stay as it is within a group, "
            "or gradients of two scales are added up: update once a group, after `scaler.step(optimizer)`"
        )


def _check_calls(run: Accumulation) -> None:
    notes, seen, groups = run.scene.notes, run.scene.notes.count(), len(run.groups)
    batches = len(run.scene.batches)
    if notes.stray_steps:
        raise Wrong(
            "`optimizer.step()` was called directly: it applies gradients that may still carry the scale, and inf and "
            "NaN as well. The step is `scaler.step(optimizer)`, after unscaling and clipping too"
        )
    if all(start <= 1.0 for start in notes.backward_scales):
        raise Wrong(
            "no loss was scaled: `scaler.scale(loss).backward()` for every micro-batch, so that its small gradients "
            "survive fp16"
        )
    if seen["scaler.step"] >= batches:
        raise Wrong(
            f"the optimizer stepped after every micro-batch, {seen['scaler.step']} times: accumulation makes one "
            f"update of `every` = {run.every} micro-batches"
        )
    if seen["scaler.step"] == groups - 1:
        raise Wrong(
            f"{batches} micro-batches in groups of {run.every} are {groups} updates, and {groups - 1} were made: the "
            "last group is a short one, and its rows were computed for nothing. Update after the last micro-batch, too"
        )
    if seen["scaler.step"] != groups:
        raise Wrong(
            f"{batches} micro-batches in groups of {run.every} are {groups} updates, and `scaler.step` ran "
            f"{seen['scaler.step']} times"
        )
    if seen["update"] != groups:
        raise Wrong(f"`scaler.update()` ran {seen['update']} times for {groups} updates: once after each `scaler.step`")
    if seen["step"] == groups:
        raise Wrong(
            "a group stepped although one of its micro-batches, not the last, overflowed: the gradients were cleared "
            "inside the group, and only the last micro-batch is left. Clear once, after the update"
        )


def _check_gradient(run: Accumulation, step: int, place: int) -> None:
    seen = run.scene.notes.step_gradients
    if step >= len(seen):
        raise Wrong(
            "after the group that overflowed no more steps were taken: clear the gradients of a skipped group as "
            "well, or its NaN stays in the sum for ever"
        )
    if any(gradient is None for gradient in seen[step]):
        raise Wrong(
            "the optimizer stepped with no gradients: clear them after the update, not between `backward()` and step"
        )
    got = flat(gradient for gradient in seen[step] if gradient is not None)
    for parameter, value in zip(run.scene.model.parameters(), run.scene.notes.step_weights[step], strict=True):
        parameter.data = value.clone()
    true = run.gradient(run.groups[place], by_rows)
    want = clipped(true, run.max_norm)
    if not near(got, want):
        told = (
            f"the gradient at update {place + 1} has the norm {float(got.norm()):.4g}, and {float(want.norm()):.4g} "
            "is right"
        )
        raise Wrong(_explain_gradient(run, got, true, place) + f" ({told})")


def _explain_gradient(run: Accumulation, got: Tensor, true: Tensor, place: int) -> str:
    group, limit = run.groups[place], run.max_norm
    total = run.gradient(group, _sum)
    short = len(group) < run.every
    if near(got, total) or near(got, clipped(total, limit)):
        return (
            "the gradients are the sum over the micro-batches: divide by what they are the mean of, the rows of the "
            "group"
        )
    mean = total / len(group)
    if near(got, mean) or near(got, clipped(mean, limit)):
        return (
            "that is the mean over micro-batches, as if all had the same size: a row in a small one counts for more "
            "than a row in a large one. Weigh each loss with its rows, `len(targets) / rows_of_the_group`"
        )
    for part in (total, true * len(group)):
        if short and near(got, part / run.every):
            return (
                f"the last group is a short one and was still divided by `every` = {run.every}: its update comes out "
                "too small. Divide by what is in the group"
            )
    if near(got, true):
        return f"the gradient was not clipped to `max_norm` = {limit:.3g}"
    if float(got.norm()) < 20 * limit / run.scale:
        return (
            "you clipped before unscaling, so that every gradient is cut to next to nothing: "
            "`scaler.unscale_(optimizer)` first, once a group"
        )
    if run.scene.notes.between("backward", "scaler.step", "unscale") and run.scene.notes.count()["unscale"] > 4:
        return "gradients were unscaled, or clipped, inside a group: once, after its last `backward()`"
    if run.scene.notes.count()["zero_grad"] == 0:
        return (
            "the gradients are never cleared, so each update adds the groups before it: `optimizer.zero_grad()` after "
            "it"
        )
    return (
        "it is not the mean over all rows of the group, clipped once. Scale each micro-batch's loss by its share of "
        "the rows; after the last one unscale, clip, step, update, clear"
    )


def judge_resume_mid_accumulation(answer: Any) -> None:
    """The pair `save(path, model, optimizer, scaler, micro_step)`, `load(path, model, optimizer, scaler)` → micro_step."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not all(callable(one) for one in answer):
        raise Wrong("the check wants both functions, as a pair: `check((save_midway, load_midway))`")
    save, load = answer
    if is_blank(save) or is_blank(load):
        raise Wrong(f"`{'save' if is_blank(save) else 'load'}_midway` is still to be written")
    generator = fresh()
    with tempfile.TemporaryDirectory() as folder:
        for number, (cut, overflow) in enumerate(((EVERY + 2, None), (2 * EVERY + 3, 2 * EVERY + 1), (EVERY, None))):
            batches = drawn_batches(generator, _UPDATES * EVERY)
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
    before, micro_step = unbroken.state(), cut % EVERY
    ask(save, f"micro_step = {micro_step}", path, saved.model, saved.optimizer, saved.scaler, micro_step)
    if not equal(saved.state(), before):
        raise Wrong(
            "saving changed the run: its gradients or weights are not what they were before. Save them as they are, "
            "scaled: unscaling here mixes scaled and unscaled gradients in the next sum"
        )
    resumed = Accumulating(drawn_seed(), 2.0**13)
    got = ask(load, f"a file of micro_step {micro_step}", path, resumed.model, resumed.optimizer, resumed.scaler)
    _check_state(resumed, before, micro_step, overflowed)
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


def _check_state(resumed: Accumulating, before: list[Any], micro_step: int, overflowed: bool) -> None:
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
                f"after {micro_step} of {EVERY} micro-batches `{name}` had a gradient, and after loading it has "
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
