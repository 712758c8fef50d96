"""Judge a scheduler that waits: its count of steps beside the optimizer's, and the learning rate at each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amp_course.checking import Wrong
from amp_course.checking.values import fresh
from amp_course.checking.witness import Notes, WatchedScaler, WatchedSGD

INF, NAN = float("inf"), float("nan")


class _NotedScaler(WatchedScaler):
    """Notes that it was asked for its scale, too: before or after the update is what matters here."""

    def get_scale(self) -> float:
        self.notes.events.append("get_scale")
        return super().get_scale()


class WaitScene:
    """Two parameters, a scaler that grows after every second clean step, a learning rate that falls by a tenth a step."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
        self.optimizer = WatchedSGD(self.parameters, lr=0.1, notes=self.notes)
        self.scaler = _NotedScaler(self.notes, init_scale=2.0**8, growth_interval=2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.9)
        self.rates: list[float] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.rates.append(self.optimizer.param_groups[0]["lr"]))

    def prepare(self, planted: float, place: int) -> None:
        """Lay scaled gradients down, with something planted in one parameter's."""
        scale = self.scaler.scale(torch.ones(())).item()
        for number, parameter in enumerate(self.parameters):
            parameter.grad = torch.full_like(parameter, scale)
            if number == place:
                parameter.grad[1] *= planted

    def count(self, event: str) -> int:
        """Return how often something was seen."""
        return self.notes.count()[event]


def judge(answer: Callable[..., Any]) -> None:
    """`scheduled_step(loss, optimizer, scaler, scheduler)`: step, update, and the scheduler if the optimizer stepped."""
    generator = fresh()
    turns = [(1.0, 0), (INF, 1), (1.0, 0), (1.0, 0), (1.0, 0), (NAN, 0), (-INF, 1), (1.0, 0), (1.0, 0), (INF, 0)]
    kinds = ((1.0, 0), (1.0, 0), (INF, 0), (NAN, 1))
    turns += [kinds[int(torch.randint(len(kinds), (), generator=generator))] for _ in range(6)]
    scene = WaitScene()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch warns of a scheduler that runs first; the judge says it in its own words
        for number, (planted, place) in enumerate(turns, 1):
            scene.prepare(planted, place)
            _one(answer, scene, number, planted, place)


def _one(answer: Callable[..., Any], scene: WaitScene, number: int, planted: float, place: int) -> None:
    bad = not abs(planted) < INF
    scale, steps, moved = scene.scaler.state_dict()["scale"], scene.count("step"), scene.scheduler.last_epoch
    rate, first = scene.optimizer.param_groups[0]["lr"], len(scene.notes.events)
    scene.rates.clear()
    try:
        answer(torch.ones(()), scene.optimizer, scene.scaler, scene.scheduler)
    except RuntimeError as error:
        if "already been called" in str(error) and scene.count("update") < number - 1:
            raise Wrong(_NO_UPDATE) from error
        raise
    seen = scene.notes.events[first:]
    if seen.count("scaler.step") != 1:
        raise Wrong("`scaler.step(optimizer)` has to run once in each call: it decides whether the optimizer steps")
    if seen.count("update") != 1:
        raise Wrong(_NO_UPDATE)
    taken, advanced = scene.count("step") - steps, scene.scheduler.last_epoch - moved
    if taken != (not bad):
        raise Wrong("leave it to `scaler.step` whether the optimizer steps: it did not agree with the gradients here")
    if scene.rates and scene.rates[0] != rate:
        raise Wrong(
            f"the scheduler moved before the optimizer: this step ran with the rate {scene.rates[0]:.4g}, which is the next "
            f"one's, instead of {rate:.4g}"
        )
    if advanced == taken:
        return
    if advanced > 1:
        raise Wrong(f"the scheduler moved {advanced} times in one step")
    if advanced:
        raise Wrong(_why_moved(answer, seen, planted, place))
    after = scene.scaler.state_dict()["scale"]
    if after > scale:
        raise Wrong(
            f"the scheduler did not move at a step that was taken: the scale changed from {scale:g} to {after:g} because it "
            "**grew**. Only a scale that fell means a skip: compare with `>=`, not `==`"
        )
    raise Wrong(
        "the scheduler does not advance on clean steps. `scaler.step` returns what the optimizer returns, None with no closure, "
        "whether it was skipped or not: compare the scale before and after `update()`"
    )


_NO_UPDATE = (
    "`scaler.update()` has to run once in each call, after a skipped step too: without it the scale never adapts"
)


def _why_moved(answer: Callable[..., Any], seen: list[str], planted: float, place: int) -> str:
    told = f"the scheduler moved although the step, with {planted:g} in its gradients, was skipped: "
    if _moves_at(answer, loss=1.0, planted=INF, place=0) is False:
        if planted != planted:
            return told + "you look for inf, and NaN skips a step too"
        if planted < 0:
            return told + "you look for +inf, and −inf skips a step too"
        if place == 1:
            return told + "you look at the first parameter's gradient only, and the inf was in another one's"
    if _moves_at(answer, loss=NAN, planted=1.0, place=0) is False:
        return (
            told
            + "you look at the loss, which was finite, and the gradients were not. They overflow in the backward pass, "
            "where the scale is, and the loss knows nothing of it"
        )
    if "get_scale" in seen and "get_scale" not in seen[seen.index("update") :]:
        return (
            told
            + "you compare the scale before it changes. `scaler.step` leaves it as it is and `update()` lowers it: take the "
            "second reading after `update()`"
        )
    if "get_scale" in seen and "get_scale" not in seen[: seen.index("update")]:
        return told + "both readings of the scale come after `update()`: take the first one before"
    if _looks_at_weights(answer):
        return (
            told
            + "you look at the weights, and they are finite because the step was skipped. Ask the scaler: its scale falls "
            "after a skip"
        )
    return told + "it counts steps that the optimizer never took. Ask the scaler first: its scale falls after a skip"


def _moves_at(answer: Callable[..., Any], *, loss: float, planted: float, place: int) -> bool | None:
    """Tell whether the scheduler moves in a fresh scene; None if the answer raises there."""
    scene = WaitScene()
    scene.prepare(planted, place)
    return _probe(answer, scene, loss)


def _looks_at_weights(answer: Callable[..., Any]) -> bool:
    scene = WaitScene()
    scene.prepare(1.0, 0)
    scene.parameters[0].data[0] = NAN
    return _probe(answer, scene, 1.0) is False


def _probe(answer: Callable[..., Any], scene: WaitScene, loss: float) -> bool | None:
    try:
        answer(torch.tensor(loss), scene.optimizer, scene.scaler, scene.scheduler)
    except Exception:
        return None
    return scene.scheduler.last_epoch > 0
