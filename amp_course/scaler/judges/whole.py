"""Judge a whole scaler: it trains beside `torch.amp.GradScaler`, and after every step both are compared to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Wrong
from amp_course.checking.asking import number, show
from amp_course.checking.blank import is_blank
from amp_course.checking.values import fresh
from amp_course.checking.witness import Notes, WatchedSGD

INF, NAN = float("inf"), float("nan")
_NEEDED = ("scale", "step", "update", "get_scale", "state_dict", "load_state_dict")
Row = list[float]  # what is planted into the gradient of each optimizer; 1.0 is harmless


def judge(answer: Callable[..., Any]) -> None:
    """`MyScaler(init_scale, growth_factor, backoff_factor, growth_interval)` and its methods, beside torch's."""
    generator = fresh()

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    def rows(start: list[Row], count: int, width: int) -> list[Row]:
        kinds = (INF, -INF, NAN, *[1.0] * 9)
        return start + [[kinds[draw(len(kinds))] for _ in range(width)] for _ in range(count)]

    options = {
        "init_scale": 2.0 ** (8 + draw(7)),
        "growth_factor": 2.0 ** (1 + draw(2)),
        "backoff_factor": 0.5 ** (1 + draw(2)),
        "growth_interval": 3,
    }
    one = [[1.0]] * 4 + [[INF], [1.0], [1.0], [NAN]] + [[1.0]] * 4 + [[-INF], [1.0]]
    two = [[1.0, 1.0], [INF, 1.0], [1.0, 1.0], [1.0, NAN], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [INF, INF], [1.0, 1.0]]
    Pair(answer, options, 1, generator).play(rows(one, 12, 1))
    Pair(answer, options, 2, generator).play(rows(two, 12, 2))
    if not is_blank(getattr(answer, "unscale_", ...)):
        by_hand = Pair(answer, options, 2, generator)
        by_hand.unscale_first = 1
        by_hand.play(rows(two, 6, 2))
    # Saved two clean steps after a backoff: the next one makes the scale grow.
    for into, what in ((options, "the same"), ({}, "other")):
        pair = Pair(answer, options, 1, generator)
        pair.play([[1.0], [NAN], [1.0], [1.0]])
        pair.reload(into, what)
        pair.play(rows([[1.0], [INF], *[[1.0]] * 4], 6, 1))


