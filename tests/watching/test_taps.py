"""Nothing is attached to a watched model: all that works on it still does; torch is restored."""

from __future__ import annotations

import copy
import io
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.functional import kl_div
from torch.utils.data import DataLoader, TensorDataset

from amp_course.watching import taps
from amp_course.watching.counting import CountingWatch
from amp_course.watching.fp32_shadow import Fp32Shadow
from amp_course.watching.ranges import watch_ranges
from amp_course.watching.records import Step
from tests.watching.parts import Parts


@pytest.fixture(scope="module")
def watched() -> Iterator[Parts]:
    """Parts in the middle of a training that everything watches."""
    parts, watch = Parts(), CountingWatch()
    ranges = watch_ranges(parts.model, every=1)
    with parts.observer(), ranges, taps.listening(Fp32Shadow(watch.aside)), watch:
        parts.step()
        yield parts
        parts.step()


def scripted(parts: Parts) -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean")

    torch.jit.script(Head())(parts.x)
    torch.jit.script(parts.model)(parts.x)


def exported(parts: Parts) -> None:
    # in torch 2.7, a strict export fails under any global forward hook
    for strict in (False, True)[: 1 + (torch.__version__ >= (2, 8))]:
        torch.export.export(parts.model, (parts.x,), strict=strict).module()(parts.x)


def saved(parts: Parts) -> None:
    for one in (parts.model, parts.optimizer, parts.scheduler, parts.scaler):
        file = io.BytesIO()
        torch.save(one, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is type(one)


def loaded(parts: Parts) -> None:
    rows = [x for (x,) in DataLoader(TensorDataset(parts.x), batch_size=2, num_workers=1)]
    assert torch.equal(torch.cat(rows), parts.x)


def mapped(parts: Parts) -> None:
    weights = dict(parts.model.named_parameters())
    torch.func.vmap(lambda x: torch.func.functional_call(parts.model, weights, (x,)))(parts.x)
    torch.func.grad(lambda w: torch.func.functional_call(parts.model, w, (parts.x,)).sum())(weights)


def spawned(parts: Parts) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=run_apart, args=(parts.model, parts.x)
    )
    process.start()
    process.join(120)
    assert process.exitcode == 0


def run_apart(model: nn.Module, x: torch.Tensor) -> None:
    model(x).sum().backward()


USES: dict[str, Callable[[Parts], object]] = {
    "deepcopy": lambda parts: [copy.deepcopy(one) for one in vars(parts).values()],
    "save": saved,
    "script": scripted,
    "trace": lambda parts: torch.jit.trace(parts.model, parts.x),
    "export": exported,
    "fx": lambda parts: torch.fx.symbolic_trace(parts.model)(parts.x),
    "workers": loaded,
    "vmap": mapped,
    "spawn": spawned,
}


@pytest.mark.parametrize("use", USES)
def test_what_is_done_with_a_watched_model_goes_on(use: str, watched: Parts) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        USES[use](watched)


def test_all_is_put_back_and_nothing_is_left_on_an_object() -> None:
    optimizers = [sys.modules["torch.optim.sgd"], sys.modules["torch.optim.optimizer"]]
    schedulers = torch.optim.lr_scheduler.LRScheduler
    owners = [torch.autograd, torch.autocast, torch.amp.GradScaler, schedulers, *optimizers]
    owners += [torch.jit, nn.modules.module]
    before = [dict(vars(one)) for one in owners]
    parts = Parts()
    parts.step()
    own = [parts.optimizer, parts.scheduler, parts.scaler]
    objects = [*parts.model.modules(), *parts.model.parameters(), *own]
    names = [set(vars(one)) for one in objects]
    watchers = parts.observer(), watch_ranges(parts.model, every=1), CountingWatch()
    with pytest.raises(ZeroDivisionError), watchers[0], watchers[1], watchers[2]:
        hooks = [one._forward_hooks or one._forward_pre_hooks for one in parts.model.modules()]
        assert not any(hooks) and "step" not in vars(parts.scheduler)
        assert not any(
            p._post_accumulate_grad_hooks or p._backward_hooks for p in parts.model.parameters()
        )
        parts.step()
        assert [set(vars(one)) for one in objects] == names
        raise ZeroDivisionError
    assert [dict(vars(one)) for one in owners] == before


def halve(optimizer: torch.optim.Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.mul_(0.5)


class Clipping(torch.optim.SGD):
    """Halves what it is given, in its own step."""

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        halve(self)
        return super().step(closure)


def observed(
    optimizer: type[torch.optim.Optimizer], hook: Callable[..., None] | None = None
) -> tuple[Step, torch.Tensor]:
    """Return the record of a step, and what lay in `.grad` before it."""
    parts = Parts(optimizer)
    if hook is not None:
        parts.optimizer.register_step_pre_hook(hook)
    with parts.observer() as observer:
        parts.model(parts.x).square().sum().backward()
        given = torch.cat(
            [p.grad.flatten() for p in parts.model.parameters() if p.grad is not None]
        )
        parts.optimizer.step()
    return observer.update.steps(0)[0], given


@pytest.mark.parametrize(
    ("optimizer", "hook", "factor"),
    [
        (torch.optim.SGD, None, 1.0),
        (torch.optim.Adam, halve, 0.5),
        (Clipping, None, 0.5),
    ],
)
def test_a_step_has_the_gradients_that_moved_the_weights(
    optimizer: type[torch.optim.Optimizer], hook: Callable[..., None] | None, factor: float
) -> None:
    step, given = observed(optimizer, hook)
    assert torch.equal(step.at_call.values, given) and torch.allclose(
        step.gradient.values, factor * given
    )
    assert step.line is not None and step.line.source == "parts.optimizer.step()"


def test_a_step_that_clears_first_uses_nothing() -> None:
    step, given = observed(torch.optim.SGD, lambda optimizer, *_: optimizer.zero_grad())
    assert step.gradient.empty and torch.equal(step.at_call.values, given)


def test_listeners_are_called_in_order_and_one_may_join_on_the_way() -> None:
    called: list[str] = []

    def first(original, *args, **kwargs):  # type: ignore[no-untyped-def]
        called.append("first")
        with taps.listening({"backward": later}):
            return original(*args, **kwargs)

    def later(original, *args, **kwargs):  # type: ignore[no-untyped-def]
        called.append("later")
        return original(*args, **kwargs)

    with taps.listening({"backward": first}):
        torch.ones(1, requires_grad=True).sum().backward()
    assert called == ["first", "later"]