class Trainee:
    """Some parameters, each with an optimizer of its own that notes its steps; SGD with momentum remembers each of them."""

    def __init__(self, start: list[Tensor]) -> None:
        self.notes = [Notes() for _ in start]
        self.parameters = [nn.Parameter(value.clone()) for value in start]
        self.optimizers = [
            WatchedSGD([parameter], 0.05, notes) for parameter, notes in zip(self.parameters, self.notes, strict=True)
        ]
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["momentum"] = 0.9

    def losses(self, coefficients: list[Tensor]) -> list[Tensor]:
        """Return one loss for each parameter, whose gradient is its coefficients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return [(p * c).sum() for p, c in zip(self.parameters, coefficients, strict=True)]

    def steps(self, place: int) -> int:
        """Count the steps that an optimizer has really taken."""
        return self.notes[place].count()["step"]


class Pair:
    """The answer's scaler and torch's, each with its own training, given the same gradients."""

    unscale_first = 0  # how many of the optimizers are unscaled by hand, for clipping

    def __init__(
        self, answer: Callable[..., Any], options: dict[str, Any], width: int, generator: torch.Generator
    ) -> None:
        self.answer, self.generator = answer, generator
        start = [torch.rand(4, generator=generator) + 0.5 for _ in range(width)]
        self.mine, self.theirs = Trainee(start), Trainee(start)
        self.scaler, self.torch = self._made(options), torch.amp.GradScaler("cpu", **options)
        self.before: Row = [1.0] * width
        self.loaded = ""

    def _made(self, options: dict[str, Any]) -> Any:
        scaler = self.answer(**options)
        missing = [name for name in _NEEDED if not callable(getattr(scaler, name, None))]
        if missing:
            raise Wrong(f"the answer is a class, and its objects lack {', '.join(f'`{name}`' for name in missing)}")
        return scaler

    def reload(self, options: dict[str, Any], what: str) -> None:
        """Save, let the saved scaler go on for a while, and load into a new one, made with the same options or others."""
        state = self.scaler.state_dict()
        if state is None:
            raise Wrong("`state_dict()` returned None: give back a dict of what the scaler has to remember")
        apart = Trainee([torch.ones(2)])
        for planted in (INF, INF, 1.0):
            self.scaler.scale(apart.losses([torch.tensor([planted, 1.0])])[0]).backward()
            self.scaler.step(apart.optimizers[0])
            self.scaler.update()
        self.scaler, saved = self._made(options), self.torch.get_scale()
        self.scaler.load_state_dict(state)
        got = number(self.scaler.get_scale(), "`get_scale()` after loading")
        if got != saved:
            raise Wrong(
                f"the scale was {show(saved)} when it was saved and is {show(got)} after loading: `state_dict` has to hold "
                "a copy of it, a number and not a tensor that goes on changing, and `load_state_dict` has to put it back"
            )
        self.loaded = what

    def play(self, rows: list[Row]) -> None:
        """Train both along the rows; raise `Wrong` at the first step after which they differ."""
        for row in rows:
            self._step(row)
            self.before = row

    def _step(self, row: Row) -> None:
        coefficients = [torch.randn(4, generator=self.generator) + 3.0 for _ in row]
        for values, planted in zip(coefficients, row, strict=True):
            values[2] *= planted
        steps = [self.mine.steps(place) for place in range(len(row))]
        scale = self.torch.get_scale()
        for loss, right in zip(self.mine.losses(coefficients), self.theirs.losses(coefficients), strict=True):
            self._scaled(loss, scale).backward()
            self.torch.scale(right).backward()
        for place in range(self.unscale_first):
            self._unscale(place)
        for place in range(len(row)):
            self.scaler.step(self.mine.optimizers[place])
            self.torch.step(self.theirs.optimizers[place])
            self._about_step(place, row, self.mine.steps(place) - steps[place], scale)
        self.scaler.update()
        self.torch.update()
        self._about_scale(row, scale)

    def _scaled(self, loss: Tensor, scale: float) -> Tensor:
        scaled = self.scaler.scale(loss)
        if not isinstance(scaled, Tensor) or scaled.shape != loss.shape:
            raise Wrong(
                f"`scale(loss)` returned a {type(scaled).__name__}: give back the loss times the scale, a tensor"
            )
        if not scaled.requires_grad:
            raise Wrong(
                "`scale(loss)` gives a tensor without a graph, so `backward()` cannot run: `return loss * self._scale`"
            )
        if not torch.allclose(scaled, loss * scale, rtol=0, atol=0, equal_nan=True):
            raise Wrong(f"`scale(loss)` is not the loss times the scale, which is {show(scale)} here")
        return scaled

    def _unscale(self, place: int) -> None:
        self.scaler.unscale_(self.mine.optimizers[place])
        self.torch.unscale_(self.theirs.optimizers[place])
        mine, right = self.mine.parameters[place].grad, self.theirs.parameters[place].grad
        if mine is None or right is None or not torch.allclose(mine, right, rtol=0, atol=0, equal_nan=True):
            raise Wrong(
                "after `unscale_(optimizer)` the gradients are not the true ones: divide them by the scale there"
            )
        for trainee in (self.mine, self.theirs):
            torch.nn.utils.clip_grad_norm_([trainee.parameters[place]], 1.0)

    def _about_step(self, place: int, row: Row, taken: int, scale: float) -> None:
        bad = not abs(row[place]) < INF
        if taken > 1:
            raise Wrong("`step(optimizer)` runs the optimizer more than once")
        if taken and bad:
            raise Wrong(
                f"a step with {row[place]:g} in its gradients was taken, and the weights are NaN for good: call "
                "`optimizer.step()` only if all gradients are finite"
            )
        if not taken and not bad:
            raise Wrong(self._why_skipped(place, row))
        if torch.equal(self.mine.parameters[place], self.theirs.parameters[place]):
            return
        where = "after loading, " if self.loaded else ""
        seen, right = (t.notes[place].step_gradients for t in (self.mine, self.theirs))
        if seen and right and seen[-1][0] is not None and right[-1][0] is not None:
            times = float(seen[-1][0].norm() / right[-1][0].norm())
            if times == scale and self.mine.steps(place) > 1:
                raise Wrong(
                    f"{where}an optimizer got gradients {scale:,.0f} times too large, and its first step was right: `update()` "
                    "has to forget which optimizers are unscaled"
                )
            if times == scale:
                raise Wrong(
                    f"{where}the optimizer got gradients {scale:,.0f} times too large: `step` has to unscale them first"
                )
            if times == 1 / scale and place < self.unscale_first:
                raise Wrong(
                    f"{where}the gradients were unscaled twice, and are {scale:,.0f} times too small: the caller had called "
                    "`unscale_` before, to clip. Remember for each optimizer whether that is done, until `update()`"
                )
            if times != 1.0:
                raise Wrong(
                    f"{where}the optimizer got gradients {times:.6g} times as large as those from torch's scaler"
                )
        raise Wrong(f"{where}the weights are not those of torch's scaler, to the last bit: leave them to the optimizer")

    def _why_skipped(self, place: int, row: Row) -> str:
        if any(not abs(planted) < INF for planted in row[:place]):
            return (
                "the second optimizer's step was skipped, and only the first one's gradients had inf or NaN: keep what is found "
                "for each optimizer apart. Only the scale is common to them"
            )
        if any(not abs(planted) < INF for planted in self.before):
            return "a clean step was skipped because the step before it had inf or NaN: `update()` has to forget what was found"
        return (
            "a step with clean gradients was not taken: `step(optimizer)` calls `optimizer.step()` if they are finite"
        )

    def _about_scale(self, row: Row, scale: float) -> None:
        got, right = number(self.scaler.get_scale(), "`get_scale()`"), self.torch.get_scale()
        if got == right:
            return
        there = f": {show(right)} is right here, and yours is {show(got)}"
        if self.loaded == "the same":
            raise Wrong(
                "the loaded scaler does not grow when the saved one would have: `state_dict` forgets the streak of clean steps "
                f"(torch calls it `_growth_tracker`), or `load_state_dict` does{there}"
            )
        if self.loaded:
            raise Wrong(
                "a scaler that was made with other numbers goes on with those after loading: growth and backoff factor and the "
                f"growth interval belong into the state too{there}"
            )
        bad = [not abs(planted) < INF for planted in row]
        if right < scale and got == scale and len(row) == 2 and bad == [True, False]:
            raise Wrong(
                "the second optimizer's clean step hid the inf that the first one found: if one of them finds any, the scale has "
                f"to back off{there}"
            )
        if right < scale and got == scale:
            raise Wrong(f"the scale does not back off after inf or NaN in `update()`{there}")
        if not any(bad) and got < scale:
            raise Wrong(f"`update()` backs off after a clean step: has it forgotten what was found before?{there}")
        if right > scale and got == scale:
            raise Wrong(f"the scale does not grow after as many clean steps in a row as `growth_interval` says{there}")
        if got > scale and right == scale and len(row) == 2:
            raise Wrong(
                "the scale grows too early, with two optimizers and not with one: the streak counts updates, not "
                f"optimizers{there}"
            )
        if got > scale and right == scale:
            raise Wrong(
                f"the scale grows too early: the streak restarts at 0 after a skipped step, and after a growth{there}"
            )
        raise Wrong(f"the scale after `update()` is not torch's{there}")
